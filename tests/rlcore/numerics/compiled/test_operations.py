"""The kernels as operations: what they refuse, that they stay within their tensors, and who sees them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlcore.errors import EngineError, InvalidValueError, KernelError, ShapeError
from rlcore.numerics.cases import with_gradients
from rlcore.numerics.compiled import operations
from rlcore.numerics.compiled.differentiable import attend, attend_cached, rms_norm, swiglu
from tests.rlcore.numerics.compiled.heads_drawn import NUM_POSITIONS, Sizes, add_norm, drawn

pytestmark = pytest.mark.needs_compiler

SIZES = Sizes(2, 5, 2, 2, 16, has_norms=True)
HEADS, GRAD, BY = SIZES.heads(), SIZES.grad(), SIZES.by()
STARTS = torch.tensor([3, 8])
NORMS = BY._asdict()
X, WEIGHT = drawn(6, 14), drawn(14, seed=1)


def apart(x: Tensor) -> Tensor:
    """The same numbers, not one after another."""
    return torch.stack((x, x), -1)[..., 0]


def cached(heads: Tensor = HEADS, starts: Tensor = STARTS, *, capacity: int = 32, **other: Any) -> Tensor:
    """A call that fits, but for what is given."""
    keys, values = SIZES.cache(2, capacity)
    return operations.attend_cached(heads, starts, **{"keys": keys, "values": values, **NORMS, **other})


def backward(**other: Any) -> Any:
    """The same of the gradient."""
    mixed, softmax = operations.attend(HEADS, 2, **NORMS)
    given = {"grad": GRAD, "heads": HEADS, "mixed": mixed, "softmax": softmax, **NORMS, **other}
    return operations.attend_backward(**given)


REFUSED: dict[str, tuple[type[EngineError], Callable[[], object]]] = {
    "norm of fp64": (ShapeError, lambda: operations.rms_norm(X.double(), WEIGHT, 1e-6)),
    "norm by bf16": (ShapeError, lambda: operations.rms_norm(X, WEIGHT.bfloat16(), 1e-6)),
    "norm of what lies apart": (ShapeError, lambda: operations.rms_norm(apart(X), WEIGHT, 1e-6)),
    "norm by another width": (ShapeError, lambda: operations.rms_norm(X, WEIGHT[:7], 1e-6)),
    "norm of heads by several": (ShapeError, lambda: operations.rms_norm(X, drawn(6, 14), 1e-6)),
    "norm on another device": (ShapeError, lambda: operations.rms_norm(X.to("meta"), WEIGHT.to("meta"), 1e-6)),
    "norm of a sum with fewer": (ShapeError, lambda: operations.add_rms_norm(X, X[1:], WEIGHT, 1e-6)),
    "norm of a sum by another width": (ShapeError, lambda: operations.add_rms_norm(X, X, WEIGHT[:7], 1e-6)),
    "norm of a sum with fp64": (ShapeError, lambda: operations.add_rms_norm(X, X.double(), WEIGHT, 1e-6)),
    "norm backward, fewer grads": (ShapeError, lambda: operations.rms_norm_backward(X[1:], None, X, WEIGHT, drawn(6))),
    "norm backward, fewer above": (ShapeError, lambda: operations.rms_norm_backward(X, X[1:], X, WEIGHT, drawn(6))),
    "norm backward, more rows": (ShapeError, lambda: operations.rms_norm_backward(X, None, X, WEIGHT, drawn(7))),
    "norm backward, a narrow weight": (
        ShapeError,
        lambda: operations.rms_norm_backward(X, None, X, WEIGHT[:7], drawn(6)),
    ),
    "swiglu of fp16": (ShapeError, lambda: operations.swiglu(X.half())),
    "swiglu of what lies apart": (ShapeError, lambda: operations.swiglu(X.t())),
    "swiglu of an odd width": (ShapeError, lambda: operations.swiglu(drawn(6, 7))),
    "swiglu backward, wide grad": (ShapeError, lambda: operations.swiglu_backward(X, X)),
    "swiglu backward, few grads": (ShapeError, lambda: operations.swiglu_backward(drawn(5, 7), X)),
    "heads of three dimensions": (ShapeError, lambda: attend(HEADS[0], BY, 2)),
    "turns of one": (ShapeError, lambda: attend(HEADS, BY._replace(turns=drawn(48)), 2)),
    "heads of fp64": (ShapeError, lambda: attend(HEADS.double(), BY, 2)),
    "heads that lie apart": (ShapeError, lambda: attend(apart(HEADS), BY, 2)),
    "heads of 24": (ShapeError, lambda: attend(drawn(2, 5, 8, 24), BY._replace(turns=drawn(48, 48)), 2)),
    "a norm of another width": (ShapeError, lambda: attend(HEADS, BY._replace(k_norm=drawn(8)), 2)),
    "one norm": (ShapeError, lambda: attend(HEADS, BY._replace(k_norm=None), 2)),
    "turns of another width": (ShapeError, lambda: attend(HEADS, BY._replace(turns=drawn(48, 16)), 2)),
    "groups that do not divide": (ShapeError, lambda: attend(drawn(2, 5, 9, 16), BY, 2)),
    "no queries": (ShapeError, lambda: attend(HEADS, BY, 4)),
    "no keys": (ShapeError, lambda: attend(HEADS, BY, 0)),
    "less than no keys": (ShapeError, lambda: attend(HEADS, BY, -1)),
    "longer than the turns": (ShapeError, lambda: attend(drawn(1, NUM_POSITIONS + 1, 8, 16), BY, 2)),
    "before the cache": (InvalidValueError, lambda: cached(starts=torch.tensor([3, -1]))),
    "beyond the cache": (InvalidValueError, lambda: cached(starts=torch.tensor([3, 28]))),
    "far beyond the cache": (InvalidValueError, lambda: cached(starts=torch.tensor([3, 2**63 - 1]))),
    "beyond the turns": (InvalidValueError, lambda: cached(starts=torch.tensor([3, 44]), capacity=64)),
    "starts of int32": (ShapeError, lambda: cached(starts=STARTS.int())),
    "starts of one": (ShapeError, lambda: cached(starts=STARTS[:1])),
    "starts that lie apart": (ShapeError, lambda: cached(starts=apart(STARTS))),
    "a capacity of 20": (ShapeError, lambda: cached(capacity=20)),
    "a cache of fewer samples": (ShapeError, lambda: cached(keys=SIZES.cache(1, 32)[0])),
    "values as keys": (ShapeError, lambda: cached(values=SIZES.cache(2, 32)[0])),
    "keys of fp64": (ShapeError, lambda: cached(keys=SIZES.cache(2, 32)[0].double())),
    "values that lie apart": (ShapeError, lambda: cached(values=apart(SIZES.cache(2, 32)[1]))),
    "a gradient of fewer heads": (ShapeError, lambda: backward(grad=GRAD[:, :, :2].contiguous())),
    "a gradient that lies apart": (ShapeError, lambda: backward(grad=apart(GRAD))),
    "a softmax of less": (ShapeError, lambda: backward(softmax=drawn(2, 2, 4, 4))),
    "a backward longer than the turns": (ShapeError, lambda: backward(turns=BY.turns[:4].clone())),
}


@pytest.mark.parametrize(("error", "call"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(error: type[EngineError], call: Callable[[], object]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error and caught.value.what


def test_calls_that_fit_are_taken() -> None:
    """The ones that the refused ones differ from."""
    assert cached().shape == cached(starts=torch.tensor([27, 0])).shape == (2, 5, 4, 16)
    assert backward()[0].shape == HEADS.shape


def test_memory_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel says so by 1."""

    class Full:
        def attend(self, *given: object) -> int:
            return 1

    monkeypatch.setattr(operations, "library", Full)
    with pytest.raises(KernelError, match="memory"), torch.no_grad():
        attend(HEADS, BY, 2)


