"""The trainer within a process: gradients of microbatches, their sum in one tree per parameter, clip, optimizer step.

    workers, each its microbatches ──backward──▶ gradients ──GradientSum──▶ one per parameter ──clip──▶ AdamW

Nothing here depends on which worker computed which microbatch, nor when. Workers are simulated: they compute one after
another.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from rlcore.checkpoints.optimizer_state import optimizer_tensors, restore_optimizer
from rlcore.config import OptimizerSection, RuntimeSection
from rlcore.data.microbatches import Microbatch, divide_among_workers
from rlcore.errors import NonFiniteError
from rlcore.numerics.probe import num_threads
from rlcore.numerics.tree_sum import TreeSum
from rlcore.observability.events import (
    BackwardBegins,
    ClipBegins,
    Clipped,
    GradientsReduced,
    GradientsSummed,
    OptimizerStepBegins,
    PassBegins,
    WeightsMove,
    WeightsMoved,
)
from rlcore.observability.observers import Observers
from rlcore.trainers.base import Loss, MicrobatchLoss, Reading, TrainerState
from rlcore.weights.digests import flat_digest, weights_digest
from rlcore.weights.source import LiveWeights

if TYPE_CHECKING:
    from rlcore.distributed.offload import OffloadedState


class LocalTrainer:
    """Trains a model of this process."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        peak_rate: float,
        *,
        section: OptimizerSection,
        runtime: RuntimeSection,
        observers: Observers,
    ) -> None:
        self.name = name
        """Name of the model in records and checkpoints: policy, critic."""
        self.model = model
        self.optimizer = build_adamw(model, section, peak_rate)
        self.peak_rate = peak_rate
        """Learning rate before its schedule."""
        self.gradients: list[Tensor] | None = None
        """Sum of the microbatches' gradients by parameter, fp32, from a backward pass to the step that uses it."""
        self._away: OffloadedState | None = None
        self._section = section
        self._runtime = runtime
        self._observers = observers

    def forward_backward(
        self, microbatches: Sequence[Microbatch], loss: Loss, *, num_microbatches: int | None = None
    ) -> tuple[MicrobatchLoss, ...]:
        """Compute the gradient of the sum of the microbatches' losses; return these in the order of microbatches.

        Each worker adds what lies whole in its hands. Raises NonFiniteError.
        """
        self._wake()
        parameters, num_values = list(self.model.parameters()), num_microbatches or len(microbatches)
        found: dict[int, MicrobatchLoss] = {}
        with num_threads(self._runtime.training_threads, "forward", "loss", "backward"):
            total = GradientSum(parameters, num_values)
            for own_microbatches in divide_among_workers(microbatches, self._runtime.world_size):
                own = GradientSum(parameters, num_values)
                for microbatch in own_microbatches:
                    self._observers.emit(PassBegins(parameters))
                    part = loss(self.model, microbatch)
                    check_loss(part.loss, microbatch)
                    self._observers.emit(BackwardBegins(self.name, parameters, part.loss))
                    with own.collecting(microbatch.number):
                        part.loss.backward()  # type: ignore[no-untyped-call]
                    found[microbatch.number] = part._replace(loss=part.loss.detach())
                total.absorb(own)
            self.gradients = total.total()
            self._observers.emit(GradientsSummed(self.name, self.gradients))
        return tuple(found[number] for number in sorted(found))

    def optimizer_step(self, *, learning_rate: float, max_norm: float | None) -> float:
        """Clip the gradient, move the weights once, and return the gradient's norm before clipping.

        Raises NonFiniteError naming the first gradient that is not finite.
        """
        assert self.gradients is not None, "forward_backward comes first"
        self._observers.emit(OptimizerStepBegins(self.optimizer, self._section))
        named = list(self.model.named_parameters())
        gradients = [gradient.to(p.dtype) for (_, p), gradient in zip(named, self.gradients, strict=True)]
        self.gradients = None
        for (_, parameter), gradient in zip(named, gradients, strict=True):
            parameter.grad = gradient
        with num_threads(self._runtime.training_threads, "optimizer"):
            by_name = dict(zip((name for name, _ in named), gradients, strict=True))
            self._observers.emit(GradientsReduced(self.name, by_name))
            norm = self._norm(gradients)
            if not math.isfinite(norm):
                raise NonFiniteError(
                    self._first_non_finite(named),
                    remedy="a lower learning rate, or replay this step operation by operation",
                    phases=("backward",),
                )
            if max_norm is not None and norm > max_norm:
                own = list(self._own_memory(gradients))
                self._observers.emit(ClipBegins(own))
                torch._foreach_mul_(own, max_norm / norm)
                self._observers.emit(Clipped(own, max_norm / norm, max_norm))
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self._observers.emit(WeightsMove(self.optimizer, learning_rate))
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self._observers.emit(WeightsMoved(self.name, self.model, self.optimizer))
        return norm

    def read(self, microbatches: Sequence[Microbatch], reading: Reading) -> list[Tensor]:
        """Read microbatches without a gradient; return what was read, in their order."""
        self._wake()
        with torch.no_grad(), num_threads(self._runtime.training_threads, "reference"):
            return [reading(self.model, microbatch) for microbatch in microbatches]

    def gradient_digest(self) -> str:
        """Return the digest of the gradient of all parameters, between a backward pass and the step that uses it.

        It is that of one flat fp32 tensor, which is not made.
        """
        assert self.gradients is not None, "forward_backward comes first"
        return flat_digest(self.gradients)

    def optimizer_digest(self) -> str:
        """Return the digest of all that the optimizer keeps."""
        self._wake()
        return weights_digest(optimizer_tensors(self.optimizer, self.model.named_parameters()))

    def restart_optimizer(self) -> None:
        """Forget all that the optimizer has seen."""
        self._wake()
        self.optimizer = build_adamw(self.model, self._section, self.peak_rate)

    def weights(self) -> LiveWeights:
        """Return the live weights."""
        self._wake()
        return LiveWeights(self.model)

    def save(self) -> TrainerState:
        """Return the live state, not copied."""
        self._wake()
        weights = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        return TrainerState(weights, optimizer_tensors(self.optimizer, self.model.named_parameters()))

    @property
    def has_shards(self) -> bool:
        """Whether several ranks have the state."""
        return False

    def write_state(self, path: Path) -> None:
        """Write the state into a directory that exists. Raises OSError."""
        from rlcore.checkpoints.state_shards import write_state  # with torch.distributed, whose import takes seconds

        write_state(path, self.save(), None)

    def read_state(self, path: Path) -> None:
        """Load what `write_state` has written, by any number of ranks. Raises CheckpointError."""
        from rlcore.checkpoints.state_shards import read_state

        self.load(read_state(path, dict(self.model.named_parameters()), None))

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights into the model."""
        self._wake()
        self.model.load_state_dict(weights)

    def load(self, state: TrainerState) -> None:
        """Copy a state into the model and its optimizer. Raises CheckpointError if it is of other parameters."""
        self.load_weights(state.weights)
        restore_optimizer(self.optimizer, self.model.named_parameters(), state.optimizer)

    def rest(self, directory: Path | None) -> None:
        """Leave the device for files in a directory, or for the host's memory, until the model is used again.

        Raises InvalidValueError for a model that has a gradient, OSError if the disk is full; the next use raises
        PlacementError if a bit has changed.
        """
        from rlcore.distributed.offload import offload  # with torch.distributed, whose import takes seconds

        if self._away is None:
            self._away = offload(self.model, self.optimizer, directory=directory)

    def _wake(self) -> None:
        """Come back to the device, before the model is used."""
        if self._away is not None:
            self._away.wake()
            self._away = None

    def _norm(self, gradients: Sequence[Tensor]) -> float:
        """Return the norm of the gradients of all parameters."""
        return global_norm(gradients)

    def _own_memory(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return what of the gradients is in this process."""
        return gradients

    def _first_non_finite(self, named: Sequence[tuple[str, nn.Parameter]]) -> str:
        """Describe the first element of a gradient that is not finite."""
        return describe_non_finite(first_non_finite(named))


