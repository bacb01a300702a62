"""The kernels as operations: that they stay within their tensors, and who sees them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlcore.numerics.cases import with_gradients
from rlcore.numerics.compiled import layers, operations
from rlcore.numerics.compiled.differentiable import attend, attend_cached, linear, rms_norm, swiglu
from tests.rlcore.numerics.compiled.calls import (
    BEHIND,
    BIAS,
    BY,
    GRAD,
    HEADS,
    LAYER,
    MATRIX,
    MEETING,
    SIZES,
    STARTS,
    STREAM,
    WEIGHT,
    WEIGHTS,
    X,
    behind,
)
from tests.rlcore.numerics.compiled.heads_drawn import Sizes, add_norm, drawn
from tests.rlcore.numerics.compiled.layers_drawn import LayerSizes, filled, whole

pytestmark = [pytest.mark.needs_compiler, pytest.mark.full]

# ------------------------------------------------------------------------------------------------- within their tensors


def amid(x: Tensor, around: float) -> tuple[Tensor, Tensor]:
    """(a whole buffer, the same numbers in its middle): 64 numbers of something else on both sides."""
    buffer = torch.full((x.numel() + 128,), around, dtype=x.dtype)
    buffer[64:-64] = x.flatten()
    return buffer, buffer[64:-64].view_as(x)


@pytest.mark.parametrize("sizes", [SIZES, Sizes(1, 7, 1, 3, 48, has_norms=False)], ids=str)
def test_nothing_beside_what_is_given_is_read(sizes: Sizes) -> None:
    """NaN lies there, and none comes out."""
    x, weight, heads, grad = (amid(y, torch.nan)[1] for y in (X, WEIGHT, sizes.heads(), sizes.grad()))
    turns = amid(sizes.by().turns[: sizes.length], torch.nan)[1]
    by = sizes.by()._replace(turns=turns)
    found = [
        *with_gradients(lambda a, b: rms_norm(a, b, 1e-6), X, x, weight),
        *with_gradients(add_norm, amid(torch.cat((X, X), 1), torch.nan)[1], x, amid(X, torch.nan)[1], weight),
        *with_gradients(swiglu, amid(X[:, :7], torch.nan)[1], x),
        *with_gradients(lambda a: attend(a, by, sizes.num_kv_heads), grad, heads),
        operations.rms_norm(x, weight, 1e-6)[0],
        operations.swiglu(x),
        attend_cached(heads, by, torch.zeros(sizes.batch, dtype=torch.int64), *sizes.cache(sizes.batch, 16)),
    ]
    assert not any(bool(each.isnan().any()) for each in found)


ROOMS = [LAYER, LayerSizes(Sizes(1, 7, 1, 3, 48, has_norms=False), 37, 17, has_bias=False)]


@pytest.mark.parametrize("rows", [1, 6, 13])
@pytest.mark.parametrize("inputs", [1, 14, 49])
@pytest.mark.parametrize("outputs", [1, 9, 49])
def test_nothing_beside_what_products_are_given_is_read(rows: int, inputs: int, outputs: int) -> None:
    given = drawn(rows, outputs), drawn(rows, inputs), drawn(outputs, inputs), drawn(outputs)
    found = with_gradients(linear, *given)
    with torch.no_grad():
        grad, x, weight, bias = (amid(each, torch.nan)[1] for each in given)
        amidst = [operations.linear(x, weight, bias), *operations.linear_backward(grad, x, weight)]
    assert all(torch.equal(a, b) for a, b in zip(amidst, found, strict=True))


@pytest.mark.parametrize("sizes", ROOMS, ids=str)
def test_nothing_beside_what_a_layer_is_given_is_read(sizes: LayerSizes) -> None:
    x, grad = (amid(y, torch.nan)[1] for y in (sizes.stream(), sizes.grad()))
    weights = filled(sizes.weights(), (amid(w, torch.nan)[1] for w in sizes.weights() if w is not None))
    by = sizes.by()._replace(turns=amid(sizes.by().turns[: sizes.heads.length], torch.nan)[1])._asdict()
    expected = sizes.gradients(whole, sizes.stream(), sizes.grad())
    y, kept = layers.layer(x, weights, **by)
    made = layers.layer_backward(grad, x, amid(kept, torch.nan)[1], weights, **by)
    starts = torch.zeros(sizes.heads.batch, dtype=torch.int64)
    assert all(torch.equal(a, b) for a, b in zip([y, *made], expected, strict=True))
    assert torch.equal(layers.layer_unkept(x, weights, **by), y)
    assert torch.equal(layers.layer_cached(x, starts, *sizes.cache(16), weights, **behind(by)), y)


class Guarded:
    """Stands for the library: behind every tensor that an operation makes, numbers must be as they were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.buffers: list[Tensor] = []
        monkeypatch.setattr(torch, "empty_like", lambda x: self.empty(x.shape))
        monkeypatch.setattr(Tensor, "new_empty", lambda x, shape: self.empty(shape))
        monkeypatch.setattr(torch, "empty", self.empty)

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        buffer, inside = amid(torch.full(sizes, torch.nan, dtype=dtype), 7.5)
        self.buffers.append(buffer)
        return inside

    def is_whole(self, gaps: int = 0) -> bool:
        """Whether everything inside was written, but for so many numbers of one, and nothing outside."""
        edges = [torch.cat((buffer[:64], buffer[-64:])) for buffer in self.buffers]
        missing = sorted(int(buffer[64:-64].isnan().sum()) for buffer in self.buffers)
        return all((e == 7.5).all() for e in edges) and sum(missing[:-1]) == 0 and missing[-1] == gaps


