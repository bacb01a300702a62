"""How kernels become operations of torch, and what all of them ask of their tensors."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from rlcore.errors import InvalidValueError, KernelError, ShapeError

_LIBRARY = torch.library.Library("rlcore", "DEF")  # type: ignore[no-untyped-call]
P = ParamSpec("P")
R = TypeVar("R")


def operation(schema: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a function as an operation, which goes through torch only while a torch mode watches operations.

    The way through torch and back to Python takes ten microseconds: five times what the norm of 64 rows does.
    """

    def registered(function: Callable[P, R]) -> Callable[P, R]:
        name = schema.partition("(")[0]
        _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
        _LIBRARY.impl(name, function, "CPU")  # type: ignore[no-untyped-call]
        watched: Callable[P, R] = getattr(torch.ops.rlcore, name).default

        @functools.wraps(function)
        def called(*given: P.args, **named: P.kwargs) -> R:
            __tracebackhide__ = True  # whoever names source lines wants the caller's
            if have_callbacks() or torch._C._autograd._profiler_enabled():
                return watched(*given, **named)
            return function(*given, **named)

        return called

    return registered


def have_callbacks() -> bool:
    """Whether operations are being recorded here, one by one."""
    return torch._C._len_torch_dispatch_stack() > 0


def check_width(x: Tensor, weight: Tensor) -> None:
    """Raises ShapeError where a weight is not [width] of rows x [..., width]."""
    if weight.numel() != x.shape[-1]:
        raise ShapeError(f"a weight {tuple(weight.shape)} for rows of {tuple(x.shape)}", legal="[width]")


def check_shape(x: Tensor, *shape: int) -> None:
    """Raises ShapeError for another one."""
    if x.shape != shape:
        raise ShapeError(f"sizes {tuple(x.shape)}", legal=f"{shape}, as the others have them")


def address(x: Tensor | None) -> int | None:
    """Where its numbers begin. Raises ShapeError where they do not lie one after another, are not fp32 or not here."""
    if x is None:
        return None
    if x.dtype is not torch.float32 or not x.is_contiguous() or not x.is_cpu:
        told = f"{x.dtype} on {x.device} of strides {x.stride()}, sizes {tuple(x.shape)}"
        raise ShapeError(told, legal="contiguous float32 on cpu")
    return x.data_ptr()


def check(problem: int) -> None:
    """Raise the error of a kernel's return code, KernelError or InvalidValueError; 0 is success."""
    if problem == 1:
        raise KernelError("there is not enough memory for a kernel's scratch space")
    if problem == 2:
        raise InvalidValueError(
            "sequences that do not fit into the cache",
            legal="starts + length up to its capacity, and to the positions that the turns are of",
        )
