"""Linear layers: what they compute, in which order to the bit, and that a row has the bits it has alone."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from rlcore.numerics.cases import with_gradients
from rlcore.numerics.compiled import operations
from rlcore.numerics.compiled.differentiable import linear
from rlcore.numerics.probe import num_threads
from tests.rlcore.numerics.compiled.heads_drawn import WORTH, drawn
from tests.rlcore.numerics.compiled.test_rows_alone import are_equal
from tests.rlcore.numerics.compiled.test_values import is_close

pytestmark = [pytest.mark.needs_compiler, pytest.mark.full]

some = settings(max_examples=25)
few = settings(max_examples=8)
WIDTHS = st.one_of(st.integers(1, 600), st.sampled_from([1, 16, 17, 32, 33, 255, 256, 257, 512, 513, 529]))
"""Over what is packed together: 256 of what is summed, 512 columns."""
ROWS = st.one_of(st.integers(0, 300), st.sampled_from([0, 1, 2, 5, 6, 11, 12, 13, 95, 96, 97, 191, 192, 193]))


def made(x: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor) -> list[Tensor]:
    """[y, the gradients of x, weight and bias]."""
    if bias is None:
        return with_gradients(lambda x, weight: linear(x, weight, None), grad, x, weight)
    return with_gradients(linear, grad, x, weight, bias)


def drawn_linear(rows: int, inputs: int, outputs: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, weight, bias, grad."""
    x, weight, bias = drawn(rows, inputs), drawn(outputs, inputs, seed=1), drawn(outputs, seed=2)
    return x, weight, bias, drawn(rows, outputs, seed=3)


@some
@given(ROWS.filter(bool), WIDTHS, WIDTHS, st.booleans())
@example(200, 300, 560, True)
def test_values_and_gradients(rows: int, inputs: int, outputs: int, has_bias: bool) -> None:
    x, weight, bias, grad = drawn_linear(rows, inputs, outputs)
    ours = made(x, weight, bias if has_bias else None, grad)
    plain = [x.double(), weight.double(), *([bias.double()] if has_bias else [])]
    assert is_close(ours, with_gradients(F.linear, grad.double(), *plain))


# ------------------------------------------------------------------------------------------------------ in which order


def coarse(*shape: int, seed: int) -> Tensor:
    """Of eight bits each, so that a product of two is exact and only sums are rounded."""
    return drawn(*shape, seed=seed).bfloat16().float()


