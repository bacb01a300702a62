"""A bundle as a file: a zip archive of stored members, written whole or not at all; equal content is equal bytes.

Reading one runs nothing of it and writes only below the directory that is named: names come from a closed list, members
are stored and so cannot grow, no two have one name, none is a link, and every byte is checked before it counts.
"""

import os
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from xxhash import xxh3_128

from harness.bits.errors import BundleError
from harness.bits.files import open_regular, replacing
from harness.lab.experiments.bundles.contents import (
    HEAD,
    MAX_HEAD_BYTES,
    MAX_MEMBERS,
    Head,
    Member,
    is_legal_name,
    parse_head,
)

Content = bytes | Path
"""What a member holds: these bytes, or those of a file."""
WHOLE = "a bundle as rlharness reproduce RUN --step K --bundle has written it"
AGAIN = "copy it again, or have it made again"
_CHUNK_BYTES = 2**20
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The first date that the format has."""
_MODE = (stat.S_IFREG | 0o644) << 16
_UNIX = 3
_ENCRYPTED = 0x1
_DAMAGE = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, RuntimeError, EOFError, struct.error),
    *(ValueError, KeyError, IndexError, TypeError, OverflowError),
)
"""What the standard library raises of archives that are damaged, or of other kinds."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose head and names have been checked; its members are when they are read."""

    path: Path
    head: Head

    def read(self, name: str, limit_bytes: int = MAX_HEAD_BYTES) -> bytes:
        """The bytes of a small member, checked; BundleError."""
        with _opened(self.path) as (archive, infos):
            if name not in infos or infos[name].file_size > limit_bytes:
                raise BundleError(f"{self.path} has no {name} of at most {limit_bytes:,} bytes")
            with archive.open(infos[name]) as member:
                return b"".join(_checked(member, name, self.head.members[name]))

    def unpack(self, directory: Path) -> None:
        """Write every member below a directory that is new; BundleError where one is not what the head says."""
        with _opened(self.path) as (archive, infos):
            for name, expected in self.head.members.items():
                target = directory / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(infos[name]) as member, target.open("xb") as file:
                    for chunk in _checked(member, name, expected):
                        file.write(chunk)


def open_bundle(path: Path) -> Bundle:
    """A bundle, its head and the names of its members checked; BundleError for any other file."""
    with _opened(path) as (archive, infos):
        if infos.get(HEAD) is None or infos[HEAD].file_size > MAX_HEAD_BYTES:
            raise BundleError(f"{path} is not a bundle: it has no {HEAD}")
        with archive.open(infos[HEAD]) as member:
            head = parse_head(member.read())
        sizes = {name: info.file_size for name, info in infos.items() if name != HEAD}
        if sizes != {name: member.num_bytes for name, member in head.members.items()}:
            raise BundleError(f"the members of {path} differ from those in its {HEAD}")
        return Bundle(path, head)


def write_bundle(path: Path, head: Head, contents: Mapping[str, Content]) -> None:
    """Write a bundle, and replace an existing one; on OSError, leave nothing.

    The checksums of the head are those of `contents`, see `checksums`.
    """
    with replacing(path, is_synced=True) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in ((HEAD, head.encoded()), *sorted(contents.items())):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system, info.external_attr = _UNIX, _MODE
            info.file_size = len(content) if isinstance(content, bytes) else content.stat().st_size
            with archive.open(info, "w") as member:
                for chunk in _chunks(content):
                    member.write(chunk)


def checksums(contents: Mapping[str, Content]) -> dict[str, Member]:
    """What a head says of these members."""
    return {name: _member_of(content) for name, content in contents.items()}


def _member_of(content: Content) -> Member:
    digest, num_bytes = xxh3_128(), 0
    for chunk in _chunks(content):
        digest.update(chunk)
        num_bytes += len(chunk)
    return Member(num_bytes, digest.hexdigest())


def _chunks(content: Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with open_regular(content) as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


@contextmanager
def _opened(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """An archive and its members by name, all of them harmless; BundleError for whatever is wrong inside."""
    try:
        with open_regular(path, follows_links=True) as file, zipfile.ZipFile(file) as archive:
            yield archive, _harmless(archive, os.fstat(file.fileno()).st_size)
    except BundleError as error:
        raise BundleError(_named(path, error.what), legal=error.legal or WHOLE, remedy=error.remedy or AGAIN) from None
    except OSError as error:
        raise BundleError(
            f"{error.filename or path}: {error.strerror or error}",
            legal=WHOLE,
            remedy="name a readable file, and a writable directory",
        ) from None
    except _DAMAGE as error:
        raise BundleError(
            f"{path} is damaged, or not a bundle: {str(error) or type(error).__name__:.100}",
            legal=WHOLE,
            remedy=AGAIN,
        ) from None


def _named(path: Path, what: str) -> str:
    return what if str(path) in what else f"{path}: {what}"


def _harmless(archive: zipfile.ZipFile, file_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """The members by name; BundleError where one could be anything but a file of its own size at its own place."""
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise BundleError(f"{len(infos):,} members", legal=f"at most {MAX_MEMBERS:,}")
    if sum(info.file_size for info in infos) > file_bytes:
        raise BundleError("its members are larger than the file that holds them")
    for info in infos:
        mode = info.external_attr >> 16
        is_stored = info.compress_type == zipfile.ZIP_STORED and info.file_size == info.compress_size
        if not is_stored or info.flag_bits & _ENCRYPTED or stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise BundleError(f"{info.filename!r:.200} is compressed, encrypted, or not a file", legal="stored files")
        if info.orig_filename != info.filename or not (info.filename == HEAD or is_legal_name(info.filename)):
            raise BundleError(
                f"a member called {info.orig_filename!r:.200}", legal="the names that a bundle has, and no others"
            )
    found = {info.filename: info for info in infos}
    if len(found) != len(infos):
        raise BundleError("two members have the same name")
    return found


def _checked(member: IO[bytes], name: str, expected: Member) -> Iterator[bytes]:
    """The bytes of a member; BundleError at their end where they are not what the head says."""
    digest, num_bytes = xxh3_128(), 0
    while chunk := member.read(_CHUNK_BYTES):
        digest.update(chunk)
        num_bytes += len(chunk)
        yield chunk
    if (num_bytes, digest.hexdigest()) != (expected.num_bytes, expected.xxh3_128):
        raise BundleError(f"{name} is damaged: its checksum differs from the head")
