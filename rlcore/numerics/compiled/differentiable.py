"""What a model calls: the operations, with their gradients where one is asked for."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlcore.errors import InvalidValueError
from rlcore.numerics.compiled import layers, operations
from rlcore.numerics.layer_weights import LayerWeights


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y, inverse = operations.rms_norm(x, weight, eps)
        ctx.save_for_backward(x, weight, inverse)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return *operations.rms_norm_backward(grad.contiguous(), None, *ctx.saved_tensors), None


class _AddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total, y, inverse = operations.add_rms_norm(x, added, weight, eps)
        ctx.save_for_backward(total, weight, inverse)
        return total, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        made = operations.rms_norm_backward(grad.contiguous(), above.contiguous(), *ctx.saved_tensors)
        return made[0], made[0], made[1], None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return operations.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        d_x, d_weight, d_bias = operations.linear_backward(grad.contiguous(), *ctx.saved_tensors)
        return d_x, d_weight, d_bias if ctx.has_bias else None


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, by: "Meeting", *weights: Tensor | None) -> Tensor:
        y, kept = layers.layer(x, weights, **by._asdict())
        ctx.save_for_backward(x, kept, *weights)
        ctx.by = by
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, kept, *weights = ctx.saved_tensors
        d_x, *made = layers.layer_backward(grad.contiguous(), x, kept, weights, **ctx.by._asdict())
        given = iter(made)
        return d_x, None, *(None if weight is None else next(given) for weight in weights)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return operations.swiglu(gate_up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return operations.swiglu_backward(grad.contiguous(), *ctx.saved_tensors)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, q_norm: Tensor | None, k_norm: Tensor | None, *by: Any) -> Tensor:
        eps, turns, num_kv_heads = by
        mixed, softmax = operations.attend(heads, num_kv_heads, q_norm=q_norm, k_norm=k_norm, eps=eps, turns=turns)
        ctx.save_for_backward(heads, mixed, softmax, q_norm, k_norm, turns)
        ctx.eps = eps
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *made, q_norm, k_norm, turns = ctx.saved_tensors
        by = {"q_norm": q_norm, "k_norm": k_norm, "eps": ctx.eps, "turns": turns}
        found = operations.attend_backward(grad.contiguous(), *made, **by)
        return *(found if q_norm is not None else (found[0], None, None)), None, None, None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `rlcore.numerics.norms.rms_norm`, x and weight [width] fp32. Raises ShapeError."""
    if not torch.is_grad_enabled():
        return operations.rms_norm(x, weight, eps)[0]
    y: Tensor = _RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return y


def add_rms_norm(x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As `rlcore.numerics.norms.add_rms_norm`, fp32. Raises ShapeError."""
    if not torch.is_grad_enabled():
        return operations.add_rms_norm(x, added, weight, eps)[:2]
    y: tuple[Tensor, Tensor] = _AddRMSNorm.apply(x, added, weight, eps)  # type: ignore[no-untyped-call]
    return y


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As `rlcore.numerics.linear.linear`, fp32. Raises ShapeError."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()  # one position of several is a view whose rows lie apart
    if torch.is_grad_enabled():
        y: Tensor = _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    else:
        y = operations.linear(rows, weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])


def swiglu(gate_up: Tensor) -> Tensor:
    """As `rlcore.numerics.activations.swiglu`, fp32. Raises ShapeError."""
    if not torch.is_grad_enabled():
        return operations.swiglu(gate_up)
    y: Tensor = _SwiGLU.apply(gate_up)  # type: ignore[no-untyped-call]
    return y


class Turned(NamedTuple):
    """Operations on queries and keys before attention, field by field the arguments of `operations`."""

    q_norm: Tensor | None
    """fp32 [width] each, or None: heads are not normalised."""
    k_norm: Tensor | None
    eps: float
    turns: Tensor
    """fp32 [positions, 2 * width]: cosines of each position, then sines, those of the first half negative."""


def attend(heads: Tensor, by: Turned, num_kv_heads: int) -> Tensor:
    """Causal attention of a pass: heads [batch, length, all, width] -> [batch, length, num_heads, width].

    Of all, queries come first, then `num_kv_heads` keys, then as many values. Raises ShapeError.
    """
    if torch.is_grad_enabled():
        given = heads, by.q_norm, by.k_norm, by.eps, by.turns, num_kv_heads
        y: Tensor = _Attend.apply(*given)  # type: ignore[no-untyped-call]
        return y
    return operations.attend(heads, num_kv_heads, **by._asdict())[0]


def attend_cached(heads: Tensor, by: Turned, starts: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The same for positions that follow `starts` int64 [batch] of a cache, into which they are written; no gradient.

    keys [batch, kv_heads, width, capacity], values [batch, kv_heads, capacity, width], the capacity a multiple of 16.
    Raises ShapeError, and InvalidValueError where they do not fit.
    """
    _check_no_gradient(heads, by.q_norm, by.k_norm)
    return operations.attend_cached(heads, starts, keys=keys, values=values, **by._asdict())


class Meeting(NamedTuple):
    """Attention settings of a layer, field by field the arguments of `layers`."""

    turns: Tensor
    """As `Turned.turns`."""
    num_heads: int
    num_kv_heads: int
    eps: float
    """Of every norm."""


class Cached(NamedTuple):
    """A layer's cache, and how much of it there is."""

    starts: Tensor
    """int64 [batch]: positions before the first that is given."""
    keys: Tensor
    """[batch, kv_heads, width, capacity], values the other way."""
    values: Tensor


def layer(x: Tensor, weights: LayerWeights, by: Meeting) -> Tensor:
    """The stream [batch, length, width] of a pass after a layer. Raises ShapeError."""
    if not torch.is_grad_enabled():
        return layers.layer_unkept(x, weights, **by._asdict())
    y: Tensor = _Layer.apply(x, by, *weights)  # type: ignore[no-untyped-call]
    return y


def layer_cached(x: Tensor, weights: LayerWeights, by: Meeting, cache: Cached) -> Tensor:
    """The same after a cache, as `attend_cached` has it. Raises ShapeError, and InvalidValueError."""
    _check_no_gradient(x, *weights)
    return layers.layer_cached(x, *cache, weights, turns=by.turns, num_heads=by.num_heads, eps=by.eps)


def _check_no_gradient(*given: Tensor | None) -> None:
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given):
        raise InvalidValueError(
            "a gradient through a cache", legal="none", remedy="torch.no_grad(), or a pass: Decoder.hidden"
        )
