"""Hashes of values, step roots and chains. Pure; FORMAT.md specifies them, vectors.json tests them.

    hash   = H(enc(phase, name, occurrence, dtype, shape, algorithm, digest))
    S_k    = H("rlh1/step" | u64le(k) | hashes of chained values, sorted by enc(phase, name, occurrence))
    C_k    = H("rlh1/chain" | C_{k-1} | S_k)        C_{-1} = H("rlh1/init" | identity)

H is xxh3_128 in its canonical form, 16 bytes big-endian. enc joins fields of text: each is UTF-8 after its length as
u32le.
"""

import json
import os
import struct
import sys
from array import array
from binascii import hexlify
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

from xxhash import xxh3_64, xxh3_64_digest, xxh3_128_digest

from harness.bits.digests import DIGEST_BYTES, XXH3_128
from harness.bits.errors import TraceError
from harness.bits.files import MALFORMED, open_regular, replacing
from harness.trace.values import ELEMENT_BYTES, Float, plain

PHASES = ("rollout", "reward", "reference", "advantage", "forward", "loss", "backward", "optimizer", "sync")
"""In the order of a step; the order of a trace is the one in which its values were recorded."""

_HEX_LENGTH = struct.pack("<I", 2 * DIGEST_BYTES)

Key = tuple[str, str, int]
"""Phase, name, occurrence."""


class Scope(IntEnum):
    """Part of a step that a recorded value depends on."""

    LOGICAL = 0
    """A whole tensor, or rollouts in canonical order: the same for any number of ranks and micro-batches. Chained."""
    PHYSICAL = 1
    """One rank's or one micro-batch's part: it helps to locate a difference, and is not chained."""
    SHARD = 2
    """One rank's part of a value whose digest is the sum over ranks (`shardsum_128`). Chained, in its rank's log."""
    CONTEXT = 3
    """State of a random-number generator at the start of the step, or a batch's origin: explains; not chained."""


CHAINED = (Scope.LOGICAL, Scope.SHARD)
"""Scopes that decide: a step's root covers these values, and each key occurs once among them."""


class RecordedValue(NamedTuple):
    """The digest of one value of one step. A tuple, since a step has thousands of them."""

    phase: str
    """One of PHASES."""
    name: str
    """Name within its phase: a parameter's dotted name, "loss"."""
    occurrence: int
    """0 for the first of this phase and name in the step, 1 for the second."""
    dtype: str
    """Type of its elements: "f32", "bf16", "i64"; any text for other values."""
    shape: tuple[int, ...]
    """Shape of the whole value, also if ranks hold parts of it; () for a scalar."""
    algorithm: str
    """Algorithm of the digest: one of `bits.digests`, or a writer's own."""
    digest: bytes
    """16 bytes."""
    scope: Scope = Scope.LOGICAL

    @property
    def key(self) -> Key:
        return self.phase, self.name, self.occurrence


def raw_value(value: RecordedValue) -> bytes:
    """The bytes of a value whose digest is `raw`; all 16 of them where the size of its elements is not known."""
    size = ELEMENT_BYTES.get(value.dtype)
    return value.digest if size is None else value.digest[: prod(value.shape) * size]


def enc(*fields: str) -> bytes:
    """Fields of text as bytes that no other fields have.

    TraceError for text that UTF-8 has no bytes for.
    """
    try:
        parts = [field.encode() for field in fields]
    except UnicodeEncodeError as error:
        raise TraceError(f"{error.object!r} cannot be encoded as UTF-8", legal="text that UTF-8 can encode") from None
    return b"".join([struct.pack("<I", len(part)) + part for part in parts])


