"""The libraries that a process has mapped, by what they were built from: the build id that linkers leave in them."""

import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from xxhash import xxh3_128

from harness.bits.files import open_regular

MAPS = Path("/proc/self/maps")
EDGE_BYTES = 1_000_000
"""So much of either end stands for a library without a build id: hashing CUDA's whole would take seconds."""
MAX_TABLE_BYTES, MAX_NOTES_BYTES = 1 << 12, 1 << 16
"""So much is read of the program headers, and of each one's notes: linkers write a dozen headers, and short notes."""
_ELF64_LITTLE = b"\x7fELF\x02\x01"
_PT_NOTE = 4
_BUILD_ID = (3, b"GNU\0")
_OF_SYSTEM = (
    "nss|nssutil|nspr|plc|plds|softokn|freebl|freeblpriv|resolv|nsl|tirpc|pam|audit|cap|selinux|pcre|systemd|dbus|avahi"
    "|idn|unistring|psl|iconv|intl|uuid|readline|tinfo|ncursesw?"
    "|ssl|crypto|crypt|gnutls|hogweed|nettle|gcrypt|gpg-error|tasn|p11-kit|krb5|krb5support|k5crypto|gssapi_krb5|com_err"
    "|keyutils|sasl|ldap|lber|curl"
)
_PLUGINS = r"libnss_\w+|pam_(?:unix|systemd|sss|krb5|ldap|env|limits)"
_OF_PYTHON = "_ssl|_hashlib|_crypt|_uuid|_socket|grp|spwd|unicodedata|_multibytecodec|_codecs_[a-z]+|termios|readline"
_OF_ICONV = r"ISO[-_]?\d[\w-]*|UTF-\d+|(?:IBM|CP)\d+|EUC-[A-Z]+|KOI-?8(?:-[A-Z])?|BIG5\w*|GBK|GB18030|SJIS"
CANNOT_COMPUTE = re.compile(
    rf"library (?:lib(?:{_OF_SYSTEM})[0-9.-]|(?:{_PLUGINS}|{_OF_ICONV})\.so|(?:{_OF_PYTHON})\.cpython-)"
)
"""Libraries that look up names, encrypt or convert text: no result of a training depends on them."""


def deciding(numerics: Mapping[str, str]) -> dict[str, str]:
    """Return the numerics that can move bits: all but libraries that cannot compute."""
    return {name: value for name, value in numerics.items() if not CANNOT_COMPUTE.match(name)}


def mapped_libraries(maps: Path = MAPS) -> dict[str, str]:
    """Build ids by file name, of everything mapped to be executed; several of one name are joined by commas.

    "gone" for a file that is not there any more. OSError where `maps` cannot be read.
    """
    found: dict[str, set[str]] = {}
    for path in _executable_paths(maps.read_text("utf-8", errors="surrogateescape")):
        found.setdefault(path.name, set()).add(identify(path))
    return {name: ",".join(sorted(ids)) for name, ids in sorted(found.items())}


def identify(path: Path) -> str:
    """Return the identity of a library: its build id, else "edges:" and a digest of both ends, else "gone"."""
    try:
        with open_regular(path, follows_links=True) as file:
            return build_id(file) or _edges(file)
    except OSError:  # deleted, or of another mount namespace: that is told too
        return "gone"


def build_id(file: BinaryIO) -> str:
    """The GNU build id of a 64-bit little-endian ELF file, in hexadecimal digits; empty where it has none."""
    header = file.read(64)
    if len(header) < 64 or not header.startswith(_ELF64_LITTLE):
        return ""
    (table_offset,) = struct.unpack_from("<Q", header, 32)
    entry_bytes, num_entries = struct.unpack_from("<HH", header, 54)
    table = _read_at(file, table_offset, min(entry_bytes * num_entries, MAX_TABLE_BYTES))
    for at in range(0, len(table) - 55, max(56, entry_bytes)):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", table, at)
        if kind == _PT_NOTE:
            for note_kind, name, description in _notes(_read_at(file, offset, min(size, MAX_NOTES_BYTES))):
                if (note_kind, name) == _BUILD_ID:
                    return description.hex()
    return ""


def _read_at(file: BinaryIO, offset: int, num_bytes: int) -> bytes:
    """Bytes at an offset that stands in the file; none where it has no such place, or no file can have it."""
    if offset > file.seek(0, os.SEEK_END):
        return b""
    file.seek(offset)
    return file.read(num_bytes)


def _notes(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    at = 0
    while at + 12 <= len(data):
        name_bytes, description_bytes, kind = struct.unpack_from("<III", data, at)
        name_end = at + 12 + name_bytes
        start = at + 12 + (name_bytes + 3) // 4 * 4
        yield kind, data[at + 12 : name_end], data[start : start + description_bytes]
        at = start + (description_bytes + 3) // 4 * 4


def _edges(file: BinaryIO) -> str:
    size = file.seek(0, 2)
    digest = xxh3_128(str(size).encode())
    for start in (0, max(0, size - EDGE_BYTES)):
        file.seek(start)
        digest.update(file.read(EDGE_BYTES))
    return f"edges:{digest.hexdigest()}"


def _executable_paths(maps: str) -> list[Path]:
    """Each file that is mapped to be executed, once; without what the kernel itself maps."""
    lines = [line.split(maxsplit=5) for line in maps.splitlines()]
    paths = [fields[5] for fields in lines if len(fields) == 6 and "x" in fields[1] and fields[5].startswith("/")]
    return [Path(path.removesuffix(" (deleted)")) for path in dict.fromkeys(paths)]
