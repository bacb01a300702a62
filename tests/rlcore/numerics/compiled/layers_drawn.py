"""Whole layers and the parts that they are made of, as tests of the kernels take them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from rlcore.numerics.cases import with_gradients
from rlcore.numerics.compiled.differentiable import (
    Cached,
    Meeting,
    Turned,
    add_rms_norm,
    attend,
    attend_cached,
    layer,
    layer_cached,
    linear,
    rms_norm,
    swiglu,
)
from rlcore.numerics.layer_weights import LayerWeights
from tests.rlcore.numerics.compiled.heads_drawn import EPS, Sizes, drawn

Computed = Callable[[Tensor, LayerWeights, Meeting], Tensor]


def whole(x: Tensor, weights: LayerWeights, by: Meeting, cache: Cached | None = None) -> Tensor:
    """In one call."""
    return layer(x, weights, by) if cache is None else layer_cached(x, weights, by, cache)


def parts(x: Tensor, weights: LayerWeights, by: Meeting, cache: Cached | None = None) -> Tensor:
    """One by one, as `rlcore.models.decoder.Layer` calls them."""
    normed = rms_norm(x, weights.attention_norm, by.eps)
    head_width = by.turns.shape[1] // 2
    heads = linear(normed, weights.qkv, weights.qkv_bias).view(*x.shape[:2], -1, head_width)
    meeting = Turned(weights.q_norm, weights.k_norm, by.eps, by.turns)
    mixed = attend(heads, meeting, by.num_kv_heads) if cache is None else attend_cached(heads, meeting, *cache)
    x, normed = add_rms_norm(x, linear(mixed.flatten(2), weights.out, None), weights.mlp_norm, by.eps)
    return x + linear(swiglu(linear(normed, weights.gate_up, None)), weights.down, None)


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Of a call of a layer."""

    heads: Sizes
    width: int
    ffn_width: int
    has_bias: bool

    @property
    def operations(self) -> float:
        """Of its products, forward: what threads are begun for."""
        heads = self.heads
        rows, all_heads = heads.batch * heads.length, 2 * heads.num_heads + 2 * heads.num_kv_heads
        return 2.0 * rows * self.width * (all_heads * heads.width + 3 * self.ffn_width)

    def stream(self) -> Tensor:
        """[batch, length, width]."""
        return drawn(self.heads.batch, self.heads.length, self.width)

    def grad(self) -> Tensor:
        """Of what comes out."""
        return drawn(self.heads.batch, self.heads.length, self.width, seed=1)

    def by(self) -> Meeting:
        """Any angles."""
        return Meeting(self.heads.by().turns, self.heads.num_heads, self.heads.num_kv_heads, EPS)

    def weights(self) -> LayerWeights:
        """Norms that differ; products of the size of what goes in."""
        heads, (q_norm, k_norm) = self.heads, self.heads.by()[:2]
        heads_width, qkv_width = heads.num_heads * heads.width, (heads.num_heads + 2 * heads.num_kv_heads) * heads.width
        shapes = (qkv_width, self.width), (self.width, heads_width), (2 * self.ffn_width, self.width)
        qkv, out, gate_up, down = (
            drawn(*shape, seed=4 + number) / shape[1] ** 0.5
            for number, shape in enumerate((*shapes, (self.width, self.ffn_width)))
        )
        attention_norm, mlp_norm = drawn(2, self.width, seed=8) + 1
        bias = drawn(qkv_width, seed=9) if self.has_bias else None
        return LayerWeights(attention_norm.clone(), qkv, bias, q_norm, k_norm, out, mlp_norm.clone(), gate_up, down)

    def cache(self, capacity: int) -> tuple[Tensor, Tensor]:
        """(keys, values) of NaN, one slot a sample."""
        return self.heads.cache(self.heads.batch, capacity)

    def gaps(self) -> int:
        """Numbers of what is kept that nobody needs: each of its parts begins at a multiple of 16."""
        heads, rows = self.heads, self.heads.batch * self.heads.length
        products = (heads.num_heads + 2 * heads.num_kv_heads) * heads.width, heads.num_heads * heads.width
        widths = *products, self.width, 2 * self.ffn_width, heads.num_heads, heads.num_heads, 1, 1
        return sum(-rows * width % 16 for width in widths)

    def gradients(self, compute: Computed, x: Tensor, grad: Tensor) -> list[Tensor]:
        """[y, the gradient of x and of every weight that there is]."""
        weights, by = self.weights(), self.by()
        there = [weight for weight in weights if weight is not None]

        def computed(x: Tensor, *given: Tensor) -> Tensor:
            return compute(x, filled(weights, given), by)

        return with_gradients(computed, grad, x, *there)


def filled(weights: LayerWeights, given: Iterable[Tensor]) -> LayerWeights:
    """These in the places of those that there are."""
    others = iter(given)
    return LayerWeights._make(None if weight is None else next(others) for weight in weights)


def in_cache(
    sizes: LayerSizes, compute: Callable[..., Tensor], x: Tensor, lengths: list[int], capacity: int = 48
) -> list[Tensor]:
    """[y, keys, values] of a stream in parts, each behind a cache that has the ones before."""
    keys, values, given, made = *sizes.cache(capacity), (sizes.weights(), sizes.by()), []
    start = 0
    for length in lengths:
        starts = torch.full((sizes.heads.batch,), start)
        part = x[:, start : start + length].contiguous()
        with torch.no_grad():
            made.append(compute(part, *given, Cached(starts, keys, values)))
        start += length
    return [torch.cat(made, 1), keys, values]


LAYERS = st.builds(
    LayerSizes,
    heads=st.builds(
        Sizes,
        batch=st.integers(1, 3),
        length=st.integers(1, 40),
        num_kv_heads=st.integers(1, 3),
        group=st.sampled_from([1, 2, 3, 7]),
        width=st.sampled_from([16, 32, 48, 80]),
        has_norms=st.booleans(),
    ),
    width=st.one_of(st.sampled_from([1, 16, 44, 64, 300]), st.integers(1, 130)),
    ffn_width=st.one_of(st.sampled_from([1, 20, 48, 100, 300]), st.integers(1, 130)),
    has_bias=st.booleans(),
)
