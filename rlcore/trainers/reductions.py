"""Sums of gradients over ranks: in the canonical tree, or as the library adds them.

    own sums ──all-to-all, a chunk per rank──▶ canonical tree of the chunk ──all-gather──▶ the same sum on every rank

The tree is that of `rlcore.numerics.tree_sum`: its bits do not depend on the number of ranks, nor on which of them
computed which microbatch. The library's sum is of fixed order for a fixed number of ranks.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlcore.data.microbatches import Microbatch
from rlcore.numerics.tree_sum import NodePosition, TreeSum, complete_subtrees
from rlcore.trainers.gradients import (
    GradientSum,
    Loss,
    MicrobatchLoss,
    OneProcess,
    full_tensor,
    non_finite_loss,
    trained_parameters,
)
from rlcore.trainers.ranks import Assignment, RankGrid, Ranks, agree, raise_first

BUCKET_ELEMENTS = 1 << 20
"""Elements that a rank sends at once, over all of its sums: never a flat copy of the model."""


class Replicas(OneProcess):
    """Adds up the gradients of ranks that hold all weights each, once an update; no rank waits for another before.

    Ranks may have any number of microbatches, or none.
    """

    def __init__(self, model: nn.Module, grid: RankGrid, *, is_canonical: bool) -> None:
        super().__init__(model)
        self.grid, self.group, self.is_canonical = grid, grid.world.group, is_canonical

    def backward(self, own: Sequence[Microbatch], loss: Loss) -> tuple[tuple[MicrobatchLoss, ...], list[Tensor]]:
        """Make the passes of this rank; return their losses, and the sum of all ranks' gradients by parameter, fp32."""
        assignment = agree(self.grid.world, [each.number for each in own])
        num_values = sum(map(len, assignment)) if self.is_canonical else len(own)
        parameters, found = [*trained_parameters(self.model).values()], []
        total, failed = GradientSum(parameters, num_values), None
        for place, microbatch in enumerate(own):
            computed = loss(self.model, microbatch)
            if failed := non_finite_loss(computed.loss, microbatch):
                break
            found.append(total.add_pass(microbatch.number if self.is_canonical else place, computed))
        raise_first(self.grid.world, failed)
        return tuple(found), list(self._sums(parameters, total, assignment))

    def _sums(self, parameters: Sequence[nn.Parameter], own: GradientSum, assignment: Assignment) -> Iterator[Tensor]:
        """Yield the sum over ranks for each parameter, fp32; the own sums of a bucket are freed as it goes."""
        for bucket in buckets([parameter.numel() for parameter in parameters], bucket_width(assignment)):
            trees, shapes = [own.trees.pop(0) for _ in bucket], [parameters[index].shape for index in bucket]
            sizes = [shape.numel() for shape in shapes]
            if self.is_canonical:
                flat = canonical_sum(self.grid.world, assignment, flat_nodes(trees), sum(sizes))
            else:
                totals = [total.reshape(-1) for tree in trees if (total := tree.total()) is not None]
                flat = torch.cat(totals) if totals else torch.zeros(sum(sizes), device=self.grid.world.device)
                dist.all_reduce(flat, group=self.group)
            del trees
            for shape, part in zip(shapes, torch.split(flat, sizes), strict=True):
                yield part.view(shape)


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
        padded = part.new_empty(ranks.size * chunk)
        dist.all_gather(list(torch.split(padded, chunk)), found, group=ranks.group)
        part.copy_(padded[: len(part)])
    return total


def bucket_width(assignment: Assignment) -> int:
    """Return how many elements are summed at once: fewer if some rank has many sums of them."""
    most = max(len(complete_subtrees(numbers)) for numbers in assignment)
    return max(1, BUCKET_ELEMENTS // max(1, most))


def _scattered_sum(ranks: Ranks, assignment: Assignment, own: Sequence[Tensor], chunk: int) -> Tensor:
    """Return this rank's chunk of the sum over all microbatches, padded with zeros."""
    sent = torch.empty(ranks.size, len(own), chunk, device=ranks.device)
    for index, node in enumerate(own):
        padded = torch.nn.functional.pad(node, (0, ranks.size * chunk - len(node)))
        sent[:, index] = padded.view(ranks.size, chunk)
    places = [complete_subtrees(numbers) for numbers in assignment]
    counts = [len(each) for each in places]
    received = sent.new_empty(sum(counts), chunk)
    dist.all_to_all_single(received, sent.view(-1, chunk), counts, [len(own)] * ranks.size, group=ranks.group)
    return added(sum(map(len, assignment)), places, received)


def added(num_microbatches: int, places: Sequence[Sequence[NodePosition]], rows: Tensor) -> Tensor:
    """Add sums of several parts by the canonical tree: `rows` [subtrees of all parts, elements], written over."""
    total = TreeSum(num_microbatches)
    for place, row in zip(chain(*places), rows, strict=True):
        total.put(place, row)
    found = total.total()
    assert found is not None, "an update has a microbatch"
    return found.contiguous()


def flat_nodes(trees: Sequence[TreeSum]) -> list[Tensor]:
    """Return the sums of a part's complete subtrees, those of several tensors beside each other, flat.

    The trees were given the same values. The sums of one tensor are not copied.
    """
    by_node = zip(*([value.reshape(-1) for _, value in tree.nodes()] for tree in trees), strict=True)
    return [values[0] if len(values) == 1 else torch.cat(values) for values in by_node]


def buckets(sizes: Sequence[int], max_elements: int) -> Iterator[range]:
    """Divide tensors of these sizes, in their order, into runs of at most `max_elements`; a larger one stands alone."""
    begin = filled = 0
    for index, size in enumerate(sizes):
        if filled and filled + size > max_elements:
            yield range(begin, index)
            begin, filled = index, 0
        filled += size
    if sizes:
        yield range(begin, len(sizes))


def owned(named: Iterable[tuple[str, Tensor]], grid: RankGrid) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor whole on one rank only: tensor i on rank i modulo the number of ranks.

    Collective: every rank passes the same names in the same order, and iterates to the end. Beside its shards a rank
    holds one tensor at a time.
    """
    for index, (name, tensor) in enumerate(named):
        found = full_tensor(tensor)
        if index % grid.world.size == grid.world.rank:
            yield name, found