class NonFinite(NamedTuple):
    """An element of a gradient that is not finite."""

    name: str
    """Name of its parameter."""
    value: float
    place: tuple[int, ...]
    """Its index."""


class GradientSum:
    """The sum of the gradients of microbatches, in a canonical tree for each parameter."""

    def __init__(self, parameters: Sequence[nn.Parameter], num_microbatches: int) -> None:
        self._parameters = parameters
        self._trees = [TreeSum(num_microbatches) for _ in parameters]

    @contextmanager
    def collecting(self, number: int) -> Iterator[None]:
        """Add each gradient of a microbatch as soon as the backward pass inside has made it; zeros if it makes none.

        No gradient waits for those of other parameters: beside the sums there is memory for one of them.
        """
        missing = dict(enumerate(self._parameters))

        def add(index: int, parameter: Tensor) -> None:
            self._trees[index].add(number, take_gradient(parameter))
            del missing[index]

        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(add, index))  # type: ignore[no-untyped-call]
            for index, parameter in missing.items()
            if parameter.requires_grad
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        for index, parameter in list(missing.items()):
            add(index, parameter)

    def absorb(self, other: "GradientSum") -> None:
        """Add the gradients that another worker has summed."""
        for tree, others in zip(self._trees, other._trees, strict=True):
            tree.absorb(others)

    def take(self, index: int) -> TreeSum:
        """Take a parameter's tree off the sum, which does not hold its memory any longer."""
        taken, self._trees[index] = self._trees[index], TreeSum(1)
        return taken

    def total(self) -> list[Tensor]:
        """Return the sum for each parameter."""
        totals = [tree.total() for tree in self._trees]
        return [total for total in totals if total is not None]