class Layout(NamedTuple):
    """What a step is without its digests: mostly that of the step before."""

    order: tuple[tuple[int, bytes], ...]
    """(index, start of what is hashed) of each chained value, in the order of the root."""
    scopes: bytes
    lengths: bytes
    descriptions: bytes
    """The columns of a frame; a description is `enc` of all fields of a value but the digest."""

    def root(self, step: int, digests: Sequence[bytes]) -> bytes:
        """Return S_k of values with these digests; 16 bytes."""
        hashes = [xxh3_128_digest(start + hexlify(digests[index])) for index, start in self.order]
        return xxh3_128_digest(b"rlh1/step" + struct.pack("<Q", step) + b"".join(hashes))


def layout_of(values: Sequence[RecordedValue]) -> Layout:
    """Return the layout of the values of a step, in their order.

    TraceError for text that cannot be encoded, and for two values of one key.
    """
    return _layout(tuple([value[:-2] for value in values]), bytes([value[-1] for value in values]))


@lru_cache(maxsize=8)
def _layout(described: tuple[tuple[str, str, int, str, tuple[int, ...], str], ...], scopes: bytes) -> Layout:
    keys, descriptions = dict[tuple[int, bytes], int](), []
    for index, ((phase, name, occurrence, dtype, shape, algorithm), scope) in enumerate(
        zip(described, scopes, strict=True)
    ):
        key = enc(phase, name, str(occurrence))
        if keys.setdefault((Scope.LOGICAL if scope in CHAINED else scope, key), index) != index:
            raise TraceError(
                f"a step has two values {phase} {name} {occurrence}",
                legal="one value per scope, phase, name and occurrence; whole or in shards, not both",
                remedy="number the occurrences of a name within the step from 0",
            )
        descriptions.append(key + enc(dtype, ",".join(map(str, shape)), algorithm))
    chained = sorted((key, index) for (scope, key), index in keys.items() if scope == Scope.LOGICAL)
    lengths = struct.pack(f"<{len(descriptions)}I", *map(len, descriptions))
    order = tuple([(index, descriptions[index] + _HEX_LENGTH) for _, index in chained])
    return Layout(order, scopes, lengths, b"".join(descriptions))


def step_root(step: int, values: Sequence[RecordedValue]) -> bytes:
    """Return S_k over the values of chained scope, which may come in any order; 16 bytes. Errors of `layout_of`."""
    return layout_of(values).root(step, [value.digest for value in values])


def identity_bytes(identity: Mapping[str, str]) -> bytes:
    """The identity part of a fingerprint: enc(name, value) of each, sorted."""
    return b"".join(sorted(enc(name, value) for name, value in identity.items()))


def chain_start(identity: Mapping[str, str]) -> bytes:
    """C_{-1}, 16 bytes."""
    return xxh3_128_digest(b"rlh1/init" + identity_bytes(identity))


def next_chain(previous: bytes, root: bytes) -> bytes:
    """C_k of C_{k-1} and S_k, 16 bytes each."""
    return xxh3_128_digest(b"rlh1/chain" + previous + root)


# ------------------------------------------------------------------------------------------------------- names of files
# The names of the files of a trace.

MANIFEST = "manifest.json"
CURVE = "curve.jsonl"
TENSORS = "tensors"
UNFINISHED = "unfinished"
"""A trace of its own: what was recorded of a step in whose middle the program has ended."""


def log_name(rank: int) -> str:
    """The file of one rank's log."""
    return f"rank-{rank}.log"


def tensors_name(rank: int, step: int) -> str:
    """The file of what one rank has kept of one step, in the directory TENSORS."""
    return f"rank-{rank}-step-{step}.safetensors"


# ------------------------------------------------------------------------------------------------------ frames of a log
# The bytes of a rank's log: frames, and what the payload of each kind holds. Pure; FORMAT.md is its prose.
#
#     log     = "rlhtrace" | u32le(format) | frame ...
#     frame   = u32le(length of payload) | payload | xxh3_64(payload), big-endian
#     payload = "STEP" | u64le(k) | S_k | C_k | u32le(n) | n scopes | n digests | n lengths | n descriptions
#             | "DONE" | u64le(number of steps)
#
# A scope is a byte, a digest 16, a length u32le; a description is enc(phase, name, occurrence, dtype, shape,
# algorithm). Values are stored in columns, in the order of recording. Two steps of a million values with the same
# descriptions are compared without decoding any.

