"""Which samples go through the optimizer together, in keyed order."""

from collections.abc import Iterator

from rlcore.algorithms.aggregation import Denominators
from rlcore.config import RunConfig
from rlcore.data.batch import Batch
from rlcore.data.microbatches import Microbatch, fixed_microbatches, microbatches_by_budget
from rlcore.keys import permutation
from rlcore.observability.events import EpochDivided, LearningBegins, MinibatchLearned
from rlcore.observability.observers import Observers


class Minibatch:
    """The microbatches of one optimizer step, and what its losses are divided by."""

    def __init__(self, batch: Batch, samples: list[int], config: RunConfig, level: str) -> None:
        budget = config.runtime.token_budget
        self.microbatches: list[Microbatch]
        """Microbatches in the order of their numbers."""
        if level == "invariant":
            size = config.training.microbatch_size
            self.microbatches = fixed_microbatches(batch, samples, size, token_budget=budget)
        else:
            self.microbatches = microbatches_by_budget(batch, samples, token_budget=budget)
        self.denominators = Denominators(
            num_tokens=int(batch["loss_mask"][samples].sum()),
            num_samples=len(samples),
            horizon=config.sampling.max_tokens,
        )

    @property
    def samples(self) -> list[int]:
        """Rows of the batch that are in its microbatches."""
        return [sample for microbatch in self.microbatches for sample in microbatch.samples]


def minibatches(batch: Batch, config: RunConfig, level: str, step: int, observers: Observers) -> Iterator[Minibatch]:
    """Yield the minibatches of a step: every sample that has a reward once per epoch, the others never.

    One minibatch per epoch keeps canonical order.
    """
    learned = batch["included"].nonzero().flatten().tolist()
    num_samples, num_minibatches = len(learned), config.training.num_minibatches
    observers.emit(LearningBegins(batch))
    for epoch in range(config.training.num_epochs):
        order = learned
        if num_minibatches > 1:
            order = [learned[at] for at in permutation(num_samples, config.seed, "minibatches", step, epoch)]
        size = -(-num_samples // num_minibatches)  # two-stage rollouts have any number of samples
        of_epoch = [
            Minibatch(batch, order[begin : begin + size], config, level) for begin in range(0, num_samples, size)
        ]
        samples = tuple(sample for minibatch in of_epoch for sample in minibatch.samples)
        observers.emit(EpochDivided(samples))
        for minibatch in of_epoch:
            yield minibatch
            observers.emit(MinibatchLearned(batch))
