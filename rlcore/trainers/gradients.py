"""Gradients of a minibatch: passes over its microbatches, and their sum in one canonical tree for each parameter.

Nothing here depends on who computed which microbatch, nor when.
"""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from harness.bits.tensor_digests import tensor_digests
from rlcore.data.microbatches import Microbatch, divide_among_workers
from rlcore.errors import NonFiniteError
from rlcore.numerics.norms import last_sum
from rlcore.numerics.tree_sum import TreeSum
from rlcore.weights.source import LiveWeights

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class MicrobatchLoss(NamedTuple):
    """A microbatch's share of the loss, and what is observed of its pass."""

    loss: Tensor
    """Scalar: the microbatch's share of the minibatch's loss."""
    observed: dict[str, Tensor]
    """Detached values of the pass by name, [samples, positions]."""
    loss_mask: Tensor
    """Positions where the observed values mean something, bool [samples, positions]."""


Loss = Callable[[nn.Module, Microbatch], MicrobatchLoss]
"""Reads a microbatch by a model, with a gradient. It can be pickled: a partial of a function of a module."""
Reading = Callable[[nn.Module, Microbatch], Tensor]
"""Reads a microbatch by a model, without a gradient: [samples, length - first]. It can be pickled too."""


class OneProcess:
    """Adds up gradients in a process that has all weights and no other ranks; its workers are simulated."""

    group: "ProcessGroup | None" = None

    def __init__(self, model: nn.Module, num_workers: int = 1) -> None:
        self.model, self._num_workers = model, num_workers

    def backward(self, own: Sequence[Microbatch], loss: Loss) -> tuple[tuple[MicrobatchLoss, ...], list[Tensor]]:
        """Make the passes of this rank; return their losses, and the sum of all ranks' gradients by parameter, fp32."""
        parameters, found = [*trained_parameters(self.model).values()], dict[int, MicrobatchLoss]()
        total = GradientSum(parameters, len(own))
        for microbatches in divide_among_workers(own, self._num_workers):
            part = GradientSum(parameters, len(own))
            for microbatch in microbatches:
                computed = loss(self.model, microbatch)
                if failed := non_finite_loss(computed.loss, microbatch):
                    raise failed[1]
                found[microbatch.number] = part.add_pass(microbatch.number, computed)
            total.absorb(part)
        return tuple(found[microbatch.number] for microbatch in own), total.total()

    def read(self, microbatches: Sequence[Microbatch], reading: Reading) -> list[Tensor]:
        """Read microbatches, in their order."""
        return [reading(self.model, microbatch) for microbatch in microbatches]

    def norm(self, gradients: Sequence[Tensor]) -> float:
        """Return the norm of all gradients."""
        return global_norm(gradients)

    def digests(self, named: Mapping[str, Tensor]) -> dict[str, str]:
        """Return the digest of each tensor."""
        return tensor_digests(named)

    def weights(self) -> LiveWeights:
        """Return the weights as they are when they are read."""
        return LiveWeights(self.model)


class GradientSum:
    """The sum of the gradients of microbatches, in a canonical tree for each parameter."""

    def __init__(self, parameters: Sequence[nn.Parameter], num_microbatches: int) -> None:
        self._parameters = parameters
        self.trees = [TreeSum(num_microbatches) for _ in parameters]

    def add_pass(self, number: int, computed: MicrobatchLoss) -> MicrobatchLoss:
        """Add each gradient of a microbatch as soon as the backward pass has made it, zeros if it makes none."""
        missing = dict(enumerate(self._parameters))

        def add(index: int, parameter: Tensor) -> None:
            self.trees[index].add(number, take_gradient(parameter))
            missing.pop(index)

        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(add, index))  # type: ignore[no-untyped-call]
            for index, parameter in missing.items()
            if parameter.requires_grad
        ]
        try:
            computed.loss.backward()  # type: ignore[no-untyped-call]
        finally:
            for hook in hooks:
                hook.remove()
        for index, parameter in list(missing.items()):
            add(index, parameter)
        return computed._replace(loss=computed.loss.detach())

    def absorb(self, other: "GradientSum") -> None:
        """Add the gradients that another worker has summed."""
        for tree, others in zip(self.trees, other.trees, strict=True):
            tree.absorb(others)

    def total(self) -> list[Tensor]:
        """Return the sum for each parameter."""
        totals = [tree.total() for tree in self.trees]
        return [total for total in totals if total is not None]


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that training moves, by name: adapters without their base; all if none is to be moved."""
    named = dict(model.named_parameters())
    return {name: parameter for name, parameter in named.items() if parameter.requires_grad} or named


def take_gradient(parameter: Tensor) -> Tensor:
    """Take the gradient off its parameter, in fp32; zeros if there is none. An fp32 gradient is not copied."""
    gradient, parameter.grad = parameter.grad, None
    if gradient is None:
        return torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
    return gradient.to(torch.float32)


def global_norm(gradients: Iterable[Tensor]) -> float:
    """Return the 2-norm of all gradients: rows summed in fp64 one by one, their sums added without rounding.

    torch's own sum of a whole tensor depends on the number of threads.
    """
    rows = [squared_rows(gradient) for gradient in gradients]
    return math.sqrt(math.fsum(torch.cat(rows).tolist())) if rows else 0.0


def squared_rows(gradient: Tensor) -> Tensor:
    """Return the sum of squares of each row, fp64; a vector is one row."""
    return last_sum(gradient.double().square().reshape(-1, gradient.shape[-1] if gradient.dim() else 1))


def non_finite_loss(loss: Tensor, microbatch: Microbatch) -> tuple[int, NonFiniteError] | None:
    """Return the number of a microbatch whose loss is not finite, and the error; None if it is finite."""
    if math.isfinite(value := float(loss.detach())):
        return None
    return microbatch.number, NonFiniteError(
        f"the loss of fixed microbatch {microbatch.number} is {value} (samples {list(microbatch.samples)})",
        remedy="a lower learning rate; rlharness reproduce RUN --step K --trace-ops names the first operation",
        phases=("loss",),
    )


def non_finite_gradient(gradients: Mapping[str, Tensor]) -> NonFiniteError:
    """Return the error of gradients whose norm is not finite; collective if they are sharded."""
    what = "the norm of the gradients is above the largest number"
    for name, gradient in gradients.items():
        whole = full_tensor(gradient)
        if not bool(whole.isfinite().all()):
            index = tuple(torch.nonzero(~whole.isfinite())[0].tolist())
            what = f"the gradient of {name} is {float(whole[index])} at {list(index)}"
            break
    remedy = "a lower learning rate, or replay this step operation by operation"
    return NonFiniteError(what, remedy=remedy, phases=("backward",))


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process has some rows of a tensor of several ranks."""
    distributed = sys.modules.get("torch.distributed.tensor")  # its import takes seconds, and only shards need it
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def local_part(tensor: Tensor) -> Tensor:
    """Return the rows of this rank, not copied; the tensor itself if it is not sharded."""
    local: Tensor = cast(Any, tensor).to_local() if is_sharded(tensor) else tensor
    return local


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the whole tensor on every rank; collective if it is sharded."""
    full: Tensor = cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor
    return full
