"""Gradients of lanes, their sum in one tree, the clip and the optimizer's step.

    workers, each its lanes ──backward──▶ a flat gradient a lane ──TreeSum──▶ one ──clip──▶ AdamW

Nothing here depends on who computed which lane, nor when.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlcore.batching.microbatches import Lane
from rlcore.checks.update_checks import check_clipped, check_no_gradient, check_stepped, num_steps_of
from rlcore.config import OptimizerSection
from rlcore.errors import NonFiniteError
from rlcore.numerics.tree_sum import TreeSum
from rlcore.trace import Recorder


class LanePart(NamedTuple):
    """What a lane adds to the loss, and what is told of it."""

    loss: Tensor
    """A scalar: the lane's share of the batch's loss."""
    seen: dict[str, Tensor]
    """Detached, [samples, positions]: what is recorded of the pass."""
    loss_mask: Tensor
    """Where that means something."""


class Gradient(NamedTuple):
    """The gradient of a batch."""

    flat: Tensor
    """fp32, all parameters one after another."""
    parts: tuple[LanePart, ...]
    """In the order of lanes."""


LossOf = Callable[[Lane], LanePart]


@dataclass(frozen=True, slots=True)
class Learner:
    """A model and what moves its weights."""

    name: str
    """In records and checkpoints: policy, critic."""
    model: nn.Module
    optimizer: torch.optim.AdamW
    peak_rate: float
    """The learning rate before its schedule."""


def gradient(model: nn.Module, workers: Sequence[Sequence[Lane]], loss_of: LossOf) -> Gradient:
    """The sum of the lanes' gradients; each worker adds what is whole in its hands.

    Raises NonFiniteError, StepError.
    """
    num_lanes = sum(map(len, workers))
    tree = TreeSum(num_lanes)
    parts: dict[int, LanePart] = {}
    parameters = list(model.parameters())
    for lanes in workers:
        own = TreeSum(num_lanes)
        for lane in lanes:
            check_no_gradient(parameters)
            part = loss_of(lane)
            _check_loss(part.loss, lane)
            part.loss.backward()  # type: ignore[no-untyped-call]
            own.add(lane.number, _taken(parameters))
            parts[lane.number] = part._replace(loss=part.loss.detach())
        tree.absorb(own)
    total = tree.total()
    assert total is not None
    return Gradient(total, tuple(parts[number] for number in sorted(parts)))


def step_optimizer(
    learner: Learner, flat: Tensor, *, learning_rate: float, max_norm: float | None, recorder: Recorder
) -> float:
    """Clip, step, and return the norm before clipping.

    Raises NonFiniteError naming the first gradient that is not finite, and StepError for a parameter that has not
    been moved once.
    """
    named = list(learner.model.named_parameters())
    pieces = torch.split(flat, [parameter.numel() for _, parameter in named])
    grads = [piece.view_as(p).to(p.dtype) for (_, p), piece in zip(named, pieces, strict=True)]
    for (name, parameter), grad in zip(named, grads, strict=True):
        parameter.grad = grad
        recorder.record("backward", f"{learner.name}.{name}", grad)
    norm = global_norm(grads)
    if not math.isfinite(norm):
        raise NonFiniteError(
            _first_non_finite(named),
            remedy="a lower learning rate, or replay this step operation by operation",
            phases=("backward",),
        )
    if max_norm is not None and norm > max_norm:
        as_it_was = grads[-1].clone()
        torch._foreach_mul_(grads, max_norm / norm)
        check_clipped(as_it_was, grads[-1], max_norm / norm)
    for group in learner.optimizer.param_groups:
        group["lr"] = learning_rate
    num_steps_before = num_steps_of(learner.optimizer)
    learner.optimizer.step()
    check_stepped(learner.model, learner.optimizer, num_steps_before)
    learner.optimizer.zero_grad(set_to_none=True)
    _record_state(learner, recorder)
    return norm


def _record_state(learner: Learner, recorder: Recorder) -> None:
    for name, parameter in learner.model.named_parameters():
        recorder.record("optimizer", f"{learner.name}.{name}", parameter.detach())
        for kind, value in sorted(learner.optimizer.state[parameter].items()):
            recorder.record("optimizer", f"{learner.name}.{name}.{kind}", value)


def adamw(model: nn.Module, section: OptimizerSection, learning_rate: float) -> torch.optim.AdamW:
    """torch's foreach implementation, by name: the fused one has other bits, and other bits when sharded."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=learning_rate,
        betas=(section.beta1, section.beta2),
        eps=section.eps,
        weight_decay=section.weight_decay,
        foreach=True,
    )


def global_norm(gradients: Iterable[Tensor]) -> float:
    """The 2-norm of all of them: rows summed in fp64 one by one, their sums added without rounding.

    torch's own sum of a whole tensor is cut by how many threads there are.
    """
    rows = [g.double().square().reshape(-1, g.shape[-1] if g.dim() else 1).sum(-1) for g in gradients]
    return math.sqrt(math.fsum(torch.cat(rows).tolist())) if rows else 0.0


def _taken(parameters: Sequence[nn.Parameter]) -> Tensor:
    """The gradients that are there, flat and in fp32; each is let go as soon as it has been copied."""
    sizes = [parameter.numel() for parameter in parameters]
    flat = parameters[0].new_empty(sum(sizes), dtype=torch.float32)
    for parameter, piece in zip(parameters, torch.split(flat, sizes), strict=True):
        if parameter.grad is None:
            piece.zero_()
        else:
            piece.copy_(parameter.grad.flatten())
            parameter.grad = None
    return flat.detach()


def _check_loss(loss: Tensor, lane: Lane) -> None:
    if not math.isfinite(float(loss.detach())):
        raise NonFiniteError(
            f"the loss of lane {lane.number} is {float(loss.detach())} (samples {list(lane.samples)})",
            remedy="a lower learning rate; rlharness replay --step K --op names the first operation",
            phases=("loss",),
        )


def _first_non_finite(named: Iterable[tuple[str, nn.Parameter]]) -> str:
    for name, parameter in named:
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            place = torch.nonzero(~parameter.grad.isfinite())[0].tolist()
            return f"the gradient of {name} is {float(parameter.grad[tuple(place)])} at {place}"
    return "the norm of the gradients is above the largest number"
