"""Digests of values, 16 bytes each, and which of them may be compared: those of one algorithm.

| algorithm | what it is | for |
|---|---|---|
| `raw` | the value's bytes themselves, filled up with zeros | values of at most 16 bytes: the trace knows them |
| `xxh3_128` | xxh3_128 of the bytes, canonical | whole values in memory |
| `shardsum_128` | two sums modulo 2^64, each big-endian | shards: their sums add up to the whole's |
| `packsum_128` | the same over other words | values on a GPU whose elements have less than 4 bytes |

How many bytes of `raw` count, dtype and shape say. Bytes are little-endian and C-contiguous. None of them is
cryptographic: they find accidents, not forgers.

`shardsum_128`, exactly; all arithmetic is modulo 2^64:

    words    of an element of 1, 2 or 4 bytes: its bits, zero-extended; of 8 or 16 bytes: its 2 or 4 u32, low ones first
    i        index of the word: of the element in the whole value in C order, times the words of an element, plus which
    half L   = sum over words of (word + 1) * u_L(i mod 1024) * v_L(i div 1024)
    u_L(n)   = mix(U_SEEDS[L] + n * GAMMA) | 1           v_L(n) = mix(V_SEEDS[L] + n * GAMMA) | 1
    mix      = the output function of splitmix64 at a state: output n of its generator of this seed is u_L or v_L
    digest   = half 0 | half 1, 8 bytes each, big-endian; of no words: zeros

`packsum_128` packs elements of 1 and 2 bytes: four or two to a word, the first one in its lowest bits, each plus one
before it is shifted to its place. So parts of a value still add up, wherever they are cut.

A block of 1024 words is a dot product with u_L, times one number: on a GPU one multiplication per half and element.
harness/DESIGN.md has the argument why sums of accidents do not cancel.
"""

import struct
from collections.abc import Iterable
from ctypes import Array, c_char

from xxhash import xxh3_128_digest

from harness.bits.errors import TraceError

DIGEST_BYTES = 16
RAW = "raw"
XXH3_128 = "xxh3_128"
SHARDSUM_128 = "shardsum_128"
PACKSUM_128 = "packsum_128"
ADDITIVE = (SHARDSUM_128, PACKSUM_128)
"""Those whose parts add up."""

ELEMENT_BYTES = (1, 2, 4, 8, 16)
WORD_BYTES = 4
"""A word is an element of at most so many bytes, or so many bytes of a larger one."""
BLOCK_WORDS = 1024
U_SEEDS = (0x243F6A8885A308D3, 0xA4093822299F31D0)
V_SEEDS = (0x13198A2E03707344, 0x082EFA98EC4E6C89)
"""Seeds of both halves: the first hexadecimal digits of pi's fraction, which were not chosen for this purpose."""
TILE_BYTES = 2**16
"""What one program on a GPU reads of a value."""
GAMMA = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


# Of xxh3_128, for those that compute it in parts; names are those of its specification:
# https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
STRIPE, BLOCK = 64, 1024
"""Bytes."""
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
PRIME32_1, PRIME32_2, PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
PRIME64_1, PRIME64_2, PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
PRIME64_4, PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
START = (PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1)
"""The eight words before the first block."""


def digest(data: "bytes | bytearray | memoryview | Array[c_char]") -> tuple[str, bytes]:
    """(algorithm, digest) of a whole value: `raw` up to 16 bytes, `xxh3_128` above."""
    if len(data) > DIGEST_BYTES:
        return XXH3_128, xxh3_128_digest(data)
    return RAW, bytes(data).ljust(DIGEST_BYTES, b"\0")


def shardsum(data: bytes | bytearray | memoryview, element_bytes: int, first_index: int = 0) -> bytes:
    """`shardsum_128` of consecutive elements, of which the first has `first_index` in the whole value; 16 bytes.

    The reference: a word at a time. TraceError for elements that are not of 1, 2, 4, 8 or 16 bytes.
    """
    view = memoryview(data).cast("B")
    if element_bytes not in ELEMENT_BYTES or len(view) % element_bytes:
        raise TraceError(
            f"{len(view)} bytes cannot be split into elements of {element_bytes} bytes",
            legal=f"elements of {ELEMENT_BYTES} bytes",
        )
    word_bytes = min(element_bytes, WORD_BYTES)
    first_word = first_index * (element_bytes // word_bytes)
    sums = [0, 0]
    for index, at in enumerate(range(0, len(view), word_bytes), first_word):
        word = int.from_bytes(view[at : at + word_bytes], "little") + 1
        for lane in (0, 1):
            sums[lane] += word * word_key(lane, index)
    return _joined(sums)


def packsum(data: bytes | bytearray | memoryview, element_bytes: int, first_index: int = 0) -> bytes:
    """`packsum_128` of consecutive elements; the arguments and errors are those of `shardsum`."""
    if element_bytes >= WORD_BYTES or len(data) % element_bytes:
        return shardsum(data, element_bytes, first_index)
    sums = [0, 0]
    for index, at in enumerate(range(0, len(data), element_bytes), first_index):
        word, place = divmod(index, WORD_BYTES // element_bytes)
        element = int.from_bytes(data[at : at + element_bytes], "little") + 1 << 8 * element_bytes * place
        for lane in (0, 1):
            sums[lane] += element * word_key(lane, word)
    return _joined(sums)


def word_key(lane: int, index: int) -> int:
    """Return the factor of the word at this index: odd, so that a single change always changes the sum."""
    block, place = divmod(index, BLOCK_WORDS)
    return (mix(U_SEEDS[lane] + place * GAMMA) | 1) * (mix(V_SEEDS[lane] + block * GAMMA) | 1) & _MASK


def add_shards(shards: Iterable[bytes]) -> bytes:
    """`shardsum_128` of a whole value from those of its parts, in any order; 16 bytes."""
    sums = [0, 0]
    for shard in shards:
        sums[0] += int.from_bytes(shard[:8], "big")
        sums[1] += int.from_bytes(shard[8:], "big")
    return _joined(sums)


def mix(x: int) -> int:
    """splitmix64's output for the state x, modulo 2^64: a bijection.

    Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014.
    """
    x = (x + GAMMA) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _joined(sums: list[int]) -> bytes:
    return b"".join([(lane & _MASK).to_bytes(8, "big") for lane in sums])


def xxh3_table() -> list[int]:
    """Return the numbers that parts of xxh3_128 read, as int64: 24 words of the secret, then those of the start."""
    return [*struct.unpack("<24q", SECRET), *struct.unpack("<8q", struct.pack("<8Q", *START))]
