"""Sums of keyed words of tensors where they lie, on a GPU or in parts. `digests.py` defines them.

    values ─▶ table of tiles ─▶ one launch ─▶ sums [values, 2] ─▶ the host, which waits only when it asks for a digest

| value | algorithm | read by |
|---|---|---|
| on a GPU, at most 16 bytes | `raw` | the kernel |
| on a GPU, elements of 4 bytes and more | `shardsum_128` | the kernel |
| on a GPU, elements of 1 and 2 bytes | `packsum_128` | the kernel |
| on a GPU, not one run of the whole at an address that suits, or without Triton | the same | torch's operations |
| a part on the host | `shardsum_128` | torch's operations |

Parts of one whole add up: nothing is gathered.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from harness.bits.digests import (
    BLOCK_WORDS,
    DIGEST_BYTES,
    ELEMENT_BYTES,
    GAMMA,
    PACKSUM_128,
    RAW,
    SHARDSUM_128,
    TILE_BYTES,
    U_SEEDS,
    V_SEEDS,
    WORD_BYTES,
)
from harness.bits.errors import TraceError

BLOCK_BYTES = BLOCK_WORDS * WORD_BYTES
ALIGNMENT = 16
"""Bytes that a thread loads at once."""
PIECE_BYTES = 2**22
"""What torch's operations read at once; each byte takes some 25 meanwhile."""
MAX_TABLES = 8
_UNSIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_ONES = {1: 0x01010101, 2: 0x00010001}
"""What is added to a word of elements below 4 bytes: 1 to each."""
Key = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Shard:
    """A tensor as a part of a whole one."""

    local: torch.Tensor
    shape: tuple[int, ...]
    """Of the whole."""
    offset: tuple[int, ...]
    """Where the part begins, in each dimension."""
    is_counted: bool = True
    """False of a replica whose elements another rank has counted."""


def shard_of_all(tensor: torch.Tensor) -> Shard:
    """A tensor as a part that is all of it."""
    return Shard(tensor, tuple(tensor.shape), (0,) * tensor.dim())


def on_host(tensor: torch.Tensor) -> bool:
    """Whether the memory of a tensor is the host's."""
    return tensor.is_cpu


def check_part(shard: Shard) -> None:
    """TraceError for a part that is not dense, lies outside, or has elements of another size than 1, 2, 4, 8 or 16."""
    local = shard.local
    if local.layout is not torch.strided or local.element_size() not in ELEMENT_BYTES:
        raise TraceError(f"a {local.layout} tensor of {local.dtype}", legal="dense elements of up to 16 bytes")
    ends = [at + size for at, size in zip(shard.offset, local.shape, strict=False)]
    if len(ends) != len(shard.shape) or any(end > size for end, size in zip(ends, shard.shape, strict=True)):
        raise TraceError(f"a part of {tuple(local.shape)} at {shard.offset} lies outside of {shard.shape}")


def algorithm_of(shard: Shard, *, is_whole: bool) -> str:
    """The algorithm of a part, or of a whole value, on its device."""
    if is_whole and shard.local.nbytes <= DIGEST_BYTES:
        return RAW
    is_packed = not on_host(shard.local) and shard.local.element_size() < WORD_BYTES
    return PACKSUM_128 if is_packed else SHARDSUM_128


# ----------------------------------------------------------------------------------------------- by torch's operations