FORMAT = 1
"""The format written here, and the newest that is read."""
MAGIC = b"rlhtrace"
HEADER = MAGIC + struct.pack("<I", FORMAT)
STEP = b"STEP"
DONE = b"DONE"
MAX_PAYLOAD_BYTES = 2**32 - 1

_LENGTH = struct.Struct("<I")
_STEP_HEAD = struct.Struct("<4sQ16s16sI")
_DONE = struct.Struct("<4sQ")
_CHECKSUM_BYTES = 8
_PIECE_BYTES = 2**16

RANDOM = "random."
"""Prefix of the names of states; other values of this scope explain a difference in their own way."""
LOADER_SEED = "random.loader_seed"
"""Name of the number from which a DataLoader seeds its workers."""
BATCH_ORIGIN = "batch_origin"
"""Name of where a batch came from: its number, its worker's number or -1, the number of workers; precedes the batch."""


def frame(payload: bytes) -> bytes:
    """Return a payload as a frame of the log; TraceError if it is too long for one."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise TraceError(f"a frame has {len(payload):,} bytes", legal=f"at most {MAX_PAYLOAD_BYTES:,}")
    return _LENGTH.pack(len(payload)) + payload + xxh3_64_digest(payload)


def step_payload(step: int, root: bytes, chain: bytes, values: Sequence[RecordedValue]) -> bytes:
    """The payload of one step; errors of `layout_of`, and TraceError for a digest that has not 16 bytes."""
    layout, digests = layout_of(values), b"".join([value.digest for value in values])
    if len(digests) != len(values) * DIGEST_BYTES:
        short = next(value for value in values if len(value.digest) != DIGEST_BYTES)
        raise TraceError(f"the digest of {short.name} has {len(short.digest)} bytes", legal=f"{DIGEST_BYTES} bytes")
    head = _STEP_HEAD.pack(STEP, step, root, chain, len(values))
    return b"".join([head, layout.scopes, digests, layout.lengths, layout.descriptions])


def done_payload(num_steps: int) -> bytes:
    """The payload of the last frame of a log that was closed in order."""
    return _DONE.pack(DONE, num_steps)


@dataclass(frozen=True, slots=True)
class FramePosition:
    """Position of a complete payload in its file, in bytes."""

    start: int
    length: int

    @property
    def frame_end(self) -> int:
        """Position of the next frame."""
        return self.start + self.length + _CHECKSUM_BYTES


def complete_frames(file: BinaryIO, size_bytes: int) -> Iterator[FramePosition]:
    """Each frame from the file's position on, up to the first that is cut or does not agree with its checksum.

    The file may be read elsewhere in between.
    """
    at = file.tell()
    while at + _LENGTH.size + _CHECKSUM_BYTES <= size_bytes:
        file.seek(at)
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        place = FramePosition(at + _LENGTH.size, length)
        if place.frame_end > size_bytes:  # also a length that is no length: nothing is read for it
            return
        if _checksum(file, length) != file.read(_CHECKSUM_BYTES):
            return
        yield place
        at = place.frame_end


def _checksum(file: BinaryIO, length: int) -> bytes:
    """Of the next `length` bytes; in pieces, since touching new memory takes longer than the sum itself."""
    checksum = xxh3_64()
    while piece := file.read(min(length, _PIECE_BYTES)):
        checksum.update(piece)
        length -= len(piece)
    return checksum.digest()


@dataclass(frozen=True, slots=True)
class StepHead:
    """Facts of a step that need no decoding."""

    step: int
    root: bytes
    chain: bytes
    num_values: int
    num_logical: int
    num_shards: int
    num_parts: int
    """Number of values of physical scope."""
    num_contexts: int


def read_steps(
    file: BinaryIO, size_bytes: int
) -> tuple[dict[int, StepHead], dict[int, FramePosition], int | None, int]:
    """Return (heads, positions, number of steps in the last frame of a closed log, end of the last complete frame).

    From the file's position on. TraceError for frames that are complete but violate the format.
    """
    heads: dict[int, StepHead] = {}
    places: dict[int, FramePosition] = {}
    num_done, end = None, file.tell()
    for place in complete_frames(file, size_bytes):
        file.seek(place.start)
        kind = file.read(min(len(STEP), place.length))
        if num_done is not None or kind not in (STEP, DONE):
            raise malformed(f"{kind!r}" if num_done is None else "frames after DONE")
        if kind == STEP:
            head = read_step_head(file, place)
            if heads and head.step <= next(reversed(heads)):
                raise malformed(f"step {head.step} after step {next(reversed(heads))}")
            heads[head.step], places[head.step] = head, place
        elif place.length != _DONE.size:
            raise malformed(f"{place.length} bytes of DONE")
        else:
            num_done = int.from_bytes(file.read(_DONE.size - len(DONE)), "little")
        end = place.frame_end
    return heads, places, num_done, end


def read_step_head(file: BinaryIO, place: FramePosition) -> StepHead:
    """Return the head of a step; TraceError if it violates the format."""
    if place.length < _STEP_HEAD.size:
        raise malformed("its head is truncated")
    file.seek(place.start)
    _, step, root, chain, num_values = _STEP_HEAD.unpack(file.read(_STEP_HEAD.size))
    if place.length < _STEP_HEAD.size + num_values * (1 + DIGEST_BYTES + _LENGTH.size):
        raise malformed(f"{num_values:,} values do not fit into {place.length:,} bytes")
    scopes = file.read(num_values)
    counts = [scopes.count(scope) for scope in (Scope.LOGICAL, Scope.SHARD, Scope.PHYSICAL, Scope.CONTEXT)]
    return StepHead(step, root, chain, num_values, *counts)


@dataclass(frozen=True)
class Columns:
    """The values of one step, not decoded."""

    scopes: bytes
    """A byte for each value."""
    digests: bytes
    """16 bytes for each value."""
    lengths: bytes
    """4 bytes for each value: the length of its description."""
    descriptions: bytes
    """One after the other."""

    def has_values_of(self, other: "Columns") -> bool:
        """Whether both have the same values in the same order, apart from digests."""
        mine = (self.scopes, self.lengths, self.descriptions)
        return mine == (other.scopes, other.lengths, other.descriptions)

    def description(self, index: int) -> bytes:
        """Return the description of one value."""
        lengths = self._lengths()
        start = sum(lengths[:index])
        return self.descriptions[start : start + lengths[index]]

    def all_descriptions(self) -> Iterator[bytes]:
        """Yield the description of each value; TraceError if they do not have the stated lengths."""
        lengths = self._lengths()
        if sum(lengths) != len(self.descriptions):
            raise malformed("the descriptions of its values do not have the stated lengths")
        start = 0
        for length in lengths:
            yield self.descriptions[start : start + length]
            start += length

    def phases(self, end: int) -> tuple[str, ...]:
        """Return the phases of the values before index `end`, without contexts, in the order of recording."""
        values = zip(self.scopes[:end], self.all_descriptions(), strict=False)
        found = dict.fromkeys(
            text[_LENGTH.size :][: text[0]] for scope, text in values if text and scope != Scope.CONTEXT
        )
        return tuple(phase for each in found if (phase := each.decode(errors="replace")) in PHASES)

    def of_phases(self, phases: Iterable[str]) -> list[tuple[int, RecordedValue]]:
        """Return (index, value) of the values of these phases, without contexts, in order; only these are decoded."""
        prefixes = tuple(map(enc, phases))
        return [
            (at, self.value(at, text))
            for at, text in enumerate(self.all_descriptions())
            if text.startswith(prefixes) and self.scopes[at] != Scope.CONTEXT
        ]

    def value(self, index: int, description: bytes | None = None) -> RecordedValue:
        """Decode one value; TraceError if it violates the format."""
        fields = fields_of(self.description(index) if description is None else description)
        try:
            phase, name, occurrence, dtype, shape, algorithm = fields
            sizes = tuple(int(size) for size in shape.split(",")) if shape else ()
            scope = Scope(self.scopes[index])
            digest = self.digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
            return RecordedValue(phase, name, int(occurrence), dtype, sizes, algorithm, digest, scope)
        except ValueError:
            raise malformed(f"value {index} is {fields!r}") from None

    def values(self) -> list[RecordedValue]:
        """Decode every value, in the order of recording; TraceError if one violates the format."""
        return [self.value(index, description) for index, description in enumerate(self.all_descriptions())]

    def _lengths(self) -> "array[int]":  # no generic type at run time before Python 3.12
        lengths = array("I", self.lengths)
        if sys.byteorder == "big":
            lengths.byteswap()
        return lengths


def contexts(columns: Columns) -> list[tuple[int, RecordedValue]]:
    """Return (index, value) of the few values of this scope, without decoding the others."""
    found, at = [], columns.scopes.find(Scope.CONTEXT)
    while at >= 0:
        found.append((at, columns.value(at)))
        at = columns.scopes.find(Scope.CONTEXT, at + 1)
    return found


def read_columns(file: BinaryIO, place: FramePosition, num_values: int) -> Columns:
    """The columns of a step whose payload lies at `place`; TraceError where the file is shorter by now."""
    start, end = place.start + _STEP_HEAD.size, place.start + place.length
    file.seek(start)
    found = Columns(
        scopes=file.read(num_values),
        digests=file.read(num_values * DIGEST_BYTES),
        lengths=file.read(num_values * _LENGTH.size),
        descriptions=file.read(end - start - num_values * (1 + DIGEST_BYTES + _LENGTH.size)),
    )
    if file.tell() != end:
        raise TraceError("a log became shorter during reading", remedy="compare it again when no process writes to it")
    return found


def fields_of(description: bytes) -> list[str]:
    """Return the fields that `enc` joined; TraceError if they are truncated or not text."""
    fields, at = [], 0
    while at < len(description):
        if at + _LENGTH.size > len(description):
            raise malformed("a field of a value is truncated")
        (length,) = _LENGTH.unpack_from(description, at)
        at += _LENGTH.size
        if at + length > len(description):
            raise malformed("a field of a value is truncated")
        try:
            fields.append(description[at : at + length].decode())
        except UnicodeDecodeError:
            raise malformed("a field of a value is not UTF-8") from None
        at += length
    return fields


def malformed(what: str) -> TraceError:
    """Return the error for complete bytes that violate FORMAT.md: a mistake of their writer."""
    return TraceError(
        f"a frame is complete but violates the format: {what}",
        remedy="fix the program that wrote the trace; see FORMAT.md",
    )


# ------------------------------------------------------------------------------------------------------------ the curve
# curve.jsonl: a line of text for each step, fit to be committed as a golden.
#
#     {"step": 0, "reward_mean": ["f32:3dcccccd", 0.1], "loss": null, ..., "chain": "5f0c..."}
#
# Each float is its bits beside a decimal, null where it was not recorded.

CURVE_NAMES = ("reward_mean", "loss", "gradient_norm", "kl", "entropy", "completion_length")
"""Names of every line; further names may follow."""
TAKEN = ("step", "chain")
MAX_LINE_CHARS = 1 << 24
"""Limit on one line, which has some hundred characters for each value of a step."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One step of the curve."""

    step: int
    values: Mapping[str, Float]
    """By name; NAMES that are absent are written as null."""
    chain: str
    """C_k, 32 hexadecimal digits."""


