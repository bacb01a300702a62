"""Which samples go through the optimizer together, in keyed order, and how their lanes are divided among workers."""

from collections.abc import Iterator

from tensordict import TensorDict

from rlcore.algorithms.aggregation import Denominators
from rlcore.batching.microbatches import Lane, lanes_by_budget, lanes_in_order, of_workers
from rlcore.checks.update_checks import check_epoch, check_kept, kept
from rlcore.config import RunConfig
from rlcore.keys import permutation


class Minibatch:
    """The lanes of one optimizer step, and what its losses are divided by."""

    def __init__(self, batch: TensorDict, samples: list[int], config: RunConfig, level: str) -> None:
        budget = config.perturbation.microbatch_tokens
        if level == "invariant":
            lanes = lanes_in_order(batch, samples, config.training.lane_width, microbatch_tokens=budget)
        else:
            lanes = lanes_by_budget(batch, samples, microbatch_tokens=budget)
        self.workers: list[list[Lane]] = of_workers(lanes, config.perturbation.world_size)
        self.denominators = Denominators(
            num_tokens=int(batch["loss_mask"][samples].sum()),
            num_samples=len(samples),
            horizon=config.sampling.max_tokens,
        )

    @property
    def samples(self) -> list[int]:
        """Rows of the batch that are in its lanes."""
        return [sample for lanes in self.workers for lane in lanes for sample in lane.samples]


def minibatches(batch: TensorDict, config: RunConfig, level: str, step: int) -> Iterator[Minibatch]:
    """Those of a whole step: every sample once an epoch; one minibatch an epoch keeps the canonical order.

    Raises StepError where that is not so, and where the batch is written before the last of them is learned.
    """
    num_samples, num_minibatches = len(batch["tokens"]), config.training.num_minibatches
    as_it_was = kept(batch)
    for epoch in range(config.training.num_epochs):
        order = list(range(num_samples))
        if num_minibatches > 1:
            order = permutation(num_samples, config.seed, "minibatches", step, epoch)
        size = num_samples // num_minibatches
        of_epoch = [
            Minibatch(batch, order[begin : begin + size], config, level) for begin in range(0, num_samples, size)
        ]
        check_epoch((sample for minibatch in of_epoch for sample in minibatch.samples), num_samples)
        for minibatch in of_epoch:
            yield minibatch
            check_kept(batch, as_it_was)
