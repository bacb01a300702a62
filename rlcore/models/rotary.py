"""Rotary positions (Su et al. 2021), halves of a head as pairs, in fp32 whatever the model's type."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlcore.models.config import DecoderConfig, RopeScaling

ELEMENTS_AT_ONCE = 16384
"""Below what torch splits among threads: a table's bits must not depend on their number."""


def frequencies(config: DecoderConfig) -> Tensor:
    """Radians a position, for each pair: fp32 [head_width / 2]."""
    exponents = torch.arange(0, config.head_width, 2, dtype=torch.int64).float() / config.head_width
    slow = 1.0 / (config.rope_theta**exponents)
    return _stretched(slow, config.rope_scaling) if config.rope_scaling else slow


def _stretched(rates: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: waves longer than the first length are slowed, short ones kept, those between are blended."""
    turns = scaling.original_max_length * rates / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * rates / scaling.factor + blend * rates


def rotation_table(config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """(cosines, sines) of every position, of one head: fp32 [max_length, head_width] each."""
    rates = frequencies(config)
    rows = max(1, ELEMENTS_AT_ONCE // len(rates))
    angles = [part.float()[:, None] * rates for part in torch.split(torch.arange(config.max_length), rows)]
    cosines, sines = torch.cat([part.cos() for part in angles]), torch.cat([part.sin() for part in angles])
    return torch.cat((cosines, cosines), -1), torch.cat((-sines, sines), -1)


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Products and sums stay apart: a fused one rounds once where the other rounds twice."""
    wide = x.float()
    crossed = wide.roll(wide.shape[-1] // 2, -1).flatten(-2).mul_(sines)
    return (wide.flatten(-2) * cosines).add_(crossed).view(x.shape).to(x.dtype)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        return _rotated(x, cosines, sines)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cosines, sines = ctx.saved_tensors
        return _rotated(grad, cosines, -sines), None, None


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn each pair by its position: x [batch, length, heads, width], the others [..., length, heads * width].

    A pair is (i, i + width / 2); the first half of the sines is negative, and -sines turn back. The others repeat what
    `rotation_table` has for every head: torch multiplies whole rows faster than each head's by the same numbers.
    """
    if not torch.is_grad_enabled():
        return _rotated(x, cosines, sines)
    result: Tensor = _Rotate.apply(x, cosines, sines)  # type: ignore[no-untyped-call]
    return result
