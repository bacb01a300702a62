"""Calls of the operations that fit, but for what a test gives them instead; of small tensors."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from rlcore.numerics.compiled import layers, operations
from tests.rlcore.numerics.compiled.heads_drawn import Sizes, drawn
from tests.rlcore.numerics.compiled.layers_drawn import LayerSizes

SIZES = Sizes(2, 5, 2, 2, 16, has_norms=True)
HEADS, GRAD, BY = SIZES.heads(), SIZES.grad(), SIZES.by()
STARTS = torch.tensor([3, 8])
NORMS = BY._asdict()
X, WEIGHT = drawn(6, 14), drawn(14, seed=1)
MATRIX, BIAS = drawn(9, 14, seed=2), drawn(9, seed=3)


def apart(x: Tensor) -> Tensor:
    """The same numbers, not one after another."""
    return torch.stack((x, x), -1)[..., 0]


def cached(heads: Tensor = HEADS, starts: Tensor = STARTS, *, capacity: int = 32, **other: Any) -> Tensor:
    """A call that fits, but for what is given."""
    keys, values = SIZES.cache(2, capacity)
    return operations.attend_cached(heads, starts, **{"keys": keys, "values": values, **NORMS, **other})


def backward(**other: Any) -> Any:
    """The same of attention's gradient."""
    mixed, softmax = operations.attend(HEADS, 2, **NORMS)
    given = {"grad": GRAD, "heads": HEADS, "mixed": mixed, "softmax": softmax, **NORMS, **other}
    return operations.attend_backward(**given)


LAYER = LayerSizes(SIZES, 44, 20, has_bias=True)
STREAM, WEIGHTS = LAYER.stream(), LAYER.weights()
MEETING: dict[str, Any] = LAYER.by()._asdict()


def behind(by: dict[str, Any]) -> dict[str, Any]:
    """The same behind a cache, which has the number of its heads."""
    return {name: value for name, value in by.items() if name != "num_kv_heads"}


BEHIND = behind(MEETING)


def of_layer(x: Tensor = STREAM, **other: Any) -> Any:
    """A layer whose call would fit, but for these weights, or other arguments by name."""
    weights = WEIGHTS._replace(**{name: value for name, value in other.items() if name in WEIGHTS._fields})
    by = {name: other.get(name, value) for name, value in MEETING.items()}
    return layers.layer(x, weights, **by)


def layer_cached(starts: Tensor = STARTS, x: Tensor = STREAM, *, capacity: int = 32, **other: Any) -> Tensor:
    """The same behind a cache."""
    keys, values = LAYER.cache(capacity)
    given = {"keys": keys, "values": values, "weights": WEIGHTS, **BEHIND, **other}
    return layers.layer_cached(x, starts, **given)


@cache
def kept() -> Tensor:
    """What the layer leaves for its gradient."""
    return layers.layer(STREAM, WEIGHTS, **MEETING)[1]


def layer_backward(**other: Any) -> list[Tensor]:
    """The same of the gradient."""
    given = {"grad": LAYER.grad(), "x": STREAM, "kept": kept(), "weights": WEIGHTS, **MEETING, **other}
    return layers.layer_backward(**given)
