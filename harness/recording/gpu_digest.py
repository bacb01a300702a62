"""`shardsum_128` of tensors where they lie: on a GPU, and of shards. `bits/digests.py` has its definition.

    shard_of(tensor) -> Shard -> lanes_of_shard -> 2 int64 on the tensor's device -> lanes_digest -> 16 bytes

This is torch's way, a chunk at a time: that of shards on the host, and of GPUs without Triton. Where Triton can be
imported, tensors on a GPU go through one launch of `gpu_kernel.py` instead (`gpu_batch.py`), to the same bits. Only 16
bytes of each leave a GPU. Shards of one whole add up: nothing is gathered.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch

from harness.bits.digests import BLOCK_WORDS, GAMMA, U_SEEDS, V_SEEDS, WORD_BYTES
from harness.bits.errors import TraceError
from harness.recording.gpu_table import Runs, runs_of, words_per_element

CHUNK_WORDS = 2**20
"""So many words are computed on at once by torch's operations; each takes some 50 bytes meanwhile."""
MIN_RUN_WORDS = 2**12
"""Shorter runs of consecutive words are taken together, one index per word."""
PIECE_BYTES = 2**26
"""Tensors whose memory has another order than their elements are copied in pieces of this size."""
_UNSIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_BITS = {1: 2**8 - 1, 2: 2**16 - 1, 4: 2**32 - 1}


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


def shard_of(tensor: torch.Tensor) -> Shard:
    """A plain tensor as a whole; of a DTensor (FSDP2, tensor parallelism) this rank's part.

    TraceError for a DTensor that is a pending sum, or whose part is not one block of the whole.
    """
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is None or not isinstance(tensor, distributed.DTensor):
        return Shard(tensor, tuple(tensor.shape), (0,) * tensor.dim())
    mesh, placements = tensor.device_mesh, tensor.placements
    if unknown := [placement for placement in placements if type(placement).__name__ not in ("Shard", "Replicate")]:
        raise TraceError(
            f"a DTensor that is placed {unknown[0]}", legal="Shard, Replicate", remedy="redistribute it before"
        )
    local = tensor.to_local()
    offset = [0] * local.dim()
    sizes = list(tensor.shape)
    coordinate = mesh.get_coordinate()
    for mesh_dim, placement in enumerate(placements):
        if placement.is_shard():
            size, place, num_parts = sizes[placement.dim], coordinate[mesh_dim], mesh.size(mesh_dim)
            part = -(-size // num_parts)  # as torch.chunk cuts: all parts alike but the last ones
            first = min(part * place, size)
            offset[placement.dim] += first
            sizes[placement.dim] = min(part, size - first)
    if list(local.shape) != sizes:
        raise TraceError(f"a part of {tuple(local.shape)} where {tuple(sizes)} was expected", remedy="report it")
    is_first = all(placement.is_shard() or not coordinate[dim] for dim, placement in enumerate(placements))
    return Shard(local, tuple(tensor.shape), tuple(offset), is_first)


def lanes_digest(lanes: torch.Tensor) -> bytes:
    """Return the 16 bytes of two hash halves; wait for the GPU."""
    return b"".join([(lane % 2**64).to_bytes(8, "big") for lane in lanes.tolist()])


def pieces_of(shard: Shard, max_bytes: int) -> Iterator[Shard]:
    """The shard, or parts of it of about so many bytes, whose copies are small where it has to be copied."""
    local = shard.local
    dim = next((dim for dim, size in enumerate(local.shape) if size > 1), None)
    if dim is None or local.nbytes <= max_bytes:
        yield shard
        return
    size = local.shape[dim]
    part = max(1, size * max_bytes // local.nbytes)
    for first in range(0, size, part):
        offset = tuple(at + first * (each == dim) for each, at in enumerate(shard.offset))
        piece = local.narrow(dim, first, min(part, size - first))
        yield from pieces_of(Shard(piece, shard.shape, offset, shard.is_counted), max_bytes)


def is_readable_in_place(local: torch.Tensor) -> bool:
    """Whether the memory of a tensor has its bits; else they are those of the conjugate or the negative."""
    return not (local.is_conj() or local.is_neg())


def contiguous_runs(shard: Shard) -> Runs:
    """The words of a shard as they lie in a contiguous copy."""
    return runs_of(shard.local, shard.shape, shard.offset, contiguous_strides(shard.local.shape))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """In elements."""
    return tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))


def words_of(tensor: torch.Tensor) -> torch.Tensor:
    """The words of a tensor in C order, one dimension: its own memory where it lies so, else a copy.

    TraceError for elements of another size than 1, 2, 4, 8 or 16 bytes, and for sparse tensors.
    """
    check_dense(tensor)
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(_UNSIGNED[min(tensor.element_size(), WORD_BYTES)])


def check_dense(tensor: torch.Tensor) -> None:
    """TraceError for a tensor whose words have no addresses."""
    if tensor.layout is not torch.strided:
        raise TraceError(f"a {tensor.layout} tensor of {tensor.dtype}", legal="dense elements of up to 16 bytes")
    words_per_element(tensor.element_size())


