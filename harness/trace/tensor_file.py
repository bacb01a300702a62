"""Kept tensors: a file of the safetensors format for each rank and step, written whole or not at all.

    file   = u64le(length of header) | header | elements of one tensor after the other, little-endian, in C order
    header = {"logical/backward/0/layers.3.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}

Written here, and not by the library of that name: what it takes for raw bytes changed in 0.8, and many an environment
is held below or above that. Its readers read these files, and the tests read them with it.
"""

import json
import os
import struct
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import BinaryIO

from xxhash import xxh3_128_digest

from harness.bits.digests import XXH3_128
from harness.bits.errors import TraceError
from harness.bits.files import MALFORMED, open_regular, replacing
from harness.trace.chain import RecordedValue

Buffer = bytes | bytearray | memoryview
Kept = tuple[RecordedValue, Buffer]
"""A recorded value, and its bytes: elements little-endian, in C order."""

DTYPES = {
    "f64": ("F64", 8),
    "f32": ("F32", 4),
    "f16": ("F16", 2),
    "bf16": ("BF16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "float8_e4m3fnuz": ("F8_E4M3FNUZ", 1),
    "float8_e5m2fnuz": ("F8_E5M2FNUZ", 1),
    "float8_e8m0fnu": ("F8_E8M0", 1),
    "complex64": ("C64", 8),
    "i64": ("I64", 8),
    "i32": ("I32", 4),
    "i16": ("I16", 2),
    "i8": ("I8", 1),
    "u64": ("U64", 8),
    "u32": ("U32", 4),
    "u16": ("U16", 2),
    "u8": ("U8", 1),
    "bool": ("BOOL", 1),
}
"""Dtypes of traces -> (the format's own word, bytes of an element); what it has no word for is kept as bytes."""
_BYTES = ("U8", 1)
_HEADER_LENGTH = struct.Struct("<Q")
MAX_HEADER_BYTES = 100_000_000
"""As the library safetensors has it."""
_ALIGNMENT = 8


class DamagedTensor(TraceError):
    """A kept tensor that does not match its digest, or whose file is cut or none of the format."""


def tensor_key(value: RecordedValue) -> str:
    """Return the name of a value's tensor in its file: "logical/backward/0/layers.3.weight"."""
    return f"{value.scope.name.lower()}/{value.phase}/{value.occurrence}/{value.name}"


def write_tensors(path: Path, tensors: Iterable[Kept]) -> None:
    """Write a file, by rename; nothing is copied.

    OSError where it cannot be written: nothing is left of it then. TraceError for a key that comes twice.
    """
    kept = sorted(tensors, key=lambda each: -_kind(each[0])[1])  # large elements first: all of them are aligned
    with replacing(path) as file:
        header = _header(kept)
        file.write(_HEADER_LENGTH.pack(len(header)) + header)
        for _, data in kept:
            file.write(memoryview(data).cast("B"))


def _header(tensors: Sequence[Kept]) -> bytes:
    fields: dict[str, object] = {}
    at = 0
    for value, data in tensors:
        key, num_bytes = tensor_key(value), memoryview(data).nbytes
        if key in fields:
            raise TraceError(f"two tensors have the name {key}", legal="one tensor per value")
        word, element_bytes = _kind(value)
        if num_bytes % element_bytes:
            raise TraceError(f"{num_bytes} bytes of {key}", legal=f"elements of {element_bytes} bytes, {value.dtype}")
        num_elements = num_bytes // element_bytes
        shape = value.shape if prod(value.shape) == num_elements else (num_elements,)  # of a rank's part of a whole
        fields[key] = {"dtype": word, "shape": shape, "data_offsets": (at, at + num_bytes)}
        at += num_bytes
    header = json.dumps(fields, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % _ALIGNMENT)


def _kind(value: RecordedValue) -> tuple[str, int]:
    return DTYPES.get(value.dtype, _BYTES)


def read_digested(path: Path, value: RecordedValue) -> bytes | None:
    """Return the bytes of one value's tensor, checked against its digest; None if it was not kept.

    Only digests of XXH3_128 are checked: checking a shard's would need its position in the whole value.
    DamagedTensor if the file is damaged, or has other bytes; OSError if it cannot be read.
    """
    data = _kept(path, value)
    if data is not None and value.algorithm == XXH3_128 and xxh3_128_digest(data) != value.digest:
        raise DamagedTensor(f"{tensor_key(value)} in {path} does not match its digest")
    return data


def _kept(path: Path, value: RecordedValue) -> bytes | None:
    try:
        with open_regular(path, follows_links=True) as file:
            return _tensor(file, os.fstat(file.fileno()).st_size, tensor_key(value))
    except FileNotFoundError:
        return None
    except (struct.error, *MALFORMED):
        raise DamagedTensor(f"{path} is truncated or not a safetensors file") from None


def _tensor(file: BinaryIO, size_bytes: int, key: str) -> bytes | None:
    """The bytes under a key; None where there are none. One of several errors where the file is damaged."""
    (length,) = _HEADER_LENGTH.unpack(file.read(_HEADER_LENGTH.size))
    data_at = _HEADER_LENGTH.size + length
    if data_at > size_bytes or length > MAX_HEADER_BYTES:
        raise ValueError
    fields = dict(json.loads(file.read(length)))
    if key not in fields:
        return None
    start, end = fields[key]["data_offsets"]
    if not 0 <= start <= end <= size_bytes - data_at:
        raise ValueError
    file.seek(data_at + start)
    return file.read(end - start)
