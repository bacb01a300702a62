"""The kernels as operations of torch, fp32 on a processor: whoever records operations sees them under their names.

They compute with one thread, outside of Python's lock.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from rlcore.errors import InvalidValueError, KernelError, ShapeError
from rlcore.numerics.compiled.library import library

_LIBRARY = torch.library.Library("rlcore", "DEF")  # type: ignore[no-untyped-call]
_BY = "Tensor? q_norm, Tensor? k_norm, float eps, Tensor turns"
P = ParamSpec("P")
R = TypeVar("R")


def _operation(schema: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a function as an operation, which goes through torch where somebody watches operations, and only there.

    The way through torch and back to Python takes ten microseconds: five times what the norm of 64 rows does.
    """

    def registered(function: Callable[P, R]) -> Callable[P, R]:
        name = schema.partition("(")[0]
        _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
        _LIBRARY.impl(name, function, "CPU")  # type: ignore[no-untyped-call]
        watched: Callable[P, R] = getattr(torch.ops.rlcore, name).default

        @functools.wraps(function)
        def operation(*given: P.args, **named: P.kwargs) -> R:
            __tracebackhide__ = True  # whoever names source lines wants the caller's
            if torch._C._len_torch_dispatch_stack() or torch._C._autograd._profiler_enabled():
                return watched(*given, **named)
            return function(*given, **named)

        return operation

    return registered


@_operation("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)")
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x / sqrt(mean(x^2) + eps) * weight, what each row was multiplied with [...])."""
    y, inverse = torch.empty_like(x), x.new_empty(x.shape[:-1])
    _check_width(x, weight)
    given = _at(x), None, _at(weight), eps, inverse.numel(), x.shape[-1]
    library().rms_norm(*given, None, y.data_ptr(), inverse.data_ptr())
    return y, inverse


@_operation("add_rms_norm(Tensor x, Tensor added, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)")
def add_rms_norm(x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x + added, its norm, what each row was multiplied with [...])."""
    total, y, inverse = torch.empty_like(x), torch.empty_like(x), x.new_empty(x.shape[:-1])
    _check_width(x, weight)
    _check_shape(added, *x.shape)
    given = _at(x), _at(added), _at(weight), eps, inverse.numel(), x.shape[-1]
    library().rms_norm(*given, total.data_ptr(), y.data_ptr(), inverse.data_ptr())
    return total, y, inverse