@pytest.mark.parametrize("sizes", [SIZES, Sizes(1, 7, 1, 3, 48, has_norms=False)], ids=str)
def test_nothing_beside_what_is_made_is_written(sizes: Sizes, monkeypatch: pytest.MonkeyPatch) -> None:
    heads, grad, by = sizes.heads(), sizes.grad(), sizes.by()
    caches = [amid(held.nan_to_num(), 7.5) for held in sizes.cache(sizes.batch, 16)]
    guarded = Guarded(monkeypatch)
    y, inverse = operations.rms_norm(X, WEIGHT, 1e-6)
    operations.rms_norm_backward(y, None, X, WEIGHT, inverse)
    total, y, inverse = operations.add_rms_norm(X, X, WEIGHT, 1e-6)
    operations.rms_norm_backward(y, X, total, WEIGHT, inverse)
    operations.swiglu_backward(operations.swiglu(X), X)
    operations.linear_backward(operations.linear(X, MATRIX, BIAS), X, MATRIX)
    operations.uniforms(torch.arange(3), torch.arange(5))
    mixed, softmax = operations.attend(heads, sizes.num_kv_heads, **by._asdict())
    operations.attend_backward(grad, heads, mixed, softmax, **by._asdict())
    for length in (1, sizes.length):
        starts = torch.full((sizes.batch,), 16 - length)
        attend_cached(heads[:, :length].contiguous(), by, starts, *(inside for _, inside in caches))
    assert guarded.is_whole()
    assert all((torch.cat((buffer[:64], buffer[-64:])) == 7.5).all() for buffer, _ in caches)


