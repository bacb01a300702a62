"""The norm of sharded gradients, bitwise that of `rlcore.trainers.local.global_norm`.

Rows are summed in fp64 one by one, and row sums are added without rounding. A shard never splits the rows of a matrix;
a vector is one row, so vectors are made whole. Row sums themselves are not sent: each rank sends a few numbers whose
exact sum is that of its rows.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rlcore.trainers.local import squared_rows
from rlcore.trainers.local_parts import local_part
from rlcore.trainers.ranks import Ranks

MAX_PARTS = 42
"""fp64 reaches from 2**-1074 to 2**1024, and each part covers 53 bits or more of the sum."""


def sharded_norm(gradients: Sequence[Tensor], ranks: Ranks) -> float:
    """Return the 2-norm of all gradients, equal on all ranks, whose shards make up each of them."""
    matrices = [gradient for gradient in gradients if gradient.dim() > 1]
    rows = [row_sums(local_part(gradient), gradient.shape) for gradient in matrices]
    parts = exact_parts(torch.cat(rows).tolist() if rows else [])
    every = [part for own in ranks.gather_numbers(parts + [0.0] * (MAX_PARTS - len(parts))) for part in own]
    vectors = full_vectors([gradient for gradient in gradients if gradient.dim() < 2], ranks)
    return math.sqrt(math.fsum([*every, *(float(squared_rows(vector)) for vector in vectors)]))


def full_vectors(vectors: Sequence[Tensor], ranks: Ranks) -> list[Tensor]:
    """Return sharded vectors whole, in fp64, by one exchange."""
    if not vectors:
        return []
    sizes = [-(-len(vector) // ranks.size) for vector in vectors]
    locals_ = [local_part(vector).double() for vector in vectors]
    padded = [
        torch.nn.functional.pad(local, (0, size - len(local))) for local, size in zip(locals_, sizes, strict=True)
    ]
    by_rank = [torch.split(row, sizes) for row in ranks.gather(torch.cat(padded))]
    return [torch.cat(rows)[: len(vector)] for vector, *rows in zip(vectors, *by_rank, strict=True)]


def row_sums(rows: Tensor, shape: torch.Size) -> Tensor:
    """Return the sum of squares of each row of a shard, as the whole matrix of this shape would give it.

    torch divides the sum of a lone row among threads, and that of one of several rows never.
    """
    if len(rows) == 1 and shape[0] > 1:
        return squared_rows(torch.cat([rows, torch.zeros_like(rows)]))[: shape[1:-1].numel()]
    return squared_rows(rows)


def exact_parts(values: Sequence[float]) -> list[float]:
    """Return a few numbers whose sum is that of the values to the last bit; one that is not finite if that is not."""
    parts: list[float] = []
    while (rest := math.fsum([*values, *(-part for part in parts)])) != 0.0:
        parts.append(rest)
        if not math.isfinite(rest):
            return [rest]
    return parts