def lanes_of_shard(shard: Shard) -> torch.Tensor:
    """Both hash halves of a shard by torch's operations, int64 [2] on its device, without waiting for the GPU."""
    check_dense(shard.local)
    total = torch.zeros(2, dtype=torch.int64, device=shard.local.device)
    is_copied = not shard.local.is_contiguous() or not is_readable_in_place(shard.local)
    for piece in pieces_of(shard, PIECE_BYTES) if is_copied else [shard]:
        total += lanes_by_torch(words_of(piece.local), contiguous_runs(piece))
    return total


# -------------------------------------------------------------------------------------------- by torch's operations


def lanes_by_torch(words: torch.Tensor, runs: Runs) -> torch.Tensor:
    """Return both hash halves of `words`, one dimension, whose indices in the global value follow from `runs`."""
    total = torch.zeros(2, dtype=torch.int64, device=words.device)
    if not words.numel():
        return total
    if not runs.levels or runs.run_words >= MIN_RUN_WORDS:
        for number, start in enumerate(_starts(torch.arange(runs.num_runs), runs).tolist()):
            run = words[number * runs.run_words : (number + 1) * runs.run_words]
            for first, last in _pieces(start, runs.run_words):
                is_whole = (start + first) % BLOCK_WORDS == (last - first) % BLOCK_WORDS == 0
                total += (_sum_blocks if is_whole else _sum_from)(run[first:last], start + first)
        return total
    for first in range(0, words.numel(), CHUNK_WORDS):
        chunk = words[first : first + CHUNK_WORDS]
        place = torch.arange(first, first + chunk.numel(), device=words.device)
        run = place.div(runs.run_words, rounding_mode="floor")
        total += _sum_at(chunk, _starts(run, runs) + place.remainder(runs.run_words))
    return total


def _starts(numbers: torch.Tensor, runs: Runs) -> torch.Tensor:
    """Where in the global value the runs of these numbers begin, in words."""
    starts = torch.full_like(numbers, runs.first)
    for level in reversed(runs.levels):
        starts += numbers.remainder(level.repeats) * level.whole
        numbers = numbers.div(level.repeats, rounding_mode="floor")
    return starts


def _pieces(start: int, num_words: int) -> Iterator[tuple[int, int]]:
    """(first, last) of the parts of a run: what comes before a whole block, chunks of whole blocks, the rest."""
    head = min(-start % BLOCK_WORDS, num_words)
    tail = head + (num_words - head) // BLOCK_WORDS * BLOCK_WORDS
    edges = [0, *range(head, tail, CHUNK_WORDS), tail, num_words]
    return ((first, last) for first, last in pairwise(edges) if last > first)


def _sum_blocks(words: torch.Tensor, start: int) -> torch.Tensor:
    """Both lanes of whole blocks: a dot product with u for each, times its v."""
    blocks = _plus_one(words).view(-1, BLOCK_WORDS)
    u = keys_of_places(words.device)
    numbers = torch.arange(start // BLOCK_WORDS, start // BLOCK_WORDS + len(blocks), device=words.device)
    return torch.stack([((blocks * u[lane]).sum(1) * _key(V_SEEDS[lane], numbers)).sum() for lane in (0, 1)])


def _sum_from(words: torch.Tensor, start: int) -> torch.Tensor:
    return _sum_at(words, torch.arange(start, start + words.numel(), device=words.device))


def _sum_at(words: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Both lanes of words of any indices."""
    u = keys_of_places(words.device)
    values, places, blocks = _plus_one(words), indices & (BLOCK_WORDS - 1), indices >> 10
    return torch.stack([(values * u[lane][places] * _key(V_SEEDS[lane], blocks)).sum() for lane in (0, 1)])


def _plus_one(words: torch.Tensor) -> torch.Tensor:
    return (words.to(torch.int64) & _BITS[words.element_size()]) + 1


# ------------------------------------------------------------------------------------------------------------- keys


_tables: dict[torch.device, torch.Tensor] = {}


def keys_of_places(device: torch.device) -> torch.Tensor:
    """u of both hash halves for each word of a block, int64 [2, 1024]; made once for each device."""
    if device not in _tables:
        places = torch.arange(BLOCK_WORDS, device=device)
        _tables[device] = torch.stack([_key(seed, places) for seed in U_SEEDS])
    return _tables[device]


def _key(seed: int, number: torch.Tensor) -> torch.Tensor:
    """mix(seed + number * GAMMA) | 1, in int64 that wraps."""
    state = number * _signed(GAMMA) + _signed(seed + GAMMA)
    state = (state ^ _shifted(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shifted(state, 27)) * _signed(0x94D049BB133111EB)
    return (state ^ _shifted(state, 31)) | 1


def _shifted(state: torch.Tensor, num_bits: int) -> torch.Tensor:
    """To the right, zeros coming in: torch's shift of int64 brings in the sign."""
    return torch.bitwise_and(state >> num_bits, 2 ** (64 - num_bits) - 1)


def _signed(word: int) -> int:
    word %= 2**64
    return word - 2**64 if word >= 2**63 else word
