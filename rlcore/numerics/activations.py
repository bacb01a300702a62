"""SwiGLU whose bits do not depend on where in a tensor an element lies.

torch's own silu uses other code for the last elements of a loop, so that an element's bits change with the size of the
tensor. Here a loop is a row, whose last elements are the same ones in any batch: gates lie beside what they open, so
that rows are no single piece of memory, and few enough are handed over at once that threads do not divide them. It also
keeps what is worked on in a core's cache. Made of exp and division, which any loop gives alike, it costs more.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rlcore.numerics.level import is_invariant

ELEMENTS_AT_ONCE = 32_767
"""Of torch's loops over elements, one less than what it divides among threads."""


def _blocks(num_rows: int, width: int) -> Iterator[tuple[slice, slice]]:
    """(rows, columns) that are computed together; which columns does not depend on how many rows there are."""
    columns = min(width, ELEMENTS_AT_ONCE)
    rows = ELEMENTS_AT_ONCE // columns
    for first in range(0, num_rows, rows):
        for left in range(0, width, columns):
            yield slice(first, first + rows), slice(left, min(left + columns, width))


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Gates and what they open, of x [rows, 2 * width]: views [rows, width]."""
    width = x.shape[1] // 2
    return x[:, :width], x[:, width:]


def _swiglu(gate_up: Tensor) -> Tensor:
    """[rows, 2 * width] -> [rows, width]."""
    gate, up = _halves(gate_up)
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    for block in _blocks(*gate.shape):
        torch.mul(F.silu(gate[block]), up[block], out=y[block])
    return y


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return _swiglu(gate_up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        inner = torch.empty_like(gate_up)
        (gate, up), (to_gate, to_up) = _halves(gate_up), _halves(inner)
        for block in _blocks(*gate.shape):
            torch.mul(F.silu(gate[block]), grad[block], out=to_up[block])
            torch.ops.aten.silu_backward(grad[block] * up[block], gate[block], grad_input=to_gate[block])
        return inner


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [..., gates, then as many ups] -> [..., half of it].

    Shazeer 2020, "GLU Variants Improve Transformer".
    """
    if not is_invariant():
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up
    rows = gate_up.reshape(-1, gate_up.shape[-1])
    y: Tensor = _SwiGLU.apply(rows) if torch.is_grad_enabled() else _swiglu(rows)  # type: ignore[no-untyped-call]
    return y.view(*gate_up.shape[:-1], y.shape[-1])
