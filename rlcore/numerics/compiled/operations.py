"""The kernels as operations of torch, fp32 on a processor: recorders of operations see them under their names.

Products and attention are computed with torch's number of threads, all outside of Python's lock.
"""

import torch
from torch import Tensor

from rlcore.errors import ShapeError
from rlcore.numerics.compiled.library import library
from rlcore.numerics.compiled.registration import address, check, check_shape, check_width, operation

_BY = "Tensor? q_norm, Tensor? k_norm, float eps, Tensor turns"


@operation("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)")
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x / sqrt(mean(x^2) + eps) * weight, what each row was multiplied with [...])."""
    y, inverse = torch.empty_like(x), x.new_empty(x.shape[:-1])
    check_width(x, weight)
    given = address(x), None, address(weight), eps, inverse.numel(), x.shape[-1]
    library().rms_norm(*given, None, y.data_ptr(), inverse.data_ptr())
    return y, inverse


@operation("add_rms_norm(Tensor x, Tensor added, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)")
def add_rms_norm(x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x + added, its norm, what each row was multiplied with [...])."""
    total, y, inverse = torch.empty_like(x), torch.empty_like(x), x.new_empty(x.shape[:-1])
    check_width(x, weight)
    check_shape(added, *x.shape)
    given = address(x), address(added), address(weight), eps, inverse.numel(), x.shape[-1]
    library().rms_norm(*given, total.data_ptr(), y.data_ptr(), inverse.data_ptr())
    return total, y, inverse


