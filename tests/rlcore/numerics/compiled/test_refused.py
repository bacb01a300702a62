"""What the operations refuse: tensors that do not belong together, are of another kind, or lie otherwise."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from rlcore.errors import InvalidValueError, KernelError, RlcoreError, ShapeError
from rlcore.numerics.compiled import layers, operations
from rlcore.numerics.compiled.differentiable import attend
from tests.rlcore.numerics.compiled.calls import (
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
    apart,
    backward,
    cached,
    kept,
    layer_backward,
    layer_cached,
    of_layer,
)
from tests.rlcore.numerics.compiled.heads_drawn import NUM_POSITIONS, drawn

pytestmark = [pytest.mark.needs_compiler, pytest.mark.full]

REFUSED: dict[str, tuple[type[RlcoreError], Callable[[], object]]] = {
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
    "starts elsewhere": (ShapeError, lambda: cached(starts=STARTS.to("meta"))),
    "starts of a layer elsewhere": (ShapeError, lambda: layer_cached(starts=STARTS.to("meta"))),
    "keys of one dimension": (ShapeError, lambda: cached(keys=drawn(32))),
    "keys of a layer of one dimension": (ShapeError, lambda: layer_cached(keys=drawn(32))),
    "a stream of one dimension": (ShapeError, lambda: of_layer(x=drawn(32))),
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

REFUSED |= {
    "linear of fp64": (ShapeError, lambda: operations.linear(X.double(), MATRIX, BIAS)),
    "linear of what lies apart": (ShapeError, lambda: operations.linear(apart(X), MATRIX, BIAS)),
    "linear on another device": (ShapeError, lambda: operations.linear(X.to("meta"), MATRIX.to("meta"), None)),
    "linear by bf16": (ShapeError, lambda: operations.linear(X, MATRIX.bfloat16(), BIAS)),
    "linear by columns": (ShapeError, lambda: operations.linear(X, MATRIX.t().contiguous().t(), BIAS)),
    "linear of other inputs": (ShapeError, lambda: operations.linear(X[:, :13].contiguous(), MATRIX, BIAS)),
    "linear of three dimensions": (ShapeError, lambda: operations.linear(X[None], MATRIX, BIAS)),
    "a bias of fewer": (ShapeError, lambda: operations.linear(X, MATRIX, BIAS[:8])),
    "a bias of fp64": (ShapeError, lambda: operations.linear(X, MATRIX, BIAS.double())),
    "linear backward, fewer grads": (ShapeError, lambda: operations.linear_backward(drawn(5, 9), X, MATRIX)),
    "linear backward, narrow grads": (ShapeError, lambda: operations.linear_backward(drawn(6, 8), X, MATRIX)),
    "linear backward of other inputs": (ShapeError, lambda: operations.linear_backward(drawn(6, 9), X, drawn(9, 13))),
    "linear backward of fp64": (ShapeError, lambda: operations.linear_backward(drawn(6, 9).double(), X, MATRIX)),
    "linear backward, apart": (ShapeError, lambda: operations.linear_backward(apart(drawn(6, 9)), X, MATRIX)),
    "a stream of two dimensions": (ShapeError, lambda: of_layer(STREAM[0])),
    "a stream of fp64": (ShapeError, lambda: of_layer(STREAM.double())),
    "a stream that lies apart": (ShapeError, lambda: of_layer(apart(STREAM))),
    "a narrower stream": (ShapeError, lambda: of_layer(drawn(2, 5, 43))),
    "a longer stream than turns": (ShapeError, lambda: of_layer(drawn(1, NUM_POSITIONS + 1, 44))),
    "unkept, longer than turns": (
        ShapeError,
        lambda: layers.layer_unkept(drawn(1, NUM_POSITIONS + 1, 44), WEIGHTS, **MEETING),
    ),
    "no heads of keys": (ShapeError, lambda: of_layer(num_kv_heads=0)),
    "heads not in groups": (ShapeError, lambda: of_layer(num_kv_heads=3)),
    "no heads": (ShapeError, lambda: of_layer(num_heads=0, num_kv_heads=-1)),
    "other heads": (ShapeError, lambda: of_layer(num_heads=2)),
    "a layer's heads of 24": (
        ShapeError,
        lambda: of_layer(
            qkv=drawn(192, 44), qkv_bias=drawn(192), q_norm=None, k_norm=None, out=drawn(44, 96), turns=drawn(48, 48)
        ),
    ),
    "a layer of one norm": (ShapeError, lambda: of_layer(q_norm=None)),
    "a layer's turns of another width": (ShapeError, lambda: of_layer(turns=drawn(48, 16))),
    "a layer's turns apart": (ShapeError, lambda: of_layer(turns=apart(drawn(48, 32)))),
    "layer before the cache": (InvalidValueError, lambda: layer_cached(torch.tensor([-1, 0]))),
    "layer beyond the cache": (InvalidValueError, lambda: layer_cached(torch.tensor([0, 28]))),
    "layer beyond the turns": (InvalidValueError, lambda: layer_cached(torch.tensor([0, 44]), capacity=64)),
    "layer's starts of int32": (ShapeError, lambda: layer_cached(STARTS.int())),
    "layer's starts apart": (ShapeError, lambda: layer_cached(apart(STARTS))),
    "layer's starts of one": (ShapeError, lambda: layer_cached(STARTS[:1])),
    "layer's capacity of 20": (ShapeError, lambda: layer_cached(capacity=20)),
    "layer's cache of more": (ShapeError, lambda: layer_cached(keys=SIZES.cache(3, 32)[0])),
    "layer's cache of no heads": (ShapeError, lambda: layer_cached(keys=torch.zeros(2, 0, 16, 32))),
    "layer's cache of heads not in groups": (ShapeError, lambda: layer_cached(keys=torch.zeros(2, 3, 16, 32))),
    "layer's values as keys": (ShapeError, lambda: layer_cached(values=LAYER.cache(32)[0])),
    "layer's keys of fp64": (ShapeError, lambda: layer_cached(keys=LAYER.cache(32)[0].double())),
    "layer's keys apart": (ShapeError, lambda: layer_cached(keys=apart(LAYER.cache(32)[0]))),
    "layer's stream behind a cache": (ShapeError, lambda: layer_cached(x=STREAM.double())),
    "kept of another size": (ShapeError, lambda: layer_backward(kept=kept()[1:])),
    "kept of fp64": (ShapeError, lambda: layer_backward(kept=kept().double())),
    "kept apart": (ShapeError, lambda: layer_backward(kept=apart(kept()))),
    "layer backward, fewer grads": (ShapeError, lambda: layer_backward(grad=LAYER.grad()[:, 1:].contiguous())),
    "layer backward, grads apart": (ShapeError, lambda: layer_backward(grad=apart(LAYER.grad()))),
    "layer backward, fp64": (ShapeError, lambda: layer_backward(grad=LAYER.grad().double())),
    "layer backward, longer than turns": (ShapeError, lambda: layer_backward(turns=MEETING["turns"][:4].clone())),
    **{
        f"{name} {what}": (ShapeError, partial(of_layer, **{name: wrong}))
        for name, weight in WEIGHTS._asdict().items()
        for what, wrong in {
            "of one more": torch.cat((weight, weight[:1])),
            "of another width": weight[..., :-1].contiguous(),
            "of fp64": weight.double(),
            "apart": apart(weight),
        }.items()
    },
}


@pytest.mark.parametrize(("error", "call"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(error: type[RlcoreError], call: Callable[[], object]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error and caught.value.what


def test_calls_that_fit_are_taken() -> None:
    """The ones that the refused ones differ from."""
    assert cached().shape == cached(starts=torch.tensor([27, 0])).shape == (2, 5, 4, 16)
    assert backward()[0].shape == HEADS.shape
    assert operations.linear(X, MATRIX, BIAS).shape == (6, 9)
    assert [each.shape for each in operations.linear_backward(drawn(6, 9), X, MATRIX)] == [(6, 14), (9, 14), (9,)]
    assert of_layer()[0].shape == of_layer(q_norm=None, k_norm=None, qkv_bias=None)[0].shape == STREAM.shape
    assert layer_cached().shape == layer_cached(torch.tensor([27, 0])).shape == STREAM.shape
    assert [each.shape for each in layer_backward()[1:]] == [each.shape for each in WEIGHTS if each is not None]


NUM_KEPT = 16


class Full:
    """Stands for the library where there is no memory: a kernel says so by 1."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: NUM_KEPT if name == "layer_keeps" else 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: attend(HEADS, BY, 2),
        cached,
        lambda: operations.linear(X, MATRIX, BIAS),
        lambda: operations.linear_backward(drawn(6, 9), X, MATRIX),
        of_layer,
        lambda: layers.layer_unkept(STREAM, WEIGHTS, **MEETING),
        layer_cached,
        lambda: layer_backward(kept=drawn(NUM_KEPT)),
    ],
    ids=["attend", "cached", "linear", "linear backward", "layer", "unkept", "layer cached", "layer backward"],
)
def test_memory_that_is_not_there_is_told(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (operations, layers):
        monkeypatch.setattr(module, "library", Full)
    with pytest.raises(KernelError, match="memory"), torch.no_grad():
        call()


@pytest.mark.parametrize("name", ["attention_norm", "qkv", "out", "mlp_norm", "gate_up", "down"])
def test_weights_that_every_layer_has_are_asked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a kernel would read them where nothing is."""
    monkeypatch.setattr(layers, "library", Full)
    without: dict[str, Any] = {name: None}
    with pytest.raises(ShapeError, match=name):
        of_layer(**without)