def sums_by_torch(shard: Shard, algorithm: str) -> torch.Tensor:
    """Both halves of a digest, or the bytes of a small value: int64 [2] on its device. Nothing waits for a GPU."""
    device = shard.local.device
    if algorithm == RAW:
        filled = torch.zeros(DIGEST_BYTES, dtype=torch.uint8, device=device)
        data = _plain(shard.local).reshape(-1).view(torch.uint8)
        filled[: len(data)] = data
        return filled.view(torch.int64)
    halves = torch.zeros(2, dtype=torch.int64, device=device)
    for piece in _pieces(shard):
        (first, last), size = _span(piece), piece.local.element_size()
        ones, index, num_words = _words(piece) + 1, _indices(piece), max(1, size // WORD_BYTES)
        first, last = first * num_words, last * num_words + num_words - 1
        if algorithm == PACKSUM_128 and (num_packed := WORD_BYTES // size) > 1:
            ones <<= 8 * size * (index % num_packed)
            index, first, last = index // num_packed, first // num_packed, last // num_packed
        blocks = torch.arange(first // BLOCK_WORDS, last // BLOCK_WORDS + 1, device=device)
        at, places = index // BLOCK_WORDS - first // BLOCK_WORDS, index % BLOCK_WORDS
        for half, seed in enumerate(V_SEEDS):
            halves[half] += (ones * _place_keys(device)[half][places] * _keys(seed, blocks)[at]).sum()
    return halves


def _span(shard: Shard) -> tuple[int, int]:
    """The first and the last element of a part in the whole."""
    strides = [prod(shard.shape[dim + 1 :]) for dim in range(len(shard.shape))]
    first = sum(at * stride for at, stride in zip(shard.offset, strides, strict=True))
    return first, first + sum((size - 1) * stride for size, stride in zip(shard.local.shape, strides, strict=True))


def _pieces(shard: Shard) -> Iterator[Shard]:
    """The part in parts of at most PIECE_BYTES, whose copies are small."""
    local = shard.local
    if local.nbytes <= PIECE_BYTES:
        yield shard
        return
    dim = next(dim for dim, size in enumerate(local.shape) if size > 1)
    half = local.shape[dim] // 2
    for first, size in ((0, half), (half, local.shape[dim] - half)):
        offset = tuple(at + first * (each == dim) for each, at in enumerate(shard.offset))
        yield from _pieces(Shard(local.narrow(dim, first, size), shard.shape, offset))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose memory has its elements in C order: itself, or a copy."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _words(piece: Shard) -> torch.Tensor:
    """Elements as unsigned words, int64 [n]."""
    flat = _plain(piece.local).reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    size = min(piece.local.element_size(), WORD_BYTES)
    words: torch.Tensor = flat.view(_UNSIGNED[size]).to(torch.int64) & (2 ** (8 * size) - 1)
    return words


def _indices(piece: Shard) -> torch.Tensor:
    """Index of each word in the whole, int64 [n]; of elements below 4 bytes, that of the element."""
    device = piece.local.device
    index: torch.Tensor = torch.zeros((), dtype=torch.int64, device=device)
    for dim, (size, offset) in enumerate(zip(piece.local.shape, piece.offset, strict=True)):
        along = torch.arange(offset, offset + size, device=device) * prod(piece.shape[dim + 1 :])
        index = index.unsqueeze(-1) + along
    num_words = max(1, piece.local.element_size() // WORD_BYTES)
    words: torch.Tensor = index.unsqueeze(-1) * num_words + torch.arange(num_words, device=device)
    return words.reshape(-1)


# ---------------------------------------------------------------------------------------------------------------- keys

_of_places: dict[torch.device, torch.Tensor] = {}
_of_blocks: dict[torch.device, torch.Tensor] = {}


def _place_keys(device: torch.device) -> torch.Tensor:
    """u of both halves for each word of a block: int64 [2, 1024]."""
    if device not in _of_places:
        places = torch.arange(BLOCK_WORDS, device=device)
        _of_places[device] = torch.stack([_keys(seed, places) for seed in U_SEEDS])
    return _of_places[device]


def _block_keys(device: torch.device, num_blocks: int) -> torch.Tensor:
    """v of both halves for at least so many blocks: int64 [blocks, 2], 16 bytes for each 4 KiB of the largest value."""
    known = _of_blocks.get(device)
    if known is None or len(known) < num_blocks:
        blocks = torch.arange(num_blocks + BLOCK_WORDS, device=device)
        known = _of_blocks[device] = torch.stack([_keys(seed, blocks) for seed in V_SEEDS], 1).contiguous()
    return known


def _keys(seed: int, number: torch.Tensor) -> torch.Tensor:
    """mix(seed + number * GAMMA) | 1, in int64 that wraps."""
    state = number * _signed(GAMMA) + _signed(seed + GAMMA)
    for num_bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ _shifted(state, num_bits)) * _signed(factor)
    keys: torch.Tensor = (state ^ _shifted(state, 31)) | 1
    return keys


def _shifted(state: torch.Tensor, num_bits: int) -> torch.Tensor:
    """To the right, zeros coming in: torch's shift of int64 brings in the sign."""
    return torch.bitwise_and(state >> num_bits, 2 ** (64 - num_bits) - 1)


def _signed(word: int) -> int:
    word %= 2**64
    return word - 2**64 if word >= 2**63 else word


# ------------------------------------------------------------------------------------------------------- by one launch


class Gpu:
    """What a batch of values asks of a GPU. Tests count it in a stand-in."""

    devices = ("cuda",)
    """Types of devices whose values the kernel reads."""

    def upload(self, numbers: NDArray[np.integer], device: torch.device) -> torch.Tensor:
        """Numbers on the GPU, without waiting for it."""
        tensor = torch.from_numpy(numbers)
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

    def launch(
        self, rows: torch.Tensor, owners: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor], sums: torch.Tensor
    ) -> None:
        """Add the sums of all tiles to int64 `sums` [values, 2]; ImportError without Triton."""
        from harness.bits.gpu_kernels import launch_tiles

        launch_tiles(rows, owners, keys, sums)

    def fetch(self, sums: torch.Tensor) -> "Fetched":
        """Begin to copy sums to the host."""
        if not sums.is_cuda:
            return Fetched(sums)
        host = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True).copy_(sums, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(sums.device))
        return Fetched(host, event)


class Fetched:
    """Sums on their way to the host."""

    def __init__(self, sums: torch.Tensor, event: "torch.cuda.Event | None" = None) -> None:
        self._sums, self._event = sums, event
        self._read: list[list[int]] | None = None

    def read(self) -> list[list[int]]:
        """Both numbers of each value; the first call waits for the GPU."""
        if self._read is None:
            if self._event is not None:
                self._event.synchronize()
            self._read = self._sums.tolist()
        return self._read


class Pending:
    """The 16 bytes of a digest that a GPU may still be computing: `bytes(digest)` waits for them, and so does `==`."""

    __slots__ = ("_algorithm", "_bytes", "_fetched", "_index")

    def __init__(self, fetched: Fetched, index: int, algorithm: str) -> None:
        self._fetched: Fetched | None = fetched
        self._index, self._algorithm, self._bytes = index, algorithm, b""

    def __bytes__(self) -> bytes:
        if self._fetched is not None:
            sums = self._fetched.read()[self._index]
            order: Literal["little", "big"] = "little" if self._algorithm == RAW else "big"
            self._bytes = b"".join([(half % 2**64).to_bytes(8, order) for half in sums])
            self._fetched = None
        return self._bytes

    def __eq__(self, other: object) -> bool:
        return bytes(self) == bytes(other) if isinstance(other, bytes | Pending) else NotImplemented

    def __hash__(self) -> int:
        return hash(bytes(self))


GPU = Gpu()
_tables: OrderedDict[tuple[torch.device, Key], tuple[torch.Tensor, torch.Tensor]] = OrderedDict()
"""Rows and owners by what they are of: parameters and gradients keep their addresses from step to step."""


def digests(parts: Sequence[tuple[Shard, str]], device: torch.device) -> list[bytes]:
    """The digest of each part by its algorithm, all on one device; on a GPU `Pending`, which stands in for bytes."""
    sums = torch.zeros((len(parts), 2), dtype=torch.int64, device=device)
    rows, held, others = list[tuple[int, ...]](), list[torch.Tensor](), list[int]()
    can_launch = device.type in GPU.devices and not kernel_problem(device)
    for owner, (shard, algorithm) in enumerate(parts):
        check_part(shard)
        row = _row(shard, algorithm, held) if can_launch else None
        if row is not None:
            rows.append((owner, *row))
        elif shard.local.numel():
            others.append(owner)
    if rows:
        _launch(tuple(rows), sums)
    for owner in others:
        sums[owner] += sums_by_torch(*parts[owner])
    fetched = GPU.fetch(sums)
    return [cast("bytes", Pending(fetched, index, algorithm)) for index, (_, algorithm) in enumerate(parts)]


def _row(shard: Shard, algorithm: str, held: list[torch.Tensor]) -> tuple[int, ...] | None:
    """(address of the block in which a part begins, first and last byte from there, first block, ones) for the kernel.

    None for a part whose bytes are not one run of the whole, or lie at other places than the kernel reads. Small values
    in another order are copied, and held until the launch.
    """
    local = shard.local
    size = local.element_size()
    if not local.numel():
        return None
    if not local.is_contiguous() or local.is_conj() or local.is_neg():
        if local.nbytes > PIECE_BYTES:
            return None
        local = _plain(local)
        held.append(local)
    address = local.data_ptr()
    if algorithm == RAW:
        return address, 0, local.nbytes, 0, 0
    element, last = _span(shard)
    first = element * size
    if last - element + 1 != local.numel() or (address - first) % ALIGNMENT or first % WORD_BYTES:
        return None
    begin = first % BLOCK_BYTES
    return address - begin, begin, begin + local.nbytes, first // BLOCK_BYTES, _ONES.get(size, 1)


def _launch(rows: Key, sums: torch.Tensor) -> None:
    device = sums.device
    table = _tables.pop((device, rows), None)
    if table is None:
        fields = np.array(rows, np.int64)
        counts = -(-fields[:, 3] // TILE_BYTES)
        firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        owners = np.repeat(np.arange(len(rows), dtype=np.int32), counts)
        table = (GPU.upload(np.column_stack([firsts, fields]), device), GPU.upload(owners, device))
    _tables[device, rows] = table
    if len(_tables) > MAX_TABLES:
        _tables.popitem(last=False)
    num_blocks = max(row[4] + row[3] // BLOCK_BYTES for row in rows) + 1
    GPU.launch(*table, (_place_keys(device), _block_keys(device, num_blocks)), sums)


_problems: dict[torch.device, str] = {}


def kernel_problem(device: torch.device) -> str:
    """Why the kernel is not used on a GPU, tried once for each; empty where it is used. A lack of memory is forgotten.

    The trial waits for the GPU, and compares the kernel's sums with torch's.
    """
    if device not in _problems:
        words = torch.arange(3 * BLOCK_WORDS, dtype=torch.int16, device=device)
        shard = Shard(words, (4 * BLOCK_WORDS,), (BLOCK_WORDS - 24,))
        sums = torch.zeros((1, 2), dtype=torch.int64, device=device)
        try:
            row = _row(shard, PACKSUM_128, [])
            assert row is not None
            _launch(((0, *row),), sums)
            is_right = torch.equal(sums[0], sums_by_torch(shard, PACKSUM_128))
            _problems[device] = "" if is_right else "its sums are wrong"
        except torch.OutOfMemoryError as error:
            return f"{type(error).__name__}: {error}"
        except Exception as error:  # no Triton, no compiler for it, a GPU it does not know
            _problems[device] = f"{type(error).__name__}: {error}"
    return _problems[device]
