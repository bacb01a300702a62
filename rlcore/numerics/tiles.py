"""The last recipe: every product has one shape, so that no kernel can be chosen by the number of rows.

Attention goes over blocks of keys with a running maximum and sum (Milakov and Gimelshein 2018): a block none of whose
keys is seen leaves both as they are, to the bit, so neither the number of blocks matters.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlcore.numerics.attention import full_pass, heads_as_queries
from rlcore.numerics.linear import in_tiles, padded


class _TiledLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rows = rows
        return torch.cat([tile @ weight.t() for tile in in_tiles(x, rows, 0)])[: x.shape[0]]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        inner = torch.cat([tile @ weight for tile in in_tiles(grad, ctx.rows, 0)])[: x.shape[0]]
        return inner, padded(grad, ctx.rows, 0).t() @ padded(x, ctx.rows, 0), None


@dataclass(frozen=True, slots=True)
class Tiles:
    """Products of `rows` rows each, attention in tiles of `rows` queries by `keys` keys."""

    rows: int = 32
    keys: int = 64
    name: str = "tile32"

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """As `Recipe.linear`."""
        return _TiledLinear.apply(x, weight, self.rows)  # type: ignore[no-untyped-call,no-any-return]

    def attention(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        """As `Recipe.attention`."""
        seen = full_pass(q) if seen is None else seen
        if q.shape[2] == 1:
            rows = heads_as_queries(q, k.shape[1])
            seen = seen.expand(-1, -1, rows.shape[2], -1)
        else:
            rows = q
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        keys, values = in_tiles(k, self.keys, 2), in_tiles(v, self.keys, 2)
        parts = torch.split(padded(padded(seen, self.keys, 3), self.rows, 2), self.rows, 2)
        tiles = zip(in_tiles(rows, self.rows, 2), parts, strict=True)
        y = torch.cat([self._tile(tile, keys, values, torch.split(part, self.keys, 3)) for tile, part in tiles], 2)
        return y[:, :, : rows.shape[2]].reshape(q.shape)

    def _tile(
        self, q: Tensor, keys: tuple[Tensor, ...], values: tuple[Tensor, ...], masks: tuple[Tensor, ...]
    ) -> Tensor:
        """One tile of queries over every block of keys; masks [batch, 1, rows, keys] each."""
        wide = q.float() * q.shape[-1] ** -0.5
        top = torch.full_like(wide[..., :1], torch.finfo(torch.float32).min)
        weight, total = torch.zeros_like(top), torch.zeros_like(wide)
        for key, value, mask in zip(keys, values, masks, strict=True):
            scores = _product(wide, key.float().transpose(-1, -2)).masked_fill(~mask, -torch.inf)
            higher = torch.maximum(top, scores.detach().amax(-1, keepdim=True))
            fade, portions = (top - higher).exp(), (scores - higher).exp()
            weight = weight * fade + portions.sum(-1, keepdim=True)
            total = total * fade + _product(portions, value.float())
            top = higher
        return (total / weight.clamp_min(torch.finfo(torch.float32).tiny)).to(q.dtype)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """[batch, heads, n, k] @ [batch, heads, k, m], a product of its own for each: a batched one may choose by count."""
    pairs = zip(a.flatten(0, 1), b.flatten(0, 1), strict=True)
    return torch.stack([x @ y for x, y in pairs]).view(*a.shape[:2], a.shape[2], b.shape[3])
