"""Faults of arithmetic: operations whose bits depend on more than the row, and a machine that was told to round."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.numerics.level import _level
from rlcore.numerics.probe import num_threads
from tests.guards.planted.fault import LEVEL, Probe, fault, honest, replaced

PARTS = 128
READ = ("rollout", "forward")
"""Decoding and a pass give other bits: seen where the trainer's numbers are compared with the sampler's."""


def _at_step(probe: Probe, first: int, deed: Any) -> Iterator[None]:
    """Do something as soon as a step has begun, as a library does that is loaded then."""
    prompts_of = honest("rlcore.recipes.rollout:prompts_of")

    def and_do(state: Any, step: int) -> Any:
        if step == first:
            probe.reached()
            deed()
        return prompts_of(state, step)

    with replaced("rlcore.recipes.rollout:prompts_of", and_do):
        yield


@fault(
    "torch: vectorised silu", "silu's bits depend on where in the tensor a number stands", phases=READ, setting="odd"
)
def silu_by_tail(probe: Probe) -> Iterator[None]:
    swiglu = honest("rlcore.models.decoder:swiglu")

    def whole(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        found = F.silu(gate.contiguous()) * up
        probe.reached(has_effect=not torch.equal(found, swiglu(gate_up)))
        return found

    with replaced("rlcore.models.decoder:swiglu", whole):
        yield


@fault("torchtitan #3498", "products are not padded: a row's bits depend on its batch", phases=READ)
def products_by_batch(probe: Probe) -> Iterator[None]:
    linear = honest("rlcore.models.decoder:linear")

    def plain(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        found = F.linear(x, weight, bias)
        probe.reached(has_effect=not torch.equal(found, linear(x, weight, bias)))
        return found

    with replaced("rlcore.models.decoder:linear", plain):
        yield


@fault("torch: one query", "attention of one query takes another path than a pass", phases=READ)
def attention_by_length(probe: Probe) -> Iterator[None]:
    attention = honest("rlcore.models.decoder:attention")
    plain_attention = honest("rlcore.numerics.attention:plain_attention")

    def plain(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
        found: Tensor = plain_attention(q, k, v, seen)
        probe.reached(has_effect=not torch.equal(found, attention(q, k, v, seen)))
        return found

    with replaced("rlcore.models.decoder:attention", plain):
        yield


@fault("batch_invariant_ops: a switch", "the level is off after a nested use, its flag still on", phases=(LEVEL, *READ))
def level_lost(probe: Probe) -> Iterator[None]:
    yield from _at_step(probe, 1, lambda: _level.set((None, None)))


@fault("libraries built with -Ofast", "numbers below the smallest normal one are flushed", phases=(LEVEL,))
def denormals_flushed(probe: Probe) -> Iterator[None]:
    try:
        yield from _at_step(probe, 1, lambda: torch.set_flush_denormal(True))
    finally:
        torch.set_flush_denormal(False)


@fault("torchtitan: TF32 left on", "products of fp32 are allowed to round their operands", phases=(LEVEL,))
def precision_lowered(probe: Probe) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    try:
        yield from _at_step(probe, 1, lambda: torch.set_float32_matmul_precision("medium"))
    finally:
        torch.set_float32_matmul_precision(before)


class _AddedAtOnce(torch.autograd.Function):
    """Rows of a table, whose gradient is added by several threads in the order in which they come."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, probe: Probe) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.shape, ctx.probe = weight.shape, probe
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        (tokens,) = ctx.saved_tensors
        torch.use_deterministic_algorithms(False)
        try:
            # The first race is over before the second thread has woken up.
            _, again, found = (_raced(tokens, grad, ctx.shape) for _ in range(3))
        finally:
            torch.use_deterministic_algorithms(True)
        ctx.probe.reached(has_effect=not torch.equal(found, again))
        return None, found, None


def _raced(tokens: Tensor, grad: Tensor, shape: torch.Size) -> Tensor:
    """The gradient in PARTS equal parts, so that there is something to race for at this size."""
    total = grad.new_zeros(shape)
    with num_threads(2):
        return total.index_put_((tokens.repeat(PARTS, 1),), grad.repeat(PARTS, 1, 1) / PARTS, accumulate=True)


@fault(
    "torch: index_put_ with atomics",
    "the gradient of an index is added in the order in which threads come",
    phases=("backward",),
    setting="wide",
    leaves=("embedding",),
)
def atomic_index_put(probe: Probe) -> Iterator[None]:
    def indexed(tokens: Tensor, weight: Tensor) -> Tensor:
        if probe.step is None or not weight.requires_grad or not torch.is_grad_enabled():
            return F.embedding(tokens, weight)
        found: Tensor = _AddedAtOnce.apply(tokens, weight, probe)  # type: ignore[no-untyped-call]
        return found

    with replaced("rlcore.models.decoder:embedding", indexed):
        yield


@fault(
    "torch: sums of whole tensors",
    "the gradient's norm is cut by how many threads there are",
    phases=("optimizer",),
    setting="wide",
)
def norm_by_threads(probe: Probe) -> Iterator[None]:
    norm = honest("rlcore.trainers.local:global_norm")

    def whole(gradients: Any) -> float:
        given = list(gradients)
        found = float(torch.cat([gradient.reshape(-1) for gradient in given]).square().sum().sqrt())
        probe.reached(has_effect=found != norm(given))
        return found

    with replaced("rlcore.trainers.local:global_norm", whole):
        yield


FAULTS = (
    silu_by_tail,
    products_by_batch,
    attention_by_length,
    level_lost,
    denormals_flushed,
    precision_lowered,
    atomic_index_put,
    norm_by_threads,
)
