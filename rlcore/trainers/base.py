"""What a trainer is: it turns microbatches into an update of one model's weights."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from rlcore.data.microbatches import Microbatch
from rlcore.weights.source import WeightSource


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
Reading = Callable[[nn.Module, Microbatch], Tensor]
"""Reads a microbatch by a model, without a gradient: [samples, length - first]. It can be pickled too."""


class TrainerState(NamedTuple):
    """What a trainer needs to continue to the bit."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    """Optimizer state as "PARAMETER.KIND"."""


class Reader(Protocol):
    """Reads microbatches by the weights of one model."""

    @property
    def name(self) -> str:
        """Name of the model in records and checkpoints: policy, critic, reference."""

    def read(self, microbatches: Sequence[Microbatch], reading: Reading) -> list[Tensor]:
        """Read microbatches without a gradient; return what was read, in their order."""

    def weights(self) -> WeightSource:
        """Return the weights as they are now."""

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights into the model. Raises CheckpointError if they are of other parameters."""

    def rest(self, directory: Path | None) -> None:
        """Leave the device for files in a directory, or for the host's memory, until the model is used again.

        Raises InvalidValueError for a model that has a gradient, OSError if the disk is full; the next use raises
        PlacementError if a bit has changed.
        """


class Trainer(Reader, Protocol):
    """Trains the weights of one model."""

    @property
    def peak_rate(self) -> float:
        """Learning rate before its schedule."""

    def forward_backward(
        self, microbatches: Sequence[Microbatch], loss: Loss, *, num_microbatches: int | None = None
    ) -> tuple[MicrobatchLoss, ...]:
        """Compute the gradient of the sum of the microbatches' losses; return these in the order of microbatches.

        `num_microbatches` is the number over all ranks, and in the canonical tree; None if these are all. Raises
        NonFiniteError.
        """

    def optimizer_step(self, *, learning_rate: float, max_norm: float | None) -> float:
        """Clip the gradient, move the weights once, and return the gradient's norm before clipping.

        Raises NonFiniteError.
        """

    def gradient_digest(self) -> str:
        """Return the digest of the gradient of all parameters, between a backward pass and the step that uses it."""

    def optimizer_digest(self) -> str:
        """Return the digest of all that the optimizer keeps."""

    def restart_optimizer(self) -> None:
        """Forget all that the optimizer has seen."""

    @property
    def has_shards(self) -> bool:
        """Whether several ranks have the state: they write and read a checkpoint of it together."""

    def write_state(self, path: Path) -> None:
        """Write the state into a directory that exists and every rank sees. Raises OSError."""

    def read_state(self, path: Path) -> None:
        """Load what `write_state` has written, by any number of ranks. Raises CheckpointError."""

    def save(self) -> TrainerState:
        """Return the live state, not copied."""

    def load(self, state: TrainerState) -> None:
        """Copy a state into the model and its optimizer. Raises CheckpointError if it is of other parameters."""