def take_gradient(parameter: Tensor) -> Tensor:
    """Take the gradient off its parameter, in fp32; zeros if there is none. An fp32 gradient is not copied."""
    gradient, parameter.grad = parameter.grad, None
    if gradient is None:
        return torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
    return gradient.to(torch.float32)


def build_adamw(model: nn.Module, section: OptimizerSection, learning_rate: float) -> torch.optim.AdamW:
    """Build torch's foreach implementation, by name: the fused one has different bits, also if it is sharded."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=learning_rate,
        betas=(section.beta1, section.beta2),
        eps=section.eps,
        weight_decay=section.weight_decay,
        foreach=True,
    )


def global_norm(gradients: Iterable[Tensor]) -> float:
    """Return the 2-norm of all gradients: rows summed in fp64 one by one, their sums added without rounding.

    torch's own sum of a whole tensor depends on the number of threads.
    """
    rows = [squared_rows(gradient) for gradient in gradients]
    return math.sqrt(math.fsum(torch.cat(rows).tolist())) if rows else 0.0


def squared_rows(gradient: Tensor) -> Tensor:
    """Return the sum of squares of each row, fp64; a vector is one row."""
    return gradient.double().square().reshape(-1, gradient.shape[-1] if gradient.dim() else 1).sum(-1)


def check_loss(loss: Tensor, microbatch: Microbatch) -> None:
    """Check that a microbatch's loss is finite; raises NonFiniteError that names its samples."""
    if not math.isfinite(float(loss.detach())):
        raise NonFiniteError(
            f"the loss of fixed microbatch {microbatch.number} is {float(loss.detach())}"
            f" (samples {list(microbatch.samples)})",
            remedy="a lower learning rate; rlharness reproduce RUN --step K --trace-ops names the first operation",
            phases=("loss",),
        )


def first_non_finite(named: Iterable[tuple[str, nn.Parameter]]) -> NonFinite | None:
    """Return the first element of the parameters' gradients that is not finite; None if all are."""
    for name, parameter in named:
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            index = tuple(torch.nonzero(~parameter.grad.isfinite())[0].tolist())
            return NonFinite(name, float(parameter.grad[index]), index)
    return None


def describe_non_finite(found: NonFinite | None) -> str:
    """Return the sentence of an error."""
    if found is None:
        return "the norm of the gradients is above the largest number"
    return f"the gradient of {found.name} is {found.value} at {list(found.place)}"
