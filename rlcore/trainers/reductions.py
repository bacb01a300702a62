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
"""Elements that a rank sends at once, over all of its sums: never a flat copy of the model."""


def canonical_sum(ranks: Ranks, assignment: Assignment, own: Sequence[Tensor], num_elements: int) -> Tensor:
    """Return the sum over all microbatches, fp32 [elements], equal on all ranks.

    `own` are the sums of this rank's complete subtrees, flat, in the order of `TreeSum.nodes`.
    """
    total = torch.empty(num_elements, device=ranks.device)
    width = bucket_width(assignment)
    for begin in range(0, num_elements, width):
        part = total[begin : begin + width]
        chunk = -(-len(part) // ranks.size)
        found = _scattered_sum(ranks, assignment, [node[begin : begin + width] for node in own], chunk)
        padded = part if len(part) == ranks.size * chunk else part.new_empty(ranks.size * chunk)
        dist.all_gather(list(torch.split(padded, chunk)), found, group=ranks.group)
        if padded is not part:
            part.copy_(padded[: len(part)])
    return total


def bucket_width(assignment: Assignment) -> int:
    """Return how many elements are summed at once: fewer if some rank has many sums of them."""
    most = max(len(complete_subtrees(numbers)) for numbers in assignment.numbers)
    return max(1, BUCKET_ELEMENTS // max(1, most))


def _scattered_sum(ranks: Ranks, assignment: Assignment, own: Sequence[Tensor], chunk: int) -> Tensor:
    """Return this rank's chunk of the sum over all microbatches, padded with zeros."""
    sent = torch.empty(ranks.size, len(own), chunk, device=ranks.device)
    for index, node in enumerate(own):
        missing = ranks.size * chunk - len(node)
        padded = torch.nn.functional.pad(node, (0, missing)) if missing else node
        sent[:, index] = padded.view(ranks.size, chunk)
    places = [complete_subtrees(numbers) for numbers in assignment.numbers]
    counts = [len(each) for each in places]
    received = sent.new_empty(sum(counts), chunk)
    dist.all_to_all_single(received, sent.view(-1, chunk), counts, [len(own)] * ranks.size, group=ranks.group)
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


def flat_nodes(trees: Sequence[TreeSum]) -> list[Tensor]:
    """Return the sums of a part's complete subtrees, those of several tensors beside each other, flat.

    The trees were given the same values. The sums of one tensor are not copied.
    """
    by_node = zip(*([value.reshape(-1) for _, value in tree.nodes()] for tree in trees), strict=True)
    return [values[0] if len(values) == 1 else torch.cat(values) for values in by_node]


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


def buckets(sizes: Sequence[int], max_elements: int) -> Iterator[range]:
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