@operation("rms_norm_backward(Tensor grad, Tensor? above, Tensor x, Tensor weight, Tensor inverse) -> (Tensor, Tensor)")
def rms_norm_backward(
    grad: Tensor, above: Tensor | None, x: Tensor, weight: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the weight; `above` is what reaches x besides."""
    d_x, d_weight = torch.empty_like(x), torch.empty_like(weight)
    check_width(x, weight)
    check_shape(grad, *x.shape)
    check_shape(x if above is None else above, *x.shape)
    check_shape(inverse, *x.shape[:-1])
    given = address(grad), address(above), address(x), address(weight), address(inverse)
    check(library().rms_norm_backward(*given, inverse.numel(), x.shape[-1], d_x.data_ptr(), d_weight.data_ptr()))
    return d_x, d_weight


@operation("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [rows, inputs] @ weight [outputs, inputs].T + bias [outputs] -> [rows, outputs]."""
    rows, outputs, inputs = _of_product(x, weight)
    if bias is not None:
        check_shape(bias, outputs)
    y = x.new_empty((rows, outputs))
    sizes = rows, inputs, outputs, torch.get_num_threads()
    check(library().linear(address(x), address(weight), address(bias), *sizes, y.data_ptr()))
    return y


@operation("linear_backward(Tensor grad, Tensor x, Tensor weight) -> (Tensor, Tensor, Tensor)")
def linear_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, the weight and the bias."""
    rows, outputs, inputs = _of_product(x, weight)
    check_shape(grad, rows, outputs)
    made = torch.empty_like(x), torch.empty_like(weight), x.new_empty(outputs)
    sizes = rows, inputs, outputs, torch.get_num_threads()
    check(
        library().linear_backward(
            address(grad), address(x), address(weight), *sizes, *(each.data_ptr() for each in made)
        )
    )
    return made


@operation("swiglu(Tensor gate_up) -> Tensor")
def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [..., gates, then as many ups]."""
    *rows, width = gate_up.shape
    if width % 2 or not width:
        raise ShapeError(f"gates and ups {width} wide together", legal="an even number, 2 or more")
    y = gate_up.new_empty((*rows, width // 2))
    library().swiglu(address(gate_up), gate_up.numel() // width, width // 2, y.data_ptr())
    return y


@operation("swiglu_backward(Tensor grad, Tensor gate_up) -> Tensor")
def swiglu_backward(grad: Tensor, gate_up: Tensor) -> Tensor:
    """The gradient of gates and ups."""
    width, d_gate_up = gate_up.shape[-1], torch.empty_like(gate_up)
    check_shape(grad, *gate_up.shape[:-1], width // 2)
    sizes = gate_up.numel() // width, width // 2
    library().swiglu_backward(address(grad), address(gate_up), *sizes, d_gate_up.data_ptr(), None)
    return d_gate_up


@operation("uniforms(Tensor states, Tensor ids) -> Tensor")
def uniforms(states: Tensor, ids: Tensor) -> Tensor:
    """int64 [rows], int64 [count] -> fp64 [rows, count] in (0, 1): as `rlcore.samplers.gumbel` makes them."""
    for x in (states, ids):
        if x.dtype is not torch.int64 or x.dim() != 1 or not x.is_contiguous() or not x.is_cpu:
            told = f"{x.dtype} on {x.device} of strides {x.stride()}, sizes {tuple(x.shape)}"
            raise ShapeError(told, legal="contiguous int64 of one dimension on cpu")
    y = torch.empty((len(states), len(ids)), dtype=torch.float64)
    library().uniforms(states.data_ptr(), ids.data_ptr(), len(states), len(ids), y.data_ptr())
    return y


@operation(f"attend(Tensor heads, int num_kv_heads, *, {_BY}) -> (Tensor, Tensor)")
def attend(
    heads: Tensor, num_kv_heads: int, *, q_norm: Tensor | None, k_norm: Tensor | None, eps: float, turns: Tensor
) -> tuple[Tensor, Tensor]:
    """(mixed [batch, length, num_heads, width], the largest score of each query and the sum of its portions)."""
    sizes = _sizes(heads, num_kv_heads, turns, q_norm, k_norm)
    batch, length, num_heads, _, width, _ = sizes
    check_length(length, turns)
    mixed = heads.new_empty((batch, length, num_heads, width))
    softmax = heads.new_empty((2, batch, num_heads, length))
    given = address(heads), address(q_norm), address(k_norm), eps, address(turns)
    made = mixed.data_ptr(), *(x.data_ptr() for x in softmax)
    check(library().attend(*given, None, *sizes, None, None, 0, torch.get_num_threads(), *made))
    return mixed, softmax


@operation(
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
    sizes = _sizes(heads, kv_heads_of(keys), turns, q_norm, k_norm)
    batch, length, num_heads, num_kv_heads, width, _ = sizes
    capacity = check_cache((batch, num_kv_heads, width), starts, keys, values)
    mixed = heads.new_empty((batch, length, num_heads, width))
    given = address(heads), address(q_norm), address(k_norm), eps, address(turns), starts.data_ptr()
    check(
        library().attend(
            *given,
            *sizes,
            address(keys),
            address(values),
            capacity,
            torch.get_num_threads(),
            mixed.data_ptr(),
            None,
            None,
        )
    )
    return mixed


@operation(
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
    check_shape(mixed, batch, length, num_heads, width)
    check_shape(grad, *mixed.shape)
    check_shape(softmax, 2, batch, num_heads, length)
    check_length(length, turns)
    d_heads, d_norms = torch.empty_like(heads), heads.new_empty((2, heads.shape[3] if q_norm is not None else 0))
    d_q_norm, d_k_norm = d_norms
    given = *map(address, (grad, heads, mixed, *softmax, q_norm, k_norm)), eps, address(turns)
    made = d_heads.data_ptr(), d_q_norm.data_ptr(), d_k_norm.data_ptr()
    check(library().attend_backward(*given, *sizes[:5], torch.get_num_threads(), *made))
    return d_heads, d_q_norm, d_k_norm


WIDTHS = 16
"""Heads are a multiple as wide, as many numbers as a kernel takes together; and so is a cache's capacity."""


def _of_product(x: Tensor, weight: Tensor) -> tuple[int, int, int]:
    """(rows, outputs, inputs). Raises ShapeError."""
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1] or not weight.numel():
        told = f"a product of {tuple(x.shape)} and {tuple(weight.shape)}"
        raise ShapeError(told, legal="[rows, inputs], [outputs, inputs], neither of them 0")
    return x.shape[0], *weight.shape


def _sizes(
    heads: Tensor, num_kv_heads: int, turns: Tensor, q_norm: Tensor | None, k_norm: Tensor | None
) -> tuple[int, int, int, int, int, int]:
    """(batch, length, heads, kv heads, width, positions of the turns). Raises ShapeError."""
    if heads.dim() != 4:
        told = f"heads {tuple(heads.shape)}"
        raise ShapeError(told, legal="[batch, length, queries + keys + values, width]")
    batch, length, num_all, width = heads.shape
    num_heads = num_all - 2 * num_kv_heads
    if min(num_kv_heads, num_heads) < 1 or num_heads % num_kv_heads:
        raise ShapeError(f"heads {tuple(heads.shape)}, {num_kv_heads} of keys", legal="queries in whole groups")
    check_heads(width, turns, q_norm, k_norm)
    return batch, length, num_heads, num_kv_heads, width, len(turns)


def check_heads(width: int, turns: Tensor, q_norm: Tensor | None, k_norm: Tensor | None) -> None:
    """See that heads can be this wide, and have turns and norms. Raises ShapeError."""
    if turns.dim() != 2 or turns.shape[1] != 2 * width:
        raise ShapeError(f"turns {tuple(turns.shape)}, heads {width} wide", legal="[positions, 2 * width]")
    if width % WIDTHS:
        raise ShapeError(f"heads {width} wide", legal=f"a multiple of {WIDTHS}", remedy="model.kernels torch")
    if (q_norm is None) != (k_norm is None):
        raise ShapeError("one norm", legal="norms of queries and of keys, or none")
    for norm in (q_norm, k_norm):
        if norm is not None:
            check_shape(norm, width)


def check_length(length: int, turns: Tensor) -> None:
    """Raises ShapeError for positions that there are no turns of."""
    if length > len(turns):
        raise ShapeError(f"{length} positions", legal=f"up to {len(turns)}, which the turns are of")


def kv_heads_of(keys: Tensor) -> int:
    """Return the capacity of a cache; raise ShapeError for keys of another shape."""
    if keys.dim() != 4:
        raise ShapeError(f"keys {tuple(keys.shape)}", legal="[batch, kv_heads, width, capacity]")
    return keys.shape[1]


def check_cache(of: tuple[int, int, int], starts: Tensor, keys: Tensor, values: Tensor) -> int:
    """The cache's capacity. Raises ShapeError where it is not one of these sizes: batch, heads of keys, their width."""
    (batch, num_kv_heads, width), capacity = of, keys.shape[-1]
    if keys.shape != (batch, num_kv_heads, width, capacity) or values.shape != (batch, num_kv_heads, capacity, width):
        raise ShapeError(
            f"a cache of {tuple(keys.shape)} and {tuple(values.shape)}",
            legal=f"[{batch}, {num_kv_heads}, {width}, capacity], and values the other way",
        )
    is_numbers = starts.dtype is torch.int64 and starts.is_cpu and starts.is_contiguous()
    if capacity % WIDTHS or not is_numbers or starts.shape != (batch,):
        raise ShapeError(
            f"a capacity of {capacity}, starts {starts.dtype} {tuple(starts.shape)} on {starts.device}",
            legal=f"a multiple of {WIDTHS}, int64 [{batch}] on cpu",
        )
    return capacity
