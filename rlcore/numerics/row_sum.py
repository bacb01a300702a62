"""Sums over rows in one order whatever the number of threads, and what a vector has as its gradient: such a sum."""

from functools import reduce
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
    parts = (_fold(chunk.to(torch.float32, copy=True)) for chunk in torch.split(x, ROWS_AT_ONCE))
    return reduce(torch.add, parts).to(x.dtype)


def _fold(x: Tensor) -> Tensor:
    """[rows, ...] -> [...]: the upper half onto the lower one until a single row is left; an odd one waits between."""
    num_rows = x.shape[0]
    while num_rows > 1:
        half = (num_rows + 1) // 2
        x[: num_rows - half].add_(x[half:num_rows])
        num_rows = half
    return x[0]


class _ExpandRows(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, vector: Tensor, shape: torch.Size) -> Tensor:
        return vector.expand(shape)

    @staticmethod
    @once_differentiable
    def backward(_: Any, grad: Tensor) -> tuple[Tensor, None]:
        return row_sum(grad.flatten(0, -2)), None


def expand_rows(vector: Tensor, like: Tensor) -> Tensor:
    """Return [width] as [..., width], the shape of `like`; the gradient of the vector is a `row_sum`."""
    return _ExpandRows.apply(vector, like.shape) if torch.is_grad_enabled() else vector  # type: ignore[no-untyped-call]