def curve_line(point: CurvePoint) -> str:
    """A step as its line, newline included; TraceError for a name that is taken."""
    if taken := [name for name in TAKEN if name in point.values]:
        raise TraceError(f"the curve name {taken[0]!r} is reserved", legal=f"any name but {', '.join(TAKEN)}")
    values = {name: plain(point.values.get(name)) for name in (*CURVE_NAMES, *point.values)}
    return json.dumps({"step": point.step, **values, "chain": point.chain}) + "\n"


def parse_curve(text: str) -> list[CurvePoint]:
    """The steps of a curve, up to the first line that is truncated, malformed or too long."""
    points: list[CurvePoint] = []
    for line in text.split("\n")[:-1]:  # what stands after the last newline is cut
        if len(line) > MAX_LINE_CHARS:
            break
        try:
            points.append(_curve_point(json.loads(line)))
        except MALFORMED:  # TraceError is a ValueError
            break
    return points


def bad_line(text: str, num_good: int) -> int | None:
    """Return the number, from 1, of the line after the `num_good` that could be parsed; None if there is none."""
    num_lines = text.count("\n") + (not text.endswith("\n") and text != "")
    return num_good + 1 if num_good < num_lines else None


def _curve_point(fields: dict[str, object]) -> CurvePoint:
    values = {
        name: Float.parse(str(value[0]))
        for name, value in fields.items()
        if name not in TAKEN and isinstance(value, list)
    }
    return CurvePoint(int(str(fields["step"])), values, str(fields["chain"]))


