"""A whole layer of a decoder as one operation, with the bits that its parts give one by one."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from rlcore.errors import ShapeError
from rlcore.numerics.compiled.library import library
from rlcore.numerics.compiled.operations import check_cache, check_heads, check_length, kv_heads_of
from rlcore.numerics.compiled.registration import address, check, check_shape, operation
from rlcore.numerics.layer_weights import LayerWeights


class _Layer(ctypes.Structure):
    """As layer.h has it."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("batch", "length", "num_heads", "num_kv_heads", "head_width", "width")),
        *((name, ctypes.c_long) for name in ("ffn_width", "positions", "threads")),
        *((name, ctypes.c_void_p) for name in (*LayerWeights._fields, "turns")),
        ("eps", ctypes.c_float),
    )


class _Gradients(ctypes.Structure):
    """As layer_backward.c has it."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in LayerWeights._fields)


_OF = "Tensor?[] weights, *, Tensor turns, int num_heads, int num_kv_heads, float eps"


@operation(f"layer(Tensor x, {_OF}) -> (Tensor, Tensor)")
def layer(
    x: Tensor, weights: Sequence[Tensor | None], *, turns: Tensor, num_heads: int, num_kv_heads: int, eps: float
) -> tuple[Tensor, Tensor]:
    """(the stream x [batch, length, width] after a layer, what its gradient needs); `weights` are `LayerWeights`."""
    of, y = _layer(x, weights, turns, (num_heads, num_kv_heads), eps), torch.empty_like(x)
    check_length(of.length, turns)
    kept = x.new_empty((library().layer_keeps(ctypes.byref(of)),))
    check(library().layer_forward(ctypes.byref(of), x.data_ptr(), *_NO_CACHE, kept.data_ptr(), y.data_ptr()))
    return y, kept


@operation(f"layer_unkept(Tensor x, {_OF}) -> Tensor")
def layer_unkept(
    x: Tensor, weights: Sequence[Tensor | None], *, turns: Tensor, num_heads: int, num_kv_heads: int, eps: float
) -> Tensor:
    """The same, nothing kept."""
    of, y = _layer(x, weights, turns, (num_heads, num_kv_heads), eps), torch.empty_like(x)
    check_length(of.length, turns)
    check(library().layer_forward(ctypes.byref(of), x.data_ptr(), *_NO_CACHE, None, y.data_ptr()))
    return y


_CACHED = "Tensor starts, Tensor(a!) keys, Tensor(b!) values, Tensor?[] weights, *, Tensor turns, int num_heads"


@operation(f"layer_cached(Tensor x, {_CACHED}, float eps) -> Tensor")
def layer_cached(
    x: Tensor,
    starts: Tensor,
    keys: Tensor,
    values: Tensor,
    weights: Sequence[Tensor | None],
    *,
    turns: Tensor,
    num_heads: int,
    eps: float,
) -> Tensor:
    """The same for positions that follow `starts` of a cache, into which they are written; as `attend_cached`."""
    of, y = _layer(x, weights, turns, (num_heads, kv_heads_of(keys)), eps), torch.empty_like(x)
    capacity = check_cache((of.batch, of.num_kv_heads, of.head_width), starts, keys, values)
    cache = starts.data_ptr(), address(keys), address(values), capacity
    check(library().layer_forward(ctypes.byref(of), x.data_ptr(), *cache, None, y.data_ptr()))
    return y


@operation(f"layer_backward(Tensor grad, Tensor x, Tensor kept, {_OF}) -> Tensor[]")
def layer_backward(
    grad: Tensor,
    x: Tensor,
    kept: Tensor,
    weights: Sequence[Tensor | None],
    *,
    turns: Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> list[Tensor]:
    """The gradients of x, and of all weights that there are."""
    of, made = _layer(x, weights, turns, (num_heads, num_kv_heads), eps), [torch.empty_like(x)]
    check_length(of.length, turns)
    check_shape(grad, *x.shape)
    check_shape(kept, library().layer_keeps(ctypes.byref(of)))
    to = _Gradients()
    for name, weight in zip(LayerWeights._fields, weights, strict=True):
        if weight is not None:
            made.append(torch.empty_like(weight) if x.numel() else torch.zeros_like(weight))
            setattr(to, name, made[-1].data_ptr())
    given = address(grad), x.data_ptr(), address(kept)
    check(library().layer_backward(ctypes.byref(of), *given, made[0].data_ptr(), ctypes.byref(to)))
    return made


_NO_CACHE = None, None, None, 0
_OPTIONAL = slice(2, 5)
"""Of `LayerWeights`: what some families do not have."""


def _layer(
    x: Tensor, weights: Sequence[Tensor | None], turns: Tensor, num_heads: tuple[int, int], eps: float
) -> _Layer:
    """`num_heads` are those of queries and of keys. Raises ShapeError where sizes do not fit, or as `address` does."""
    if x.dim() != 3 or min(num_heads) < 1 or num_heads[0] % num_heads[1]:
        told = f"a stream {tuple(x.shape)}, {num_heads[0]} heads, {num_heads[1]} of keys"
        raise ShapeError(told, legal="[batch, length, width], heads in whole groups")
    of = LayerWeights._make(weights)
    if any(x is None for x in of[: _OPTIONAL.start] + of[_OPTIONAL.stop :]):
        optional = of._fields[_OPTIONAL]
        missing = [name for name, x in of._asdict().items() if x is None and name not in optional]
        raise ShapeError(f"a layer without {', '.join(missing)}", legal=f"all but {', '.join(optional)}")
    (batch, length, width), ffn_width = x.shape, of.down.shape[-1]
    head_width = of.out.shape[-1] // num_heads[0]
    heads_width, qkv_width = num_heads[0] * head_width, (num_heads[0] + 2 * num_heads[1]) * head_width
    shapes = (width,), (qkv_width, width), (qkv_width,), (head_width,), (head_width,), (width, heads_width)
    for name, weight, shape in zip(
        LayerWeights._fields, of, (*shapes, (width,), (2 * ffn_width, width), (width, ffn_width)), strict=True
    ):
        if weight is not None and weight.shape != shape:
            raise ShapeError(f"{name} {tuple(weight.shape)}", legal=f"{shape}, as x, out and down have it")
    check_heads(head_width, turns, of.q_norm, of.k_norm)
    sizes = batch, length, *num_heads, head_width, width, ffn_width, len(turns), torch.get_num_threads()
    address(x)
    return _Layer(*sizes, *map(address, of), address(turns), eps)
