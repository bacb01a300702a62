"""Matrix products by rows, by the library that is fastest here: oneDNN for fp32 on a processor that is not Intel's.

Which one it is follows from the processor and moves bits; a trace's fingerprint has the processor among its numerics.
torch itself gives fp32 products to MKL, which uses half the width of such a processor: on a Zen 5 they take twice
as long. On Intel's own MKL is the faster one (figures and dates are in rlcore/DESIGN.md, "Numerics").
"""

import ctypes
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rlcore.errors import LevelError
from rlcore.numerics.level import active, in_tiles, padded, uses_triton
from rlcore.numerics.row_sum import expand_rows

HAS_MKL: bool = torch._C.has_mkl
HAS_ONEDNN: bool = torch._C._has_mkldnn
"""Whether torch was built with it."""


def library(processor: str, *, has_mkl: bool = HAS_MKL, has_onednn: bool = HAS_ONEDNN) -> str:
    """Whose fp32 products a processor of this name computes fastest: "oneDNN", or "torch" for what torch takes."""
    return "oneDNN" if has_onednn and not (has_mkl and processor.startswith("Intel")) else "torch"


LIBRARY = library(str(torch.cpu.get_capabilities().get("cpu_name", "")))
"""Whose they are in this process: for good, since the bits are others."""


_MODES = {1: "OFF", 2: "AUTO", 3: "COMPATIBLE"}
_STRICT = 0x10000


def hold_mkl_mode(environ: MutableMapping[str, str]) -> None:
    """Have MKL compute in the one mode that level invariant is defined with, unless the variable is set to another.

    AUTO, and strict on Intel's processors, where each product's numbers are then added in one order for any rows and
    threads; strict mode costs nothing measurable. MKL reads the variable at its first work in a process: LevelError if
    that was before this, or the variable has another value.
    """
    if not HAS_MKL:
        return
    wanted = mkl_mode()
    if environ.get("MKL_CBWR", "AUTO").upper() == "AUTO":
        environ["MKL_CBWR"] = wanted
    if (found := _mode_in_effect()) not in ("", wanted, "AUTO,STRICT"):
        raise LevelError(
            f"MKL computes in mode {found} and MKL_CBWR is {environ['MKL_CBWR']}: MKL reads it once, at its first work",
            legal=f"MKL_CBWR={wanted} before that",
            remedy=f"export MKL_CBWR={wanted} before Python starts, or enter the level before anything is computed;"
            " rlharness train sets it",
        )


def mkl_mode() -> str:
    """Return the value of MKL_CBWR that level invariant is defined with on this processor."""
    return "AUTO,STRICT" if LIBRARY == "torch" else "AUTO"


def _mode_in_effect() -> str:
    """Return the mode that MKL computes in, read by now: as its variable spells it; empty where it cannot be asked."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    try:
        mode = int(library.mkl_serv_cbwr_get(-1))
    except AttributeError:  # another MKL than the one that torch's own builds bring along
        return ""
    branch = mode & (_STRICT - 1)
    return _MODES.get(branch, f"number {branch}") + (",STRICT" if mode & _STRICT else "")


def _is_onednns(x: Tensor, weight: Tensor) -> bool:
    """Whether the product of these is oneDNN's: bf16 is without being asked, and of nothing it makes nothing."""
    return LIBRARY == "oneDNN" and x.is_cpu and x.dtype == weight.dtype == torch.float32 and x.numel() > 0


def _by_onednn(x: Tensor, weight: Tensor) -> Tensor:
    """What torch's compiler makes of a linear layer: the one way of torch's to oneDNN that takes plain fp32 tensors."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], "")
    return y


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _by_onednn(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        return (
            _by_onednn(grad, weight.t()) if needs_x else None,
            _by_onednn(grad.t(), x.t()) if needs_weight else None,
        )


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, inputs] @ weight [outputs, inputs].T -> [rows, outputs]; differentiable."""
    if not _is_onednns(x, weight):
        return F.linear(x, weight)
    if not torch.is_grad_enabled():
        return _by_onednn(x, weight)
    y: Tensor = _Product.apply(x, weight)  # type: ignore[no-untyped-call]
    return y


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias: x [..., inputs], weight [outputs, inputs], bias [outputs] -> [..., outputs].

    At level invariant a row of the result has the bits it has alone, and so has its gradient. The weight's gradient
    depends on all rows: those of a fixed microbatch.
    """
    strategy, rows = active(), x.reshape(-1, x.shape[-1])
    if strategy is None:
        y = product(rows, weight)
    elif uses_triton():
        from rlcore.numerics import gpu

        y = gpu.linear(rows, weight)
    elif strategy.is_tiled:
        y = _TiledProduct.apply(rows, weight, strategy.rows)  # type: ignore[no-untyped-call]
    else:
        y = product(padded(rows, strategy.rows, 0), weight)
        y = y if y.shape[0] == rows.shape[0] else y[: rows.shape[0]]
    y = y.reshape(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + (bias if strategy is None else expand_rows(bias, y))


class _TiledProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rows = rows
        return torch.cat([tile @ weight.t() for tile in in_tiles(x, rows, 0)])[: x.shape[0]]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (x, weight), (needs_x, needs_weight, _) = ctx.saved_tensors, ctx.needs_input_grad
        tiles = in_tiles(grad, ctx.rows, 0) if needs_x else ()
        return (
            torch.cat([tile @ weight for tile in tiles])[: x.shape[0]] if needs_x else None,
            padded(grad, ctx.rows, 0).t() @ padded(x, ctx.rows, 0) if needs_weight else None,
            None,
        )