# ------------------------------------------------------------------------------------------------- within their tensors


def amid(x: Tensor, around: float) -> tuple[Tensor, Tensor]:
    """(a whole buffer, the same numbers in its middle): 64 numbers of something else on both sides."""
    buffer = torch.full((x.numel() + 128,), around)
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


class Guarded:
    """Stands for the library: behind every tensor that an operation makes, numbers must be as they were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.buffers: list[Tensor] = []
        monkeypatch.setattr(torch, "empty_like", lambda x: self.empty(x.shape))
        monkeypatch.setattr(Tensor, "new_empty", lambda x, shape: self.empty(shape))

    def empty(self, shape: Sequence[int]) -> Tensor:
        buffer, inside = amid(torch.full(tuple(shape), torch.nan), 7.5)
        self.buffers.append(buffer)
        return inside

    def is_whole(self) -> bool:
        """Whether everything inside was written, and nothing outside."""
        edges = [torch.cat((buffer[:64], buffer[-64:])) for buffer in self.buffers]
        inside = [buffer[64:-64] for buffer in self.buffers]
        return bool(self.buffers) and all((e == 7.5).all() for e in edges) and not any(i.isnan().any() for i in inside)


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
    mixed, softmax = operations.attend(heads, sizes.num_kv_heads, **by._asdict())
    operations.attend_backward(grad, heads, mixed, softmax, **by._asdict())
    for length in (1, sizes.length):
        starts = torch.full((sizes.batch,), 16 - length)
        attend_cached(heads[:, :length].contiguous(), by, starts, *(inside for _, inside in caches))
    assert guarded.is_whole()
    assert all((torch.cat((buffer[:64], buffer[-64:])) == 7.5).all() for buffer, _ in caches)


# -------------------------------------------------------------------------------------------------------- who sees them


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
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
    with Seen() as seen:
        found = use.compute()
    assert [name for name in seen.names if name.startswith("rlcore.")] == list(use.names)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(found, unseen, strict=True))


def test_a_profiler_sees_them() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, torch.no_grad():
        swiglu(X)
    assert "rlcore::swiglu" in {event.key for event in profile.key_averages()}
