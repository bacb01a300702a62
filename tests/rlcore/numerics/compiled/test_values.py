"""What the kernels compute, against plain formulas in float64."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from rlcore.numerics.cases import with_gradients
from rlcore.numerics.compiled.differentiable import Turned, attend, rms_norm, swiglu
from tests.rlcore.numerics.compiled.heads_drawn import EPS, SIZES, Sizes, add_norm, drawn

pytestmark = [pytest.mark.needs_compiler, pytest.mark.full]

some = settings(max_examples=30)
CLOSE = 5e-6
"""Of the largest number of a result; for gradients, of the largest in any, since some cancel to nothing."""


def is_close(ours: list[Tensor], plain: list[Tensor], close: float = CLOSE) -> bool:
    errors = [float((a.double() - b).abs().max()) for a, b in zip(ours, plain, strict=True)]
    sizes = [max(1.0, float(b.abs().max())) for b in plain]
    return errors[0] <= close * sizes[0] and max(errors[1:]) <= close * max(sizes[1:])


def both(ours: Callable[..., Tensor], plain: Callable[..., Tensor], *given_: Tensor) -> bool:
    """Whether results and gradients agree; `given_` are the result's gradient, then what is computed with."""
    return is_close(with_gradients(ours, *given_), with_gradients(plain, *(x.double() for x in given_)))


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def plain_add_norm(x: Tensor, added: Tensor, weight: Tensor) -> Tensor:
    return torch.cat((x + added, plain_norm(x + added, weight)), -1)


def plain_swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return gate / (1 + (-gate).exp()) * up


def torch_swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def plain_attend(sizes: Sizes) -> Callable[..., Tensor]:
    """Every step by itself, over a mask of whole scores."""
    cosines, sines = (x[: sizes.length, None] for x in sizes.by().turns.double().chunk(2, 1))

    def turned(x: Tensor, norm: Tensor | None) -> Tensor:
        x = x if norm is None else plain_norm(x, norm)
        return x * cosines + x.roll(sizes.width // 2, -1) * sines

    def attended(heads: Tensor, *norms: Tensor) -> Tensor:
        q, k, v = heads.split_with_sizes([sizes.num_heads, sizes.num_kv_heads, sizes.num_kv_heads], 2)
        q_norm, k_norm = norms or (None, None)
        q, k = turned(q, q_norm), turned(k, k_norm)
        k, v = (x.repeat_interleave(sizes.group, 2) for x in (k, v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / sizes.width**0.5
        is_behind = torch.ones(scores.shape[-2:]).triu(1).bool()
        return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(is_behind, -torch.inf).softmax(-1), v)

    return attended


@some
@given(SIZES)
def test_attention_and_its_gradients(sizes: Sizes) -> None:
    assert both(sizes.attended(), plain_attend(sizes), sizes.grad(), sizes.heads(), *sizes.norms())


@some
@given(st.integers(1, 20), st.sampled_from([1, 2, 7, 15, 16, 17, 31, 44, 64, 100]))
def test_norms_and_gates_of_any_width(num_rows: int, width: int) -> None:
    x, grad, weight = drawn(num_rows, width), drawn(num_rows, width, seed=1), drawn(width, seed=2)
    assert both(lambda x, weight: rms_norm(x, weight, EPS), plain_norm, grad, x, weight)
    assert both(add_norm, plain_add_norm, drawn(num_rows, 2 * width, seed=4), x, grad, weight)
    assert both(swiglu, plain_swiglu, grad, torch.cat((x * 4, drawn(num_rows, width, seed=3)), -1))


def test_rows_of_any_number_of_dimensions_are_rows() -> None:
    x, weight = drawn(2, 3, 5, 14), drawn(14, seed=1)
    for of in (lambda x: rms_norm(x, weight, EPS), swiglu):
        assert torch.equal(of(x), of(x.view(30, 14)).view(2, 3, 5, -1))


def test_exponentials_over_all_of_their_range() -> None:
    """silu(gate) / gate = 1 / (1 + e^-gate): where the exponential is small, its error is that of e^gate."""
    gates = torch.linspace(-86, 87, 200_001)
    found = swiglu(torch.stack((gates, torch.ones_like(gates)), -1))[:, 0]
    plain = F.silu(gates.double())
    assert float(((found - plain) / plain)[gates != 0].abs().max()) < 5e-7


@pytest.mark.parametrize("gate", [-torch.inf, -3e38, -1000.0, -100.0, 100.0, 1000.0, 3e38, torch.inf, torch.nan])
def test_gates_beyond_that_range(gate: float) -> None:
    given_ = torch.ones(1), torch.tensor([gate, 2.0])
    ours, plain = with_gradients(swiglu, *given_), with_gradients(torch_swiglu, *given_)
    assert torch.allclose(ours[0], plain[0], atol=1e-35, rtol=1e-6, equal_nan=True)
    if abs(gate) < torch.inf:
        assert torch.allclose(ours[1], plain[1], atol=1e-35, rtol=1e-6, equal_nan=True)


def test_portions_of_scores_that_are_far_apart() -> None:
    """One key outweighs all others by far more than fp32 can hold: its value is what comes out."""
    sizes = Sizes(1, 20, 1, 1, 16, has_norms=False)
    heads = torch.full((1, 20, 3, 16), 1.0)
    heads[0, 3, 1], heads[0, :, 2] = 400.0, torch.arange(20.0)[:, None]
    turns = torch.cat((torch.ones(48, 16), torch.zeros(48, 16)), 1)
    mixed = attend(heads, Turned(None, None, EPS, turns), sizes.num_kv_heads)
    torch.testing.assert_close(mixed[0, 3:], torch.full((17, 1, 16), 3.0), rtol=1e-6, atol=0)
