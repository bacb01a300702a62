"""The bytes of a rank's log: frames, and what the payload of each kind holds. Pure; FORMAT.md is its prose.

    log     = "rlhtrace" | u32le(format) | frame ...
    frame   = u32le(length of payload) | payload | xxh3_64(payload), big-endian
    payload = "STEP" | u64le(k) | S_k | C_k | u32le(n) | n scopes | n digests | n lengths | n descriptions
            | "DONE" | u64le(number of steps)

A scope is a byte, a digest 16, a length u32le; a description is enc(phase, name, occurrence, dtype, shape, algorithm).
Values are stored in columns, in the order of recording. Two steps of a million values with the same descriptions are
compared without decoding any.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from xxhash import xxh3_64, xxh3_64_digest

from harness.bits.digests import DIGEST_BYTES
from harness.bits.errors import TraceError
from harness.trace.chain import CHAINED, PHASES, RecordedValue, Scope, enc, encoded, repeated

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


def frame(payload: bytes) -> bytes:
    """Return a payload as a frame of the log; TraceError if it is too long for one."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise TraceError(f"a frame has {len(payload):,} bytes", legal=f"at most {MAX_PAYLOAD_BYTES:,}")
    return _LENGTH.pack(len(payload)) + payload + xxh3_64_digest(payload)


def step_payload(step: int, root: bytes, chain: bytes, values: Sequence[RecordedValue]) -> bytes:
    """The payload of one step.

    TraceError for a digest that has not 16 bytes, or a key that comes twice in a scope that is not chained; of the
    others `step_root` has seen to it.
    """
    descriptions = []
    unchained = set()
    for value in values:
        if len(value.digest) != DIGEST_BYTES:
            raise TraceError(f"the digest of {value.name} has {len(value.digest)} bytes", legal=f"{DIGEST_BYTES} bytes")
        key, description = encoded(value)
        if value.scope not in CHAINED:
            if (value.scope, key) in unchained:
                raise repeated(value, step)
            unchained.add((value.scope, key))
        descriptions.append(description)
    return b"".join(
        [
            _STEP_HEAD.pack(STEP, step, root, chain, len(values)),
            bytes([value.scope for value in values]),
            *[value.digest for value in values],
            struct.pack(f"<{len(values)}I", *map(len, descriptions)),
            *descriptions,
        ]
    )


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


def read_kind(file: BinaryIO, place: FramePosition) -> bytes:
    """Return the kind of a payload: STEP, DONE, or other bytes."""
    file.seek(place.start)
    return file.read(min(len(STEP), place.length))


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


def read_num_steps(file: BinaryIO, place: FramePosition) -> int:
    """Return the number of steps in a DONE payload; TraceError if it violates the format."""
    if place.length != _DONE.size:
        raise malformed(f"{place.length} bytes of DONE")
    file.seek(place.start)
    _, num_steps = _DONE.unpack(file.read(_DONE.size))
    return int(num_steps)


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