@_operation(
    "rms_norm_backward(Tensor grad, Tensor? above, Tensor x, Tensor weight, Tensor inverse) -> (Tensor, Tensor)"
)
def rms_norm_backward(
    grad: Tensor, above: Tensor | None, x: Tensor, weight: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the weight; `above` is what reaches x besides."""
    d_x, d_weight = torch.empty_like(x), torch.empty_like(weight)
    _check_width(x, weight)
    _check_shape(grad, *x.shape)
    _check_shape(x if above is None else above, *x.shape)
    _check_shape(inverse, *x.shape[:-1])
    given = _at(grad), _at(above), _at(x), _at(weight), _at(inverse)
    _check(library().rms_norm_backward(*given, inverse.numel(), x.shape[-1], d_x.data_ptr(), d_weight.data_ptr()))
    return d_x, d_weight


@_operation("swiglu(Tensor gate_up) -> Tensor")
def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [..., gates, then as many ups]."""
    *rows, width = gate_up.shape
    if width % 2 or not width:
        raise ShapeError(f"gates and ups {width} wide together", legal="an even number, 2 or more")
    y = gate_up.new_empty((*rows, width // 2))
    library().swiglu(_at(gate_up), gate_up.numel() // width, width // 2, y.data_ptr())
    return y


@_operation("swiglu_backward(Tensor grad, Tensor gate_up) -> Tensor")
def swiglu_backward(grad: Tensor, gate_up: Tensor) -> Tensor:
    """The gradient of gates and ups."""
    width, d_gate_up = gate_up.shape[-1], torch.empty_like(gate_up)
    _check_shape(grad, *gate_up.shape[:-1], width // 2)
    library().swiglu_backward(_at(grad), _at(gate_up), gate_up.numel() // width, width // 2, d_gate_up.data_ptr())
    return d_gate_up


@_operation(f"attend(Tensor heads, int num_kv_heads, *, {_BY}) -> (Tensor, Tensor)")
def attend(
    heads: Tensor, num_kv_heads: int, *, q_norm: Tensor | None, k_norm: Tensor | None, eps: float, turns: Tensor
) -> tuple[Tensor, Tensor]:
    """(mixed [batch, length, num_heads, width], the largest score of each query and the sum of its portions)."""
    sizes = _sizes(heads, num_kv_heads, turns, q_norm, k_norm)
    batch, length, num_heads, _, width, _ = sizes
    _check_length(sizes)
    mixed = heads.new_empty((batch, length, num_heads, width))
    softmax = heads.new_empty((2, batch, num_heads, length))
    given = _at(heads), _at(q_norm), _at(k_norm), eps, _at(turns)
    made = mixed.data_ptr(), *(x.data_ptr() for x in softmax)
    _check(library().attend(*given, None, *sizes, None, None, 0, *made))
    return mixed, softmax


@_operation(
    f"attend_cached(Tensor heads, Tensor starts, *, Tensor(a!) keys, Tensor(b!) values, {_BY}) -> Tensor",
)
def attend_cached(
    heads: Tensor,
    starts: Tensor,
    *,
    keys: Tensor,
    values: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    turns: Tensor,
) -> Tensor:
    """Mixed [batch, length, num_heads, width]; keys [batch, kv_heads, width, capacity], values the other way."""
    sizes = _sizes(heads, keys.shape[1], turns, q_norm, k_norm)
    batch, length, num_heads, num_kv_heads, width, _ = sizes
    capacity = keys.shape[3]
    if keys.shape[:3] != (batch, num_kv_heads, width) or values.shape != (batch, num_kv_heads, capacity, width):
        raise ShapeError(f"a cache of {tuple(keys.shape)} and {tuple(values.shape)} for heads {tuple(heads.shape)}")
    if capacity % WIDTHS or starts.dtype is not torch.int64 or starts.shape != (batch,) or not starts.is_contiguous():
        raise ShapeError(
            f"a capacity of {capacity}, starts {starts.dtype} {tuple(starts.shape)}",
            legal=f"a multiple of {WIDTHS}, int64 [{batch}]",
        )
    mixed = heads.new_empty((batch, length, num_heads, width))
    given = _at(heads), _at(q_norm), _at(k_norm), eps, _at(turns), starts.data_ptr()
    _check(library().attend(*given, *sizes, _at(keys), _at(values), capacity, mixed.data_ptr(), None, None))
    return mixed


@_operation(
    f"attend_backward(Tensor grad, Tensor heads, Tensor mixed, Tensor softmax, *, {_BY}) -> (Tensor, Tensor, Tensor)"
)
def attend_backward(
    grad: Tensor,
    heads: Tensor,
    mixed: Tensor,
    softmax: Tensor,
    *,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    turns: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of heads and of both norms; of norms that are not there, nothing."""
    sizes = _sizes(heads, (heads.shape[2] - mixed.shape[2]) // 2, turns, q_norm, k_norm)
    batch, length, num_heads, _, width, _ = sizes
    _check_shape(mixed, batch, length, num_heads, width)
    _check_shape(grad, *mixed.shape)
    _check_shape(softmax, 2, batch, num_heads, length)
    _check_length(sizes)
    d_heads, d_norms = torch.empty_like(heads), heads.new_empty((2, heads.shape[3] if q_norm is not None else 0))
    d_q_norm, d_k_norm = d_norms
    given = *map(_at, (grad, heads, mixed, *softmax, q_norm, k_norm)), eps, _at(turns)
    made = d_heads.data_ptr(), d_q_norm.data_ptr(), d_k_norm.data_ptr()
    _check(library().attend_backward(*given, *sizes[:5], *made))
    return d_heads, d_q_norm, d_k_norm


WIDTHS = 16
"""Heads are a multiple as wide, as many numbers as a kernel takes together; and so is a cache's capacity."""


def _sizes(
    heads: Tensor, num_kv_heads: int, turns: Tensor, q_norm: Tensor | None, k_norm: Tensor | None
) -> tuple[int, int, int, int, int, int]:
    """(batch, length, heads, kv heads, width, positions of the turns). Raises ShapeError."""
    if heads.dim() != 4 or turns.dim() != 2:
        raise ShapeError(
            f"heads {tuple(heads.shape)}, turns {tuple(turns.shape)}",
            legal="[batch, length, queries + keys + values, width], [positions, 2 * width]",
        )
    batch, length, num_all, width = heads.shape
    num_heads = num_all - 2 * num_kv_heads
    is_grouped = num_kv_heads > 0 and num_heads > 0 and num_heads % num_kv_heads == 0
    if not is_grouped or turns.shape[1] != 2 * width or (q_norm is None) != (k_norm is None):
        raise ShapeError(f"heads {tuple(heads.shape)}, {num_kv_heads} of keys, turns {tuple(turns.shape)}")
    if width % WIDTHS:
        raise ShapeError(f"heads {width} wide", legal=f"a multiple of {WIDTHS}", remedy="model.kernels torch")
    if q_norm is not None and k_norm is not None:
        _check_width(heads, q_norm)
        _check_width(heads, k_norm)
    return batch, length, num_heads, num_kv_heads, width, len(turns)


def _check_width(x: Tensor, weight: Tensor) -> None:
    if weight.numel() != x.shape[-1]:
        raise ShapeError(f"a weight {tuple(weight.shape)} for rows of {tuple(x.shape)}", legal="[width]")


def _check_shape(x: Tensor, *shape: int) -> None:
    if x.shape != shape:
        raise ShapeError(f"sizes {tuple(x.shape)}", legal=f"{shape}, as the others have them")


def _check_length(sizes: tuple[int, ...]) -> None:
    _, length, *_, positions = sizes
    if length > positions:
        raise ShapeError(f"{length} positions", legal=f"up to {positions}, which the turns are of")


def _at(x: Tensor | None) -> int | None:
    """Where its numbers begin. Raises ShapeError where they do not lie one after another, are not fp32 or not here."""
    if x is None:
        return None
    if x.dtype is not torch.float32 or not x.is_contiguous() or not x.is_cpu:
        told = f"{x.dtype} on {x.device} of strides {x.stride()}, sizes {tuple(x.shape)}"
        raise ShapeError(told, legal="contiguous float32 on cpu")
    return x.data_ptr()


def _check(problem: int) -> None:
    if problem == 1:
        raise KernelError("there is not enough memory for a kernel's scratch space")
    if problem == 2:
        raise InvalidValueError(
            "sequences that do not fit into the cache",
            legal="starts + length up to its capacity, and to the positions that the turns are of",
        )
