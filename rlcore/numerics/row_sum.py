"""Sums over rows, and the two operations whose gradients are such sums, in one order whatever the number of threads."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS_AT_ONCE = 8192
"""Rows folded together: bounds the scratch memory, and is part of what the bits depend on."""


def row_sum(x: Tensor) -> Tensor:
    """Sum over the first dimension by halving: [rows, ...] -> [...], in fp32 and rounded once.

    Every step adds whole halves element by element, so neither the number of threads nor the instruction set can
    choose an order. The number of rows does: that of a fixed microbatch is fixed.
    """
    total: Tensor | None = None
    for chunk in torch.split(x, ROWS_AT_ONCE):
        part = _fold(chunk.to(torch.float32, copy=True))
        total = part if total is None else total + part
    if total is None:
        return torch.zeros(x.shape[1:], dtype=x.dtype, device=x.device)
    return total.to(x.dtype)


def _fold(x: Tensor) -> Tensor:
    """[rows, ...] -> [...]: the upper half onto the lower one until a single row is left; an odd one waits between."""
    num_rows = x.shape[0]
    while num_rows > 1:
        half = (num_rows + 1) // 2
        x[: num_rows - half].add_(x[half:num_rows])
        num_rows = half
    return x[0]


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad * weight, row_sum((grad * x).flatten(0, -2))


class _Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        return x + bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, row_sum(grad.flatten(0, -2))


def scale(x: Tensor, weight: Tensor) -> Tensor:
    """x * weight, [..., width] * [width]; the gradient of the weight is a `row_sum`."""
    return _Scale.apply(x, weight) if torch.is_grad_enabled() else x * weight  # type: ignore[no-untyped-call]


def shift(x: Tensor, bias: Tensor) -> Tensor:
    """x + bias, [..., width] + [width]; the gradient of the bias is a `row_sum`."""
    return _Shift.apply(x, bias) if torch.is_grad_enabled() else x + bias  # type: ignore[no-untyped-call]