def one_after_another(a: Tensor, b: Tensor) -> Tensor:
    """a [rows, inner] @ b [inner, columns], from the first of what is summed over to the last."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total += a[:, k, None] * b[k]
    return total


@few
@given(ROWS, WIDTHS, WIDTHS)
@example(200, 300, 560)
@example(97, 529, 513)
@example(193, 257, 1)
@example(300, 1, 17)
def test_sums_are_of_one_after_another(rows: int, inputs: int, outputs: int) -> None:
    x, weight = coarse(rows, inputs, seed=0), coarse(outputs, inputs, seed=1)
    grad, bias = coarse(rows, outputs, seed=2), drawn(outputs, seed=3)
    y, d_x, d_weight, d_bias = made(x, weight, bias, grad)
    assert torch.equal(y, one_after_another(x, weight.t()) + bias)
    assert torch.equal(d_x, one_after_another(grad, weight))
    assert torch.equal(d_weight, one_after_another(grad.t(), x))
    assert torch.equal(d_bias, grad.double().sum(0).float())  # of eight bits each: exact in fp64, in any order


@pytest.mark.parametrize("border", [96, 192, 256, 512])
@pytest.mark.parametrize("first", [-2, -1, 0])
def test_a_sum_goes_on_over_borders_from_where_it_was(border: int, first: int) -> None:
    """1e8 swallows the 1 that comes behind it, and no other: a part summed by itself would keep it."""
    terms = torch.zeros(border + 4)
    terms[border + first : border + first + 3] = torch.tensor([1e8, 1.0, -1e8])
    terms[[0, -1]] += torch.tensor([3.0, 5.0])
    ones = torch.ones_like(terms)
    y, d_x, d_weight, _ = made(terms[None], ones[None], torch.zeros(1), ones[:1, None])
    assert y.tolist() == [[5.0]] and d_x.tolist() == [[1.0] * len(ones)] and torch.equal(d_weight[0], terms)
    y, d_x, d_weight, _ = made(ones[:1, None], terms[:, None], torch.zeros(len(ones)), ones[None])
    assert torch.equal(y[0], terms) and d_x.tolist() == [[5.0]]
    _, _, d_weight, _ = made(terms[:, None], ones[:1, None], torch.zeros(1), ones[:, None])
    assert d_weight.tolist() == [[5.0]]


def test_sums_are_exact_where_they_can_be() -> None:
    """Whole numbers up to 4: no sum needs more bits than there are."""
    x, weight, grad = (drawn(*shape, seed=shape[0]).round() for shape in ((300, 530), (540, 530), (300, 540)))
    y, d_x, d_weight, d_bias = made(x, weight, torch.ones(540), grad)
    assert torch.equal(y.double(), x.double() @ weight.double().t() + 1)
    assert torch.equal(d_x.double(), grad.double() @ weight.double())
    assert torch.equal(d_weight.double(), grad.double().t() @ x.double())
    assert torch.equal(d_bias.double(), grad.double().sum(0))


def test_products_are_not_rounded_by_themselves() -> None:
    """(1 + 2^-12)^2 has a last bit that fp32 has no room for: less what it is rounded to, it is there."""
    near = 1 + 2.0**-12
    x, weight = torch.tensor([[1.0, near]]), torch.tensor([[-(1 + 2.0**-11), near]])
    assert linear(x, weight, None).tolist() == [[2.0**-24]]


# ---------------------------------------------------------------------------------------------------------- rows alone


@some
@given(st.data(), WIDTHS, WIDTHS, st.booleans())
def test_rows_have_the_bits_that_they_have_alone(
    data: st.DataObject, inputs: int, outputs: int, has_bias: bool
) -> None:
    x, weight, bias, grad = drawn_linear(data.draw(ROWS.filter(bool)), inputs, outputs)
    rows = data.draw(st.lists(st.integers(0, len(x) - 1), min_size=1, max_size=30))
    given_bias = bias if has_bias else None
    y, d_x = made(x, weight, given_bias, grad)[:2]
    assert are_equal(made(x[rows], weight, given_bias, grad[rows])[:2], [y[rows], d_x[rows]])


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_rows_of_any_dimensions_are_rows(rows: int) -> None:
    x, weight, bias, grad = drawn_linear(2 * rows, 20, 30)
    flat = made(x, weight, bias, grad)
    shaped = made(x.view(2, rows, 20), weight, bias, grad.view(2, rows, 30))
    assert are_equal([shaped[0].view(-1, 30), shaped[1].view(-1, 20), *shaped[2:]], flat)


def test_of_no_rows_nothing_adds_to_a_gradient() -> None:
    y, d_x, d_weight, d_bias = made(*drawn_linear(0, 20, 30))
    assert y.shape == (0, 30) and d_x.shape == (0, 20)
    assert not d_weight.any() and not d_bias.any()


@pytest.mark.parametrize("count", [2, 3, 5])
def test_any_number_of_threads_gives_the_same_bits(count: int) -> None:
    """As much as is worth a thread each, and no whole number of tiles."""
    rows, inputs, outputs = 667, 290, 600
    assert 2.0 * rows * inputs * outputs > 4 * WORTH
    given_ = drawn_linear(rows, inputs, outputs)
    with num_threads(1):
        expected = [*made(*given_), operations.linear(*given_[:3])]
    for _ in range(3):  # what two threads share would not be the same each time
        with num_threads(count):
            assert are_equal([*made(*given_), operations.linear(*given_[:3])], expected)
