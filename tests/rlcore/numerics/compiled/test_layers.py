"""A whole layer has the bits that its parts give one by one, and a row those that it has alone."""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from rlcore.numerics.compiled import layers
from rlcore.numerics.compiled.differentiable import Meeting, layer
from rlcore.numerics.layer_weights import LayerWeights
from rlcore.numerics.probe import num_threads
from tests.rlcore.numerics.compiled.heads_drawn import WORTH, Sizes
from tests.rlcore.numerics.compiled.layers_drawn import LAYERS, LayerSizes, in_cache, parts, whole
from tests.rlcore.numerics.compiled.test_rows_alone import are_equal
from tests.rlcore.numerics.compiled.test_values import CLOSE, is_close, plain_attend, plain_norm

pytestmark = [pytest.mark.needs_compiler, pytest.mark.full]

some = settings(max_examples=25)
OVER_A_BLOCK = LayerSizes(Sizes(6, 40, 1, 2, 16, has_norms=True), 44, 20, has_bias=True)
"""240 rows: more than are done together, forward or backward."""
WIDE = LayerSizes(Sizes(16, 40, 2, 8, 80, has_norms=True), 128, 512, has_bias=True)
"""Worth three threads, its attention too."""


# ------------------------------------------------------------------------------------------------------ as in its parts


@some
@given(LAYERS)
@example(OVER_A_BLOCK)
def test_a_pass_and_its_gradients(sizes: LayerSizes) -> None:
    x, grad = sizes.stream(), sizes.grad()
    expected = sizes.gradients(parts, x, grad)
    assert are_equal(sizes.gradients(whole, x, grad), expected)
    with torch.no_grad():  # where nothing is kept
        assert torch.equal(layer(x, sizes.weights(), sizes.by()), expected[0])


@some
@given(st.data(), LAYERS)
@example(None, OVER_A_BLOCK)
def test_behind_a_cache(data: st.DataObject | None, sizes: LayerSizes) -> None:
    """NaN is what was not written yet, and none comes out."""
    length = sizes.heads.length
    borders = sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=2))) if data and length > 1 else []
    lengths = [end - start for start, end in zip([0, *borders], [*borders, length], strict=True)]
    y, keys, values = in_cache(sizes, whole, sizes.stream(), lengths)
    expected, *caches = in_cache(sizes, parts, sizes.stream(), lengths)
    with torch.no_grad():
        assert torch.equal(y, layer(sizes.stream(), sizes.weights(), sizes.by()))
    assert torch.equal(y, expected)
    for ours, other in zip((keys, values.transpose(2, 3)), (caches[0], caches[1].transpose(2, 3)), strict=True):
        assert torch.equal(ours[..., :length], other[..., :length])
        assert ours[..., length:].isnan().all()


@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_gradients_are_those_of_the_weights_that_there_are(has_norms: bool, has_bias: bool) -> None:
    sizes = LayerSizes(Sizes(2, 5, 1, 2, 16, has_norms), 44, 20, has_bias)
    leaves = LayerWeights._make(None if w is None else w.clone().requires_grad_() for w in sizes.weights())
    y = layer(sizes.stream().requires_grad_(), leaves, sizes.by())
    _, by, *found = cast("Any", y.grad_fn).apply(sizes.grad())
    missing = {name for name in ("q_norm", "k_norm") if not has_norms} | {
        name for name in ("qkv_bias",) if not has_bias
    }
    assert by is None
    for name, weight, gradient in zip(LayerWeights._fields, leaves, found, strict=True):
        assert (weight is None) == (gradient is None) == (name in missing), name
        assert weight is None or (gradient.shape == weight.shape and bool(gradient.any())), name


def test_of_no_samples_nothing_adds_to_a_gradient() -> None:
    sizes = LayerSizes(Sizes(0, 5, 1, 2, 16, has_norms=True), 44, 20, has_bias=True)
    y, d_x, *others = sizes.gradients(whole, sizes.stream(), sizes.grad())
    assert y.shape == d_x.shape == (0, 5, 44)
    assert len(others) == 9 and not any(bool(each.any()) for each in others)


# ---------------------------------------------------------------------------------------------------- what it computes


def plain(sizes: LayerSizes) -> Callable[[Tensor, LayerWeights, Meeting], Tensor]:
    """Every step by itself, of torch's own."""

    def computed(x: Tensor, weights: LayerWeights, by: Meeting) -> Tensor:
        attended = plain_attend(sizes.heads)
        bias = () if weights.qkv_bias is None else (weights.qkv_bias,)
        heads = F.linear(plain_norm(x, weights.attention_norm), weights.qkv, *bias)
        norms = [norm for norm in (weights.q_norm, weights.k_norm) if norm is not None]
        mixed = attended(heads.view(*x.shape[:2], -1, sizes.heads.width), *norms).flatten(2)
        x = x + F.linear(mixed, weights.out)
        gate, up = F.linear(plain_norm(x, weights.mlp_norm), weights.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, weights.down)

    return computed


