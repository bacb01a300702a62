"""The trainer of a rank that holds all weights: gradients are summed over ranks once an update, then every rank steps.

    own microbatches ──backward──▶ own subtrees ──sum over ranks──▶ one gradient, equal on all ranks ──▶ clip, AdamW

Every rank calls every method. Between two sums no rank waits for another: ranks may have any number of microbatches,
or none.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rlcore.data.microbatches import Microbatch
from rlcore.errors import NonFiniteError
from rlcore.numerics.probe import num_threads
from rlcore.observability.events import PassBegins
from rlcore.trainers.assignment import Assignment, agree_on_assignment, agree_on_failure
from rlcore.trainers.base import Loss, MicrobatchLoss
from rlcore.trainers.local import GradientSum, LocalTrainer, check_loss
from rlcore.trainers.ranks import Ranks
from rlcore.trainers.reductions import bucket_width, buckets, canonical_sum, flat_nodes, native_sum, total_row


class DataParallelTrainer(LocalTrainer):
    """Trains a copy of the model on each rank; the copies stay bitwise equal."""

    def __init__(self, local: LocalTrainer, ranks: Ranks, *, is_canonical: bool) -> None:
        """Train the model of `local`, which must be bitwise equal on all ranks and is used no more.

        `is_canonical` sums in the canonical tree, to the bits of one process; without it the library sums, to bits
        that depend on the number of ranks.
        """
        super().__init__(
            local.name,
            local.model,
            local.peak_rate,
            section=local._section,
            runtime=local._runtime,
            observers=local._observers,
        )
        self.ranks = ranks
        self.is_canonical = is_canonical

    def forward_backward(
        self, microbatches: Sequence[Microbatch], loss: Loss, *, num_microbatches: int | None = None
    ) -> tuple[MicrobatchLoss, ...]:
        """Compute the gradient of the sum of all ranks' losses; return this rank's in the order of microbatches.

        `num_microbatches` is the number over all ranks, None for as many as this rank has. Raises NonFiniteError on
        every rank if a loss is not finite, InvalidValueError on every rank if ranks do not agree.
        """
        self._wake()
        own = sorted(microbatches, key=lambda each: each.number)
        expected = len(own) if num_microbatches is None else num_microbatches
        assignment = agree_on_assignment(self.ranks, [each.number for each in own], expected)
        with num_threads(self._runtime.training_threads, "forward", "loss", "backward"):
            total = GradientSum(list(self.model.parameters()), self._num_values(assignment, len(own)))
            found = self._passes(own, loss, total)
            self.gradients = list(self._sums(total, assignment))
        return found

    def _num_values(self, assignment: Assignment, num_own: int) -> int:
        """Values of the tree of this rank: those of the canonical one, or its own alone, which need less memory."""
        return assignment.num_microbatches if self.is_canonical else max(1, num_own)

    def _passes(self, microbatches: Sequence[Microbatch], loss: Loss, total: GradientSum) -> tuple[MicrobatchLoss, ...]:
        """Compute the losses and gradients of this rank; raises NonFiniteError on every rank."""
        parameters, found = list(self.model.parameters()), []
        failed: tuple[int, NonFiniteError] | None = None
        for place, microbatch in enumerate(microbatches):
            self._observers.emit(PassBegins(parameters))
            part = loss(self.model, microbatch)
            try:
                check_loss(part.loss, microbatch)
            except NonFiniteError as error:
                failed = microbatch.number, error
                break
            with total.collecting(microbatch.number if self.is_canonical else place):
                part.loss.backward()  # type: ignore[no-untyped-call]
            found.append(part._replace(loss=part.loss.detach()))
        agree_on_failure(self.ranks, failed)
        return tuple(found)

    def _sums(self, own: GradientSum, assignment: Assignment) -> Iterator[Tensor]:
        """Yield the sum over ranks for each parameter, fp32; the own sums of a bucket are freed as it goes."""
        parameters = list(self.model.parameters())
        for bucket in buckets([parameter.numel() for parameter in parameters], bucket_width(assignment)):
            trees = [own.take(index) for index in bucket]
            shapes = [parameters[index].shape for index in bucket]
            if self.is_canonical:
                num_elements = sum(shape.numel() for shape in shapes)
                flat = canonical_sum(self.ranks, assignment, flat_nodes(trees), num_elements)
            else:
                flat = native_sum(self.ranks, total_row(trees, shapes, self.ranks.device))
            del trees
            for shape, part in zip(shapes, torch.split(flat, [shape.numel() for shape in shapes]), strict=True):
                yield part.view(shape)