# --------------------------------------------------------------------------------------------------------- kept tensors
# Kept tensors: a file of the safetensors format for each rank and step, written whole or not at all.
#
#     file   = u64le(length of header) | header | elements of one tensor after the other, little-endian, in C order
#     header = {"logical/backward/0/layers.3.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
#
# Written here, and not by the library of that name: what it takes for raw bytes changed in 0.8, and many an environment
# is held below or above that. Its readers read these files, and the tests read them with it.

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
    kept = sorted(tensors, key=lambda each: -_file_kind(each[0])[1])  # large elements first: all of them are aligned
    with replacing(path) as file:
        header = _tensor_header(kept)
        file.write(_HEADER_LENGTH.pack(len(header)) + header)
        for _, data in kept:
            file.write(memoryview(data).cast("B"))


def _tensor_header(tensors: Sequence[Kept]) -> bytes:
    fields: dict[str, object] = {}
    at = 0
    for value, data in tensors:
        key, num_bytes = tensor_key(value), memoryview(data).nbytes
        if key in fields:
            raise TraceError(f"two tensors have the name {key}", legal="one tensor per value")
        word, element_bytes = _file_kind(value)
        if num_bytes % element_bytes:
            raise TraceError(f"{num_bytes} bytes of {key}", legal=f"elements of {element_bytes} bytes, {value.dtype}")
        num_elements = num_bytes // element_bytes
        shape = value.shape if prod(value.shape) == num_elements else (num_elements,)  # of a rank's part of a whole
        fields[key] = {"dtype": word, "shape": shape, "data_offsets": (at, at + num_bytes)}
        at += num_bytes
    header = json.dumps(fields, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % _ALIGNMENT)


def _file_kind(value: RecordedValue) -> tuple[str, int]:
    return DTYPES.get(value.dtype, _BYTES)


def read_digested(path: Path, value: RecordedValue) -> bytes | None:
    """Return the bytes of one value's tensor, checked against its digest; None if it was not kept.

    Only digests of XXH3_128 are checked: checking a shard's would need its position in the whole value.
    DamagedTensor if the file is damaged, or has other bytes; OSError if it cannot be read.
    """
    data = _read_kept(path, value)
    if data is not None and value.algorithm == XXH3_128 and xxh3_128_digest(data) != value.digest:
        raise DamagedTensor(f"{tensor_key(value)} in {path} does not match its digest")
    return data


def _read_kept(path: Path, value: RecordedValue) -> bytes | None:
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