@pytest.mark.parametrize("rows", [0, 1, 6, 13])
@pytest.mark.parametrize("inputs", [1, 14, 49])
@pytest.mark.parametrize("outputs", [1, 9, 49])
def test_nothing_beside_what_products_make_is_written(
    rows: int, inputs: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = drawn(rows, inputs), drawn(outputs, inputs)
    guarded = Guarded(monkeypatch)
    operations.linear_backward(operations.linear(x, weight, None), x, weight)
    assert guarded.is_whole() and len(guarded.buffers) == 4


@pytest.mark.parametrize("sizes", ROOMS, ids=str)
def test_nothing_beside_what_a_layer_makes_is_written(sizes: LayerSizes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the parts of what is kept there are gaps, of NaN here, of which no gradient is made."""
    x, grad, weights, by = sizes.stream(), sizes.grad(), sizes.weights(), sizes.by()._asdict()
    caches = [amid(held.nan_to_num(), 7.5) for held in sizes.cache(16)]
    guarded = Guarded(monkeypatch)
    _, kept = layers.layer(x, weights, **by)
    layers.layer_unkept(x, weights, **by)
    made = layers.layer_backward(grad, x, kept, weights, **by)
    starts = torch.full((sizes.heads.batch,), 16 - sizes.heads.length)
    keys, values = (inside for _, inside in caches)
    layers.layer_cached(x, starts, keys, values, weights, **behind(by))
    assert guarded.is_whole(sizes.gaps()) and len(guarded.buffers) == 4 + len(made)
    assert all((torch.cat((buffer[:64], buffer[-64:])) == 7.5).all() for buffer, _ in caches)


# -------------------------------------------------------------------------------------------------------- who sees them


class Observation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lists operations by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, slots=True)
class Use:
    """What a model does with one operation."""

    names: tuple[str, ...]
    compute: Callable[[], list[Tensor]]


USES = {
    "norm": Use(
        ("rlcore.rms_norm.default", "rlcore.rms_norm_backward.default"),
        lambda: with_gradients(lambda a, b: rms_norm(a, b, 1e-6), X.flip(0), X, WEIGHT),
    ),
    "norm of a sum": Use(
        ("rlcore.add_rms_norm.default", "rlcore.rms_norm_backward.default"),
        lambda: with_gradients(add_norm, torch.cat((X, X), 1), X, X.flip(1), WEIGHT),
    ),
    "swiglu": Use(
        ("rlcore.swiglu.default", "rlcore.swiglu_backward.default"), lambda: with_gradients(swiglu, X[:, ::2], X)
    ),
    "linear": Use(
        ("rlcore.linear.default", "rlcore.linear_backward.default"),
        lambda: with_gradients(linear, drawn(6, 9, seed=4), X, MATRIX, BIAS),
    ),
    "layer": Use(
        ("rlcore.layer.default", "rlcore.layer_backward.default"),
        lambda: LAYER.gradients(whole, STREAM, LAYER.grad()),
    ),
    "layer, nothing kept": Use(
        ("rlcore.layer_unkept.default",), lambda: [layers.layer_unkept(STREAM, WEIGHTS, **MEETING)]
    ),
    "layer behind a cache": Use(
        ("rlcore.layer_cached.default",),
        lambda: [layers.layer_cached(STREAM, STARTS * 0, *(cache := LAYER.cache(16)), WEIGHTS, **BEHIND), *cache],
    ),
    "uniforms": Use(("rlcore.uniforms.default",), lambda: [operations.uniforms(torch.arange(3), torch.arange(5))]),
    "attention": Use(
        ("rlcore.attend.default", "rlcore.attend_backward.default"),
        lambda: with_gradients(lambda a: attend(a, BY, 2), GRAD, HEADS),
    ),
    "cached": Use(
        ("rlcore.attend_cached.default",),
        lambda: [attend_cached(HEADS, BY, STARTS * 0, *(cache := SIZES.cache(2, 16))), *cache],
    ),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_who_watches_operations_sees_them_and_changes_no_bit(use: Use) -> None:
    unseen = use.compute()
    with Observation() as seen:
        found = use.compute()
    assert [name for name in seen.names if name.startswith("rlcore.")] == list(use.names)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(found, unseen, strict=True))


def test_a_profiler_sees_them() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, torch.no_grad():
        swiglu(X)
    assert "rlcore::swiglu" in {event.key for event in profile.key_averages()}
