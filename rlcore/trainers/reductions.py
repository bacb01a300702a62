"""Sums of gradients over ranks: in the canonical tree, or as the library adds them.

    own sums ──all-to-all, a chunk per rank──▶ canonical tree of the chunk ──all-gather──▶ the same sum on every rank

The tree is that of `rlcore.numerics.tree_sum`: its bits do not depend on the number of ranks, nor on which of them
computed which microbatch. The library's sum is of fixed order for a fixed number of ranks.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor

from rlcore.numerics.tree_sum import NodePosition, TreeSum, complete_subtrees
from rlcore.trainers.assignment import Assignment
from rlcore.trainers.ranks import Ranks

BUCKET_ELEMENTS = 1 << 20
"""Elements that are exchanged at once, unless one tensor alone has more: never a flat copy of the model."""


def canonical_sum(ranks: Ranks, assignment: Assignment, own: Tensor) -> Tensor:
    """Return the sum over all microbatches, flat, equal on all ranks.

    `own` are the sums of this rank's complete subtrees, fp32 [subtrees, elements], in the order of `TreeSum.nodes`.
    """
    num_elements = own.shape[1]
    chunk = scattered_sum(ranks, assignment, own)
    total = chunk.new_empty(ranks.size * len(chunk))
    dist.all_gather(list(torch.split(total, len(chunk))), chunk, group=ranks.group)
    return total[:num_elements]


def scattered_sum(ranks: Ranks, assignment: Assignment, own: Tensor) -> Tensor:
    """Return this rank's chunk of the sum over all microbatches; `own` as in `canonical_sum`, padded with zeros."""
    num_nodes, num_elements = own.shape
    chunk = -(-num_elements // ranks.size)
    padded = torch.nn.functional.pad(own, (0, ranks.size * chunk - num_elements))
    sent = padded.view(num_nodes, ranks.size, chunk).transpose(0, 1).contiguous()
    places = [complete_subtrees(numbers) for numbers in assignment.numbers]
    counts = [len(each) for each in places]
    received = own.new_empty(sum(counts), chunk)
    dist.all_to_all_single(received, sent.view(-1, chunk), counts, [num_nodes] * ranks.size, group=ranks.group)
    return added(assignment.num_microbatches, places, received)


def added(num_microbatches: int, places: Sequence[Sequence[NodePosition]], rows: Tensor) -> Tensor:
    """Add sums of several parts by the canonical tree: `rows` [subtrees of all parts, elements], written over."""
    total = TreeSum(num_microbatches)
    remaining = iter(rows)
    for of_part in places:
        nodes = [(place, next(remaining)) for place in of_part]
        total.absorb(TreeSum.of_nodes(num_microbatches, nodes))
    found = total.total()
    assert found is not None, "an update has a microbatch"
    return found.contiguous()


def node_rows(trees: Sequence[TreeSum], shapes: Sequence[torch.Size], num_nodes: int, device: str) -> Tensor:
    """Return the sums of a part's complete subtrees, those of several tensors beside each other.

    The trees were given the same values; fp32 [subtrees, elements], in the order of `TreeSum.nodes`.
    """
    rows = torch.empty(num_nodes, sum(shape.numel() for shape in shapes), device=device)
    for node, *values in zip(rows, *([value for _, value in tree.nodes()] for tree in trees), strict=True):
        torch.cat([value.reshape(-1) for value in values], out=node)
    return rows


def total_row(trees: Sequence[TreeSum], shapes: Sequence[torch.Size], device: str) -> Tensor:
    """Return the sums of a part, those of several tensors beside each other: fp32 [elements]; zeros if it has none."""
    totals = [tree.total() for tree in trees]
    return torch.cat(
        [
            torch.zeros(shape.numel(), device=device) if total is None else total.reshape(-1)
            for total, shape in zip(totals, shapes, strict=True)
        ]
    )


def native_sum(ranks: Ranks, own: Tensor) -> Tensor:
    """Return the sum over ranks as the library adds them, equal on all ranks; `own` [elements] is written over."""
    dist.all_reduce(own, group=ranks.group)
    return own


def buckets(sizes: Sequence[int], max_elements: int = BUCKET_ELEMENTS) -> Iterator[range]:
    """Divide tensors of these sizes, in their order, into runs of at most `max_elements`; a larger one stands alone."""
    bucket_of, filled, number = [], 0, 0
    for size in sizes:
        if filled and filled + size > max_elements:
            filled, number = 0, number + 1
        filled += size
        bucket_of.append(number)
    for _, indices in groupby(range(len(sizes)), key=bucket_of.__getitem__):
        members = list(indices)
        yield range(members[0], members[-1] + 1)
