"""RMSNorm (Zhang and Sennrich 2019) and sums, a row at a time."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlcore.numerics.level import uses_triton
from rlcore.numerics.row_sum import row_sum


def _normalised(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rows of mean square 1 in fp32, what they were multiplied with).

    A norm over the last, contiguous dimension is taken row by row, in one pass. torch's rsqrt is a root and a division,
    both rounded right; its sqrt is not.
    """
    wide = x.float().contiguous()
    norm: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    inverse = norm.square_().div_(wide.shape[-1]).add_(eps).rsqrt_()
    return wide * inverse, inverse


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normal, inverse = _normalised(x, eps)
        ctx.save_for_backward(normal, weight, inverse)
        return normal.to(x.dtype) * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        normal, weight, inverse = ctx.saved_tensors
        slopes = grad.float() * normal
        outer = row_sum(slopes.flatten(0, -1 - weight.dim()))
        along = slopes.mul_(weight).mean(-1, keepdim=True)
        inner = (grad * weight).float().sub_(normal * along).mul_(inverse)
        return inner.to(grad.dtype), outer.to(weight.dtype), None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; fp32 inside.

    x [..., width]; weight [width], or of the last dimensions of x: [heads, width].
    """
    if uses_triton():
        from rlcore.numerics import gpu

        return gpu.rms_norm(x, weight, eps)
    if not torch.is_grad_enabled():
        return _normalised(x, eps)[0].to(x.dtype) * weight
    return _RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call,no-any-return]


def last_sum(x: Tensor) -> Tensor:
    """Sum over the last dimension, row by row: fp32 or fp64 [..., width] -> [...]."""
    if not uses_triton():
        return x.sum(-1)
    from rlcore.numerics import gpu

    return gpu.last_sum(x)
