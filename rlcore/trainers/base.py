"""What a trainer is: it turns microbatches into an update of one model's weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from rlcore.batching.microbatches import Microbatch


class MicrobatchLoss(NamedTuple):
    """A microbatch's share of the loss, and what is observed of its pass."""

    loss: Tensor
    """Scalar: the microbatch's share of the minibatch's loss."""
    observed: dict[str, Tensor]
    """Detached values of the pass by name, [samples, positions]."""
    loss_mask: Tensor
    """Positions where the observed values mean something, bool [samples, positions]."""


class Update(NamedTuple):
    """An optimizer step that was made."""

    trainer: str
    norm: float
    """Norm of the gradient, before clipping."""
    learning_rate: float
    losses: tuple[MicrobatchLoss, ...]


Loss = Callable[[nn.Module, Microbatch], MicrobatchLoss]
"""Reads a microbatch by a model, with a gradient. It can be pickled: a partial of a function of a module."""


class TrainerState(NamedTuple):
    """What a trainer needs to continue to the bit."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    """Optimizer state as "PARAMETER.KIND"."""


class Trainer(Protocol):
    """Trains the weights of one model."""

    @property
    def name(self) -> str:
        """Name of the model in records and checkpoints: policy, critic."""

    @property
    def peak_rate(self) -> float:
        """Learning rate before its schedule."""

    def forward_backward(
        self, microbatches: Sequence[Microbatch], loss: Loss, *, num_microbatches: int | None = None
    ) -> tuple[MicrobatchLoss, ...]:
        """Compute the gradient of the sum of the microbatches' losses; return these in the order of microbatches.

        `num_microbatches` is the number over all ranks, and in the canonical tree; None if these are all. Raises NonFiniteError.
        """

    def optimizer_step(self, *, learning_rate: float, max_norm: float | None) -> float:
        """Clip the gradient, move the weights once, and return the gradient's norm before clipping.

        Raises NonFiniteError.
        """

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights tensor by tensor, detached, in the model's order."""

    def save(self) -> TrainerState:
        """Return the live state, not copied."""

    def load(self, state: TrainerState) -> None:
        """Copy a state into the model and its optimizer. Raises CheckpointError if it is of other parameters."""
