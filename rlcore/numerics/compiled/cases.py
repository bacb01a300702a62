"""What the probe computes twice of the compiled kernels: attention, and whole layers."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle

import torch
from torch import Tensor

from rlcore.numerics.cases import Case, Compute, Draw, listed, with_gradients
from rlcore.numerics.compiled.differentiable import Cached, Meeting, Turned, attend, attend_cached, layer, layer_cached
from rlcore.numerics.layer_weights import LayerWeights


def of_heads(draw: Draw, heads: Sequence[tuple[int, int, int]], length: int) -> Iterator[Case]:
    """The same of compiled attention: a pass, against positions after a cache, one by one and some at once."""
    for num_heads, num_kv_heads, width in dict.fromkeys(heads):
        given, grad = draw(2, length, num_heads + 2 * num_kv_heads, width), draw(2, length, num_heads, width)
        norms = draw(width), draw(width)
        by = Turned(*norms, 1e-6, draw(length, 2 * width))
        whole = with_gradients(partial(_attend, by, num_kv_heads), grad, given, *norms)
        y, shape = whole[0], f"heads {num_heads}/{num_kv_heads} of {width}"
        for position in (0, 1, 6, 33, *range(15, length, 16)):
            here = slice(position, position + 1)
            yield Case(
                f"position {position}, {shape}", partial(_behind, by, num_kv_heads, given[1:], here), (y[1:, here],)
            )
        for here in (slice(3, 9), slice(length // 3, length - 7)):
            yield Case(
                f"positions {here.start} to {here.stop}, {shape}",
                partial(_behind, by, num_kv_heads, given, here),
                (y[:, here],),
            )
        for count in (1, 5, 16, 33, *range(64, length, 64), length - 1):
            short = partial(listed, partial(attend, by=by, num_kv_heads=num_kv_heads), given[:1, :count].contiguous())
            yield Case(f"a pass of {count}, {shape}", short, (y[:1, :count],))
        again = partial(with_gradients, partial(_attend, by, num_kv_heads), grad, given, *norms)
        yield Case(f"gradients, {shape}", again, whole)


def of_layers(
    draw: Draw, layers: Sequence[tuple[int, int]], heads: Sequence[tuple[int, int, int]], length: int
) -> Iterator[Case]:
    """A compiled layer of each (width, ffn_width): a sample alone, a shorter pass, and what follows a cache."""
    for (width, ffn_width), (num_heads, num_kv_heads, head_width) in zip(layers, cycle(heads), strict=False):
        weights = layer_weights(draw, width, ffn_width, (num_heads, num_kv_heads, head_width))
        by = Meeting(draw(length, 2 * head_width), num_heads, num_kv_heads, 1e-6)
        x, grad = draw(2, length, width), draw(2, length, width)
        compute = partial(compiled_layer, by)
        y, *gradients = whole = with_gradients(compute, grad, x, *weights)
        shape = f"layer {width} wide, heads {num_heads}/{num_kv_heads} of {head_width}"
        alone = partial(_first_two, partial(with_gradients, compute, grad[1:], x[1:], *weights))
        yield Case(f"a sample of {shape}", alone, (y[1:], gradients[0][1:]))
        for count in (1, 5, 33, length - 1):
            short = partial(listed, partial(layer, weights=LayerWeights(*weights), by=by), x[:1, :count].contiguous())
            yield Case(f"a pass of {count}, {shape}", short, (y[:1, :count],))
        for here in (slice(0, 1), slice(33, 34), slice(length // 3, length - 7), slice(length - 1, length)):
            behind = partial(_layer_behind, LayerWeights(*weights), by, x, here)
            yield Case(f"positions {here.start} to {here.stop}, {shape}", behind, (y[:, here],))
        yield Case(f"gradients, {shape}", partial(with_gradients, compute, grad, x, *weights), whole)


def _attend(by: Turned, num_kv_heads: int, heads: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
    return attend(heads, by._replace(q_norm=q_norm, k_norm=k_norm), num_kv_heads)


def _behind(by: Turned, num_kv_heads: int, heads: Tensor, here: slice) -> Sequence[Tensor]:
    """Attention of these positions behind a cache that holds those before them, and NaN where nothing was written."""
    batch, length, _, width = heads.shape
    keys = heads.new_full((batch, num_kv_heads, width, length), torch.nan)
    values = keys.transpose(2, 3).contiguous()
    for part in (slice(0, here.start), here):
        starts = torch.full((batch,), part.start)
        y = attend_cached(heads[:, part].contiguous(), by, starts, keys, values)
    return [y]


def layer_weights(draw: Draw, width: int, ffn_width: int, heads: tuple[int, int, int]) -> list[Tensor]:
    """As `LayerWeights` has them, with all that a family may have; products do not outgrow what they are of."""
    num_heads, num_kv_heads, head_width = heads
    qkv_width, heads_width = (num_heads + 2 * num_kv_heads) * head_width, num_heads * head_width
    shapes = (qkv_width, width), (width, heads_width), (2 * ffn_width, width), (width, ffn_width)
    qkv, out, gate_up, down = (draw(*shape) / shape[1] ** 0.5 for shape in shapes)
    norms = (draw(size) for size in (width, qkv_width, head_width, head_width, width))
    attention_norm, qkv_bias, q_norm, k_norm, mlp_norm = norms
    return [attention_norm, qkv, qkv_bias, q_norm, k_norm, out, mlp_norm, gate_up, down]


def compiled_layer(by: Meeting, x: Tensor, *weights: Tensor) -> Tensor:
    """Compute a compiled layer, of weights in the order of `LayerWeights`."""
    return layer(x, LayerWeights(*weights), by)


def _layer_behind(weights: LayerWeights, by: Meeting, x: Tensor, here: slice) -> Sequence[Tensor]:
    """A layer at these positions behind a cache that holds those before them, and NaN where nothing was written."""
    batch, length, _ = x.shape
    keys = x.new_full((batch, by.num_kv_heads, by.turns.shape[1] // 2, length), torch.nan)
    values = keys.transpose(2, 3).contiguous()
    with torch.no_grad():
        for part in (slice(0, here.start), here):
            cache = Cached(torch.full((batch,), part.start), keys, values)
            y = layer_cached(x[:, part].contiguous(), weights, by, cache)
    return [y]


def _first_two(compute: Compute) -> Sequence[Tensor]:
    return compute()[:2]
