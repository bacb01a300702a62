"""Hashes of values, step roots and chains. Pure; FORMAT.md specifies them, vectors.json tests them.

    hash   = H(enc(phase, name, occurrence, dtype, shape, algorithm, digest))
    S_k    = H("rlh1/step" | u64le(k) | hashes of chained values, sorted by enc(phase, name, occurrence))
    C_k    = H("rlh1/chain" | C_{k-1} | S_k)        C_{-1} = H("rlh1/init" | identity)

H is xxh3_128 in its canonical form, 16 bytes big-endian. enc joins fields of text: each is UTF-8 after its length as
u32le.
"""

import struct
from binascii import hexlify
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from math import prod
from typing import NamedTuple

from xxhash import xxh3_128_digest

from harness.bits.digests import DIGEST_BYTES
from harness.bits.errors import TraceError
from harness.trace.values import ELEMENT_BYTES

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


def encoded(value: RecordedValue) -> tuple[bytes, bytes]:
    """Return (key, description) of a value: enc of its sort key, and of all its fields but the digest."""
    return _encoded(value[:-2])  # all but digest and scope


@lru_cache(maxsize=2**16)  # without their digests, the values of a step are mostly those of the step before
def _encoded(described: tuple[str, str, int, str, tuple[int, ...], str]) -> tuple[bytes, bytes]:
    phase, name, occurrence, dtype, shape, algorithm = described
    sorted_by = enc(phase, name, str(occurrence))
    return sorted_by, sorted_by + enc(dtype, ",".join(map(str, shape)), algorithm)


def leaf_hash(description: bytes, digest: bytes) -> bytes:
    """Return the hash of a value, by its encoded description, which enters the step's root; 16 bytes."""
    return xxh3_128_digest(description + _HEX_LENGTH + hexlify(digest))


def step_root(step: int, values: Iterable[RecordedValue]) -> bytes:
    """Return S_k over the values of chained scope, which may come in any order; 16 bytes.

    Raises TraceError for a repeated key.
    """
    by_key: dict[bytes, bytes] = {}
    for value in values:
        if value.scope not in CHAINED:
            continue
        key, description = encoded(value)
        if key in by_key:
            raise repeated(value, step)
        by_key[key] = leaf_hash(description, value.digest)
    return xxh3_128_digest(b"rlh1/step" + struct.pack("<Q", step) + b"".join([by_key[key] for key in sorted(by_key)]))


def repeated(value: RecordedValue, step: int) -> TraceError:
    """Return the error for two values with one key."""
    return TraceError(
        f"step {step} has two values {value.phase} {value.name} {value.occurrence}",
        legal="one value per scope, phase, name and occurrence; whole or in shards, not both",
        remedy="number the occurrences of a name within the step from 0",
    )


def identity_bytes(identity: Mapping[str, str]) -> bytes:
    """The identity part of a fingerprint: enc(name, value) of each, sorted."""
    return b"".join(sorted(enc(name, value) for name, value in identity.items()))


def chain_start(identity: Mapping[str, str]) -> bytes:
    """C_{-1}, 16 bytes."""
    return xxh3_128_digest(b"rlh1/init" + identity_bytes(identity))


def next_chain(previous: bytes, root: bytes) -> bytes:
    """C_k of C_{k-1} and S_k, 16 bytes each."""
    return xxh3_128_digest(b"rlh1/chain" + previous + root)
