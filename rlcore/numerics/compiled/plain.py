"""A decoder layer by plain formulas in fp64, and compiled layers compared with it: values, and every gradient.

The probe compares a kernel with itself, in other batches; a kernel that is wrong everywhere agrees with itself.
"""

from collections.abc import Sequence
from functools import partial
from itertools import cycle

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.errors import LevelError
from rlcore.numerics.cases import Draw, with_gradients
from rlcore.numerics.compiled.cases import compiled_layer, layer_weights
from rlcore.numerics.compiled.differentiable import Meeting
from rlcore.numerics.layer_weights import LayerWeights

TOLERANCE = 1e-3
"""Distance of a result in fp32 from the one in fp64, relative to its norm."""


def plain_layer(by: Meeting, x: Tensor, *weights: Tensor) -> Tensor:
    """Compute a layer [batch, length, width] with all that a family may have, in the type of `x`."""
    of = LayerWeights(*weights)
    normed = _norm(x, of.attention_norm, by.eps)
    heads = F.linear(normed, of.qkv, of.qkv_bias).view(*x.shape[:2], by.num_heads + 2 * by.num_kv_heads, -1)
    q, k, v = heads.split_with_sizes([by.num_heads, by.num_kv_heads, by.num_kv_heads], 2)
    cosines, sines = (part[: x.shape[1], None].to(x.dtype) for part in by.turns.chunk(2, 1))
    assert of.q_norm is not None and of.k_norm is not None
    q, k = (_norm(part, weight, by.eps) for part, weight in ((q, of.q_norm), (k, of.k_norm)))
    q, k = (part * cosines + part.roll(part.shape[-1] // 2, -1) * sines for part in (q, k))
    k, v = (part.repeat_interleave(by.num_heads // by.num_kv_heads, 2) for part in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    is_later = torch.ones(scores.shape[-2:], device=x.device).triu(1).bool()
    attended = torch.einsum("bhij,bjhd->bihd", scores.masked_fill(is_later, -torch.inf).softmax(-1), v)
    x = x + F.linear(attended.flatten(2), of.out)
    gate, up = F.linear(_norm(x, of.mlp_norm, by.eps), of.gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, of.down)


def check_layers(
    draw: Draw, layers: Sequence[tuple[int, int]], heads: Sequence[tuple[int, int, int]], length: int
) -> None:
    """Check compiled layers of each (width, ffn_width) against the plain one; raises LevelError naming the result."""
    for (width, ffn_width), (num_heads, num_kv_heads, head_width) in zip(layers, cycle(heads), strict=False):
        given = draw(2, length, width), *layer_weights(draw, width, ffn_width, (num_heads, num_kv_heads, head_width))
        angles, grad = draw(length, head_width // 2), draw(2, length, width)
        turns = torch.cat((angles.cos(), angles.cos(), -angles.sin(), angles.sin()), -1)
        by = Meeting(turns, num_heads, num_kv_heads, 1e-6)
        found = with_gradients(partial(compiled_layer, by), grad, *given)
        plain = with_gradients(partial(plain_layer, by), grad.double(), *(each.double() for each in given))
        names = ("the result", *(f"the gradient of {name}" for name in ("the stream", *LayerWeights._fields)))
        for name, one, other in zip(names, found, plain, strict=True):
            distance = float((one.double() - other).norm() / other.norm())
            if not distance <= TOLERANCE:
                raise LevelError(
                    f"{name} of a compiled layer, {width} wide, is {distance:.2g} of its norm away from plain formulas"
                    " in fp64",
                    legal=f"at most {TOLERANCE:g}",
                    remedy="model.kernels torch, and report the compiler: rlharness doctor --numerics",
                )


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight
