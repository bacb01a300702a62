"""`shardsum_128` of tensors where they lie: on a GPU, and of shards. `trace/digests.py` has its definition.

    shard_of(tensor) -> Shard -> shardsum_lanes -> 2 int64 on the tensor's device -> lanes_digest -> 16 bytes

Only these 16 bytes leave a GPU. Where Triton can be imported, CUDA tensors go through the kernel of `gpu_kernel.py`,
which reads each element once; all others through torch's own operations, a chunk at a time, a few times as slow and
the same to the bit. Shards of one whole add up: nothing is gathered.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod

import torch

from harness.core.errors import TraceError
from harness.trace.digests import BLOCK_WORDS, GAMMA, U_SEEDS, V_SEEDS, WORD_BYTES

CHUNK_WORDS = 2**20
"""So many words are computed on at once by torch's operations; each takes some 50 bytes meanwhile."""
MIN_RUN_WORDS = 2**12
"""Shorter runs of consecutive words are taken together, one index per word."""
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


def shardsum_lanes(shard: Shard) -> torch.Tensor:
    """Return both hash halves of a shard as int64 [2], on its device, without waiting for the GPU."""
    words, words_per_element = words_of(shard.local)
    starts, run_elements = runs_of(shard)
    run_words = run_elements * words_per_element
    starts = [start * words_per_element for start in starts]
    if not words.numel():
        return torch.zeros(2, dtype=torch.int64, device=words.device)
    if words.is_cuda and (len(starts) == 1 or run_words >= BLOCK_WORDS // 2) and not kernel_problem():
        return lanes_by_kernel(words, starts, run_words)
    return lanes_by_torch(words, starts, run_words)


def lanes_digest(lanes: torch.Tensor) -> bytes:
    """Return the 16 bytes of two hash halves; wait for the GPU."""
    return b"".join([(lane % 2**64).to_bytes(8, "big") for lane in lanes.tolist()])


def words_of(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """(the words of a tensor in C order, one dimension; how many make an element).

    TraceError for elements of another size than 1, 2, 4, 8 or 16 bytes, and for tensors without memory of their own.
    """
    num_bytes = tensor.element_size()
    if tensor.layout is not torch.strided or num_bytes not in (1, 2, 4, 8, 16):
        raise TraceError(f"a {tensor.layout} tensor of {tensor.dtype}", legal="dense elements of up to 16 bytes")
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(_UNSIGNED[min(num_bytes, WORD_BYTES)]), max(1, num_bytes // WORD_BYTES)


def runs_of(shard: Shard) -> tuple[list[int], int]:
    """(where in the whole each run of consecutive elements begins, how many elements a run has), in C order."""
    sizes, whole = tuple(shard.local.shape), shard.shape
    if len(sizes) != len(whole) or any(
        at + size > all_ for at, size, all_ in zip(shard.offset, sizes, whole, strict=True)
    ):
        raise TraceError(f"a part of {sizes} at {shard.offset} lies outside of {whole}")
    cut = max((dim for dim in range(len(sizes)) if sizes[dim] != whole[dim]), default=0)
    strides = [prod(whole[dim + 1 :]) for dim in range(len(whole))]
    starts = [0]
    for dim, (size, offset) in enumerate(zip(sizes[:cut], shard.offset[:cut], strict=True)):
        starts = [start + (offset + place) * strides[dim] for start in starts for place in range(size)]
    if not sizes:
        return starts, 1
    first = shard.offset[cut] * strides[cut]
    return [start + first for start in starts], sizes[cut] * strides[cut]


# ---------------------------------------------------------------------------------------------------- by the kernel


@cache
def kernel_problem() -> str:
    """Why the kernel is not used on CUDA, tried once; empty where it is."""
    try:
        words = torch.zeros(BLOCK_WORDS, dtype=torch.int32, device="cuda")
        lanes_by_kernel(words, [0], BLOCK_WORDS)
    except Exception as error:  # no Triton, no compiler for it, a GPU it does not know: torch's operations do it too
        return f"{type(error).__name__}: {error}"
    return ""


def lanes_by_kernel(words: torch.Tensor, starts: Sequence[int], run_words: int) -> torch.Tensor:
    """The same as lanes_by_torch, in one pass; ImportError where Triton is not installed."""
    from harness.recording import gpu_kernel

    keys = _keys(words.device, (max(starts) + run_words - 1) // BLOCK_WORDS + 1)
    return gpu_kernel.lanes(words, starts, run_words, keys)


# -------------------------------------------------------------------------------------------- by torch's operations


def lanes_by_torch(words: torch.Tensor, starts: Sequence[int], run_words: int) -> torch.Tensor:
    """Return both hash halves of consecutive runs of words, as int64 [2]; run i begins at `starts[i]` of the tensor."""
    total = torch.zeros(2, dtype=torch.int64, device=words.device)
    if len(starts) == 1 or run_words >= MIN_RUN_WORDS:
        for number, start in enumerate(starts):
            run = words[number * run_words : (number + 1) * run_words]
            for first, last in _pieces(start, run_words):
                is_whole = (start + first) % BLOCK_WORDS == (last - first) % BLOCK_WORDS == 0
                total += (_sum_blocks if is_whole else _sum_from)(run[first:last], start + first)
        return total
    begins = torch.tensor(starts, dtype=torch.int64, device=words.device)
    for first in range(0, words.numel(), CHUNK_WORDS):
        chunk = words[first : first + CHUNK_WORDS]
        place = torch.arange(first, first + chunk.numel(), device=words.device)
        run = place.div(run_words, rounding_mode="floor")
        total += _sum_at(chunk, begins[run] + place.remainder(run_words))
    return total


def _pieces(start: int, num_words: int) -> Iterator[tuple[int, int]]:
    """(first, last) of the parts of a run: what comes before a whole block, chunks of whole blocks, the rest."""
    head = min(-start % BLOCK_WORDS, num_words)
    tail = head + (num_words - head) // BLOCK_WORDS * BLOCK_WORDS
    edges = [0, *range(head, tail, CHUNK_WORDS), tail, num_words]
    return ((first, last) for first, last in pairwise(edges) if last > first)


def _sum_blocks(words: torch.Tensor, start: int) -> torch.Tensor:
    """Both lanes of whole blocks: a dot product with u for each, times its v."""
    keys = _keys(words.device, (start + words.numel()) // BLOCK_WORDS)
    blocks = _plus_one(words).view(-1, BLOCK_WORDS)
    first = start // BLOCK_WORDS
    u, v = _u(keys), _v(keys)[first : first + len(blocks)]
    return torch.stack([((blocks * u[lane]).sum(1) * v[:, lane]).sum() for lane in (0, 1)])


def _sum_from(words: torch.Tensor, start: int) -> torch.Tensor:
    return _sum_at(words, torch.arange(start, start + words.numel(), device=words.device))


def _sum_at(words: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Both lanes of words of any indices."""
    u = _u(_keys(words.device, 0))
    values, places, blocks = _plus_one(words), indices & (BLOCK_WORDS - 1), indices >> 10
    return torch.stack([(values * u[lane][places] * _key(V_SEEDS[lane], blocks)).sum() for lane in (0, 1)])


def _plus_one(words: torch.Tensor) -> torch.Tensor:
    return (words.to(torch.int64) & _BITS[words.element_size()]) + 1


# ------------------------------------------------------------------------------------------------------------- keys


_tables: dict[torch.device, torch.Tensor] = {}
"""By device: u of both hash halves, then v of both for as many blocks as were needed so far; one dimension."""


def _keys(device: torch.device, num_blocks: int) -> torch.Tensor:
    """The keys of a device, v of at least so many blocks."""
    if device not in _tables or len(_v(_tables[device])) < num_blocks:
        places = torch.arange(BLOCK_WORDS, device=device)
        blocks = torch.arange(max(BLOCK_WORDS, 1 << (num_blocks - 1).bit_length()), device=device)
        u = torch.stack([_key(seed, places) for seed in U_SEEDS])
        v = torch.stack([_key(seed, blocks) for seed in V_SEEDS], dim=1)
        _tables[device] = torch.cat([u.flatten(), v.flatten()])
    return _tables[device]


def _u(keys: torch.Tensor) -> torch.Tensor:
    return keys[: 2 * BLOCK_WORDS].view(2, BLOCK_WORDS)


def _v(keys: torch.Tensor) -> torch.Tensor:
    return keys[2 * BLOCK_WORDS :].view(-1, 2)


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
