"""What a bundle consists of: a recorded run, cut down to one step and what it begins with. Pure.

    bundle.json                          the head: which step, from where, and a checksum of every other member
    call.json manifest.json              what was called, with which configuration, at which level; the fingerprint
    rank-0.log curve.jsonl               the digests of the steps from the checkpoint on; the curve of the whole run
    tensors/rank-0-step-7.safetensors    what was kept of the step: its rollouts, or all of it
    unfinished/...                       the same of a step in whose middle the run has ended
    checkpoints/step-000005/...          the checkpoint from which the step is reached; absent where it is named only

Nothing else may be in one: names are checked against this list. Of a checkpoint only files of formats that hold data
may be in one, so that no member can be imported, and none is a pickle. What call.json names is checked by `trust`.
"""

import json
import os
import re
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from xxhash import xxh3_128

from harness import __version__
from harness.bits.errors import BundleError
from harness.bits.files import MALFORMED, open_regular, replacing
from harness.recording.entry_call import EntryCall
from harness.trace.manifest import upgrade

FORMAT = 1
HEAD = "bundle.json"
ENDING = ".rlb"
MAX_MEMBERS = 10_000
MAX_HEAD_BYTES = 2**24
CHECKPOINT_SUFFIXES = (".json", ".jsonl", ".safetensors", ".txt", ".model", ".jinja")
"""Of the files of a checkpoint: weights, plain values, and what tokenizers are saved as."""
_OF_TRACE = r"(manifest\.json|curve\.jsonl|rank-\d{1,4}\.log|tensors/rank-\d{1,4}-step-\d{1,12}\.safetensors)"
_IS_DATA = rf"(?=[^\n]*({'|'.join(map(re.escape, CHECKPOINT_SUFFIXES))})\Z)"
_OF_CHECKPOINT = rf"{_IS_DATA}checkpoints/step-\d{{6,12}}(/[A-Za-z0-9_][A-Za-z0-9_.-]{{0,99}}){{1,4}}"
_NAME = re.compile(rf"call\.json|(unfinished/)?{_OF_TRACE}|{_OF_CHECKPOINT}", re.ASCII)
_CHECKPOINT = re.compile(r"/step-\d{6,12}\Z", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a bundle."""

    num_bytes: int
    xxh3_128: str
    """Of its bytes, 32 hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class NamedCheckpoint:
    """A checkpoint that is not in the bundle: where it was, and what has to be there."""

    path: str
    """Of its directory, on the machine that made the bundle."""
    digest: str
    """Of the names and bytes of its files, 32 hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a bundle says of itself."""

    step: int
    """The one that it is of."""
    start: int | None
    """With which its checkpoint begins; None where it begins with the run."""
    members: Mapping[str, Member]
    """By name, all but the head."""
    checkpoint: NamedCheckpoint | None = None
    """Where it is not a member; None where it is, or there is none."""
    written_by: str = f"rlharness {__version__}"

    def encoded(self) -> bytes:
        """As it stands in its member."""
        fields = {
            "format": FORMAT,
            "written_by": self.written_by,
            "step": self.step,
            "start": self.start,
            "checkpoint": self.checkpoint and {"path": self.checkpoint.path, "digest": self.checkpoint.digest},
            "members": {
                name: {"num_bytes": member.num_bytes, "xxh3_128": member.xxh3_128}
                for name, member in sorted(self.members.items())
            },
        }
        return json.dumps(fields, indent=1, sort_keys=True).encode() + b"\n"


def is_legal_name(name: str) -> bool:
    """Whether a member besides the head may have this name; no such name leads out of a directory."""
    return _NAME.fullmatch(name) is not None


def parse_head(data: bytes) -> Head:
    """The inverse of `Head.encoded`; BundleError for anything else."""
    try:
        fields = json.loads(data)
        if int(fields["format"]) > FORMAT:
            raise BundleError(
                f"a bundle of format {fields['format']}",
                legal=f"format {FORMAT}",
                remedy=upgrade(str(fields.get("written_by", "")).removeprefix("rlharness ")),
            )
        members = {_checked_name(name): _member(each) for name, each in fields["members"].items()}
        checkpoint = fields["checkpoint"]
        named = checkpoint and NamedCheckpoint(_checked_path(checkpoint["path"]), _checked_digest(checkpoint["digest"]))
        head = Head(_count(fields["step"]), _start(fields["start"]), members, named, str(fields["written_by"]))
    except BundleError:
        raise
    except MALFORMED as error:
        raise BundleError(f"its {HEAD} cannot be read: {error!r:.100}") from None
    if head.encoded() != data:
        raise BundleError(f"its {HEAD} does not have the format of rlharness")
    return head


def check_call(data: bytes) -> EntryCall:
    """What call.json says; BundleError for anything else."""
    try:
        return EntryCall.parse(data)
    except ValueError:
        raise BundleError(
            "its call.json does not name an entry", legal="a call as rlharness writes it", remedy="make it again"
        ) from None


def _checked_name(name: str) -> str:
    if not is_legal_name(name):
        raise BundleError(f"a member called {name!r:.200}", legal="the names that a bundle has, and no others")
    return name


def _checked_path(path: Any) -> str:
    """One that is called as checkpoints are: the digest of anything else, of a whole disk, is not worth taking."""
    if not isinstance(path, str) or not path.isprintable() or not _CHECKPOINT.search(path):
        raise BundleError(f"a checkpoint called {path!r:.200}", legal="a directory called step-000012 or the like")
    return path


def _checked_digest(text: Any) -> str:
    if not isinstance(text, str) or not _DIGEST.fullmatch(text):
        raise ValueError(text)
    return text


def _member(fields: Mapping[str, Any]) -> Member:
    return Member(_count(fields["num_bytes"]), _checked_digest(fields["xxh3_128"]))


def _start(value: Any) -> int | None:
    return None if value is None else _count(value)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


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
