"""SwiGLU whose bits do not depend on where in a tensor an element lies.

torch's own silu uses other code for the last elements of a loop, so that an element's bits change with the size of the
tensor. Here a loop is a row, whose last elements are the same ones in any batch: gates lie beside what they open, so
that rows are no single piece of memory, and where there are threads few enough are handed over at once that none is
divided. Made of exp and division, which any loop gives alike, it costs more.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rlcore.numerics.level import is_invariant, uses_triton

ELEMENTS_AT_ONCE = 32_767
"""Of torch's loops over elements, one less than what it divides among threads."""


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same parts of each [rows, width], as views, or all; where columns are cut does not depend on how many rows.

    One thread divides nothing: it is handed all rows at once, each a loop all the same. A GPU has no such loops, and is
    handed all.
    """
    num_rows, width = tensors[0].shape
    columns = min(width, ELEMENTS_AT_ONCE)
    rows = num_rows if torch.get_num_threads() == 1 else ELEMENTS_AT_ONCE // columns
    if not is_invariant() or not tensors[0].is_cpu or (rows >= num_rows and columns == width):
        yield tensors
        return
    for parts in zip(*(torch.split(x, rows) for x in tensors), strict=True):
        yield from zip(*(torch.split(part, columns, 1) for part in parts), strict=True)


def _swiglu(gate_up: Tensor) -> Tensor:
    """[rows, 2 * width] -> [rows, width]."""
    if uses_triton():
        from rlcore.numerics import gpu

        return gpu.swiglu(gate_up)
    gates, ups = gate_up.chunk(2, 1)
    products = torch.empty(gates.shape, dtype=gates.dtype, device=gates.device)
    for gate, up, y in _blocks(gates, ups, products):
        torch.mul(F.silu(gate), up, out=y)
    return products


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return _swiglu(gate_up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        if uses_triton():
            from rlcore.numerics import gpu

            return gpu.swiglu(gate_up, grads)
        inner = torch.empty_like(gate_up)
        for gate, up, grad, to_gate, to_up in _blocks(*gate_up.chunk(2, 1), grads, *inner.chunk(2, 1)):
            torch.mul(F.silu(gate), grad, out=to_up)
            torch.ops.aten.silu_backward(grad * up, gate, grad_input=to_gate)
        return inner


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [..., gates, then as many ups] -> [..., half of it].

    Shazeer 2020, "GLU Variants Improve Transformer".
    """
    rows = gate_up.reshape(-1, gate_up.shape[-1])
    y: Tensor = _SwiGLU.apply(rows) if torch.is_grad_enabled() else _swiglu(rows)  # type: ignore[no-untyped-call]
    return y.view(*gate_up.shape[:-1], y.shape[-1])
