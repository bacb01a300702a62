"""What a step's digests are made into: leaf, step root, chain. Pure; FORMAT.md is its prose, vectors.json its proof.

    leaf   = H(enc(phase, name, occurrence, dtype, shape, algorithm, digest))
    S_k    = H("rlh1/step" | u64le(k) | leaves of chained scope, sorted by enc(phase, name, occurrence))
    C_k    = H("rlh1/chain" | C_{k-1} | S_k)        C_{-1} = H("rlh1/init" | identity)

H is xxh3_128 in its canonical form, 16 bytes big-endian. enc joins fields of text: each is UTF-8 after its length as
u32le.
"""

import struct
from binascii import hexlify
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from xxhash import xxh3_128_digest

from harness.core.errors import TraceError

PHASES = ("rollout", "reward", "reference", "advantage", "forward", "loss", "backward", "optimizer", "sync")
"""In the order of a step; the order of a trace is the one in which its leaves were recorded."""

DIGEST_BYTES = 16
_HEX_LENGTH = struct.pack("<I", 2 * DIGEST_BYTES)

Key = tuple[str, str, int]
"""Phase, name, occurrence."""


class Scope(IntEnum):
    """What a leaf depends on."""

    LOGICAL = 0
    """A whole tensor, or rollouts in canonical order: the same for any number of ranks and micro-batches. Chained."""
    PHYSICAL = 1
    """One rank's or one micro-batch's part: it helps to find the place, and is not chained."""
    SHARD = 2
    """One rank's part of a whole whose digest is the sum over ranks (`shardsum_128`). Chained, in its rank's log."""
    CONTEXT = 3
    """What the step began with: the state of a random-number generator. It explains, never decides; not chained."""


CHAINED = (Scope.LOGICAL, Scope.SHARD)
"""What decides: a step's root is that of these leaves, and no two of them have one key."""


class RecordedValue(NamedTuple):
    """The digest of one value of one step. A tuple, since a step has thousands of them."""

    phase: str
    """One of PHASES."""
    name: str
    """What it is within its phase: a parameter's dotted name, "loss"."""
    occurrence: int
    """0 for the first of this phase and name in the step, 1 for the second."""
    dtype: str
    """Of its elements: "f32", "bf16", "i64"; any text for what is no tensor."""
    shape: tuple[int, ...]
    """Of the whole value, also where ranks hold parts of it; () for a scalar."""
    algorithm: str
    """Of the digest; `digests.RAW`, `XXH3_128` or `SHARDSUM_128`, or a writer's own."""
    digest: bytes
    """16 bytes."""
    scope: Scope = Scope.LOGICAL

    @property
    def key(self) -> Key:
        return self.phase, self.name, self.occurrence


def enc(*fields: str) -> bytes:
    """Fields of text as bytes that no other fields have.

    TraceError for text that UTF-8 has no bytes for.
    """
    try:
        parts = [field.encode() for field in fields]
    except UnicodeEncodeError as error:
        raise TraceError(f"{error.object!r} is no text", legal="what UTF-8 has bytes for") from None
    return b"".join([struct.pack("<I", len(part)) + part for part in parts])


def encoded(value: RecordedValue) -> tuple[bytes, bytes]:
    """(key, description) of a leaf: enc of what it is sorted by, and of everything but its digest."""
    return _encoded(value[:-2])  # all but digest and scope


@lru_cache(maxsize=2**16)  # without their digests, the leaves of a step are mostly those of the step before
def _encoded(described: tuple[str, str, int, str, tuple[int, ...], str]) -> tuple[bytes, bytes]:
    phase, name, occurrence, dtype, shape, algorithm = described
    sorted_by = enc(phase, name, str(occurrence))
    return sorted_by, sorted_by + enc(dtype, ",".join(map(str, shape)), algorithm)


def leaf_hash(value: RecordedValue) -> bytes:
    """The leaf as the step's root takes it, 16 bytes."""
    return _hash(encoded(value)[1], value.digest)


def _hash(description: bytes, digest: bytes) -> bytes:
    return xxh3_128_digest(description + _HEX_LENGTH + hexlify(digest))


def step_root(step: int, values: Iterable[RecordedValue]) -> bytes:
    """S_k over the leaves of chained scope, in whatever order they come; 16 bytes.

    TraceError for a key that comes twice.
    """
    by_key: dict[bytes, bytes] = {}
    for value in values:
        if value.scope not in CHAINED:
            continue
        key, description = encoded(value)
        if key in by_key:
            raise repeated(value, step)
        by_key[key] = _hash(description, value.digest)
    return xxh3_128_digest(b"rlh1/step" + struct.pack("<Q", step) + b"".join([by_key[key] for key in sorted(by_key)]))


def repeated(value: RecordedValue, step: int) -> TraceError:
    """The error of two leaves with one key."""
    return TraceError(
        f"step {step} has two leaves {value.phase} {value.name} {value.occurrence}",
        legal="one leaf of a scope for each phase, name and occurrence; whole or in shards, not both",
        remedy="count the occurrences of a name within the step",
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