@some
@given(LAYERS.filter(lambda sizes: sizes.width >= 16))
@example(OVER_A_BLOCK)
def test_values_and_gradients(sizes: LayerSizes) -> None:
    """Wide enough that no norm blows up what it is of; errors of many steps behind one another add up."""
    weights = [weight.double() for weight in sizes.weights() if weight is not None]
    ours = sizes.gradients(whole, sizes.stream(), sizes.grad())
    leaves = [x.requires_grad_() for x in (sizes.stream().double(), *weights)]
    given_ = iter(leaves[1:])
    y = plain(sizes)(
        leaves[0], LayerWeights._make(None if w is None else next(given_) for w in sizes.weights()), sizes.by()
    )
    assert is_close(ours, [y.detach(), *torch.autograd.grad(y, leaves, sizes.grad().double())], close=4 * CLOSE)


# ---------------------------------------------------------------------------------------------------------- rows alone


@some
@given(st.data(), LAYERS)
def test_samples_one_by_one_and_at_other_places(data: st.DataObject, sizes: LayerSizes) -> None:
    x, grad = sizes.stream(), sizes.grad()
    samples = data.draw(st.lists(st.integers(0, sizes.heads.batch - 1), min_size=1, max_size=5))
    expected = sizes.gradients(whole, x, grad)[:2]
    assert are_equal(sizes.gradients(whole, x[samples], grad[samples])[:2], [each[samples] for each in expected])


@some
@given(st.data(), LAYERS)
def test_what_comes_behind_changes_nothing(data: st.DataObject, sizes: LayerSizes) -> None:
    x, grad, count = sizes.stream(), sizes.grad(), data.draw(st.integers(1, sizes.heads.length))
    grad[:, count:] = 0
    alone = sizes.gradients(whole, x[:, :count].contiguous(), grad[:, :count].contiguous())[:2]
    assert are_equal(alone, [each[:, :count] for each in sizes.gradients(whole, x, grad)[:2]])
    x[:, count:] = torch.nan
    with torch.no_grad():
        assert torch.equal(layer(x, sizes.weights(), sizes.by())[:, :count], alone[0])


# -------------------------------------------------------------------------------------------------------- any threads


def by_threads(count: int, compute: Callable[..., Tensor] = whole) -> list[Tensor]:
    """A pass, its gradients, nothing kept, and behind a cache."""
    x, grad = WIDE.stream(), WIDE.grad()
    with num_threads(count):
        made = WIDE.gradients(compute, x, grad)
        with torch.no_grad():
            made.append(compute(x, WIDE.weights(), WIDE.by()))
        y, keys, values = in_cache(WIDE, compute, x, [31, 9])
        return [*made, y, keys[..., :40], values[:, :, :40]]


def test_the_size_is_worth_more_threads_than_one() -> None:
    """Its attention, whose gradient is more; its products behind a cache, even the last and fewest."""
    heads = WIDE.heads
    assert 4.0 * heads.batch * heads.num_heads * heads.length**2 * heads.width > 3 * WORTH
    assert WIDE.operations * 9 / 40 > 3 * WORTH


@pytest.mark.parametrize("count", [2, 3, 5])
def test_any_number_of_threads_gives_the_same_bits(count: int) -> None:
    expected = by_threads(1)
    assert not any(bool(each.isnan().any()) for each in expected)
    for _ in range(3):  # what two threads share would not be the same each time
        assert are_equal(by_threads(count), expected)


@pytest.mark.parametrize("count", [1, 3])
def test_parts_and_whole_are_the_same_with_threads(count: int) -> None:
    assert are_equal(by_threads(count), by_threads(count, parts))


@pytest.mark.parametrize(
    ("source", "struct", "mirror"),
    [("layer.h", "layer", layers._Layer), ("layer_backward.c", "gradients", layers._Gradients)],
)
def test_what_c_is_handed_is_laid_out_as_c_has_it(source: str, struct: str, mirror: type[ctypes.Structure]) -> None:
    """Name by name: members of one type in another order would be taken for each other."""
    written = (Path(layers.__file__).parent / source).read_text()
    (members,) = re.findall(rf"typedef struct \{{([^}}]*)\}} {struct};", written)
    told = re.sub(r"/\*.*?\*/|\b(const|float|long)\b|[*;,]", " ", members).split()
    assert told == [name for name, *_ in mirror._fields_]
