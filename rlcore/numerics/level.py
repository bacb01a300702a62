"""The switch: which recipe the operations of this thread follow, and the proof that it is at work.

    with invariant(certificate):
        logits = decoder(tokens)

A flag that says on while nothing is on is the usual fault of such switches: entering and leaving look at bits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor

from rlcore.errors import LevelError


class KernelStrategy(Protocol):
    """How the two operations are done whose bits depend on the shape of the batch when they are left to torch."""

    @property
    def name(self) -> str:
        """As a certificate and a configuration call it."""

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [rows, inputs], weight [outputs, inputs] -> x @ weight.T [rows, outputs]; differentiable."""

    def attention(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        """Causal attention, as `rlcore.numerics.attention` describes it; differentiable."""


_active: ContextVar[KernelStrategy | None] = ContextVar("rlcore_recipe", default=None)
_longest: ContextVar[int | None] = ContextVar("rlcore_longest", default=None)


def active() -> KernelStrategy | None:
    """The recipe at work in this context; None at level off."""
    return _active.get()


def is_invariant() -> bool:
    """Whether a recipe is at work in this context."""
    return _active.get() is not None


def longest() -> int | None:
    """Return the most keys that attention may have in this context; None: any number."""
    return _longest.get()


@contextmanager
def following(strategy: KernelStrategy | None, *, longest: int | None = None) -> Iterator[None]:
    """Follow a recipe, or none, without looking whether it holds here: for the probe, and for what is measured.

    Attention over more than `longest` keys, where one is given, is refused. fp32 products are products of fp32 numbers
    inside, as torch's own default has it. New memory is not filled with NaN first, which torch's deterministic
    algorithms do: nothing here reads what it has not written. All is undone however it ends.
    """
    precision = torch.get_float32_matmul_precision()
    fills = torch._C._get_deterministic_fill_uninitialized_memory()
    tokens = _active.set(strategy), _longest.set(longest)
    try:
        torch.set_float32_matmul_precision("highest")
        torch._C._set_deterministic_fill_uninitialized_memory(False)
        yield
    finally:
        torch._C._set_deterministic_fill_uninitialized_memory(fills)
        torch.set_float32_matmul_precision(precision)
        _active.reset(tokens[0])
        _longest.reset(tokens[1])


def check_length(num_keys: int) -> None:
    """Raise LevelError for more keys than the strategy was probed with: kernels block longer sums differently."""
    longest = _longest.get()
    if longest is not None and num_keys > longest:
        raise LevelError(
            f"attention over {num_keys} keys", legal=f"up to {longest}, as certified", remedy="certify(length=...)"
        )


def check_invariant_device(device: str) -> None:
    """Raise LevelError for a device on which no strategy keeps the bits of a row: any but a CPU.

    A GPU's libraries choose tiles, splits and blocks of reductions by the number of rows. A probe sees some numbers of
    rows; a run has others.
    """
    if torch.device(device).type != "cpu":
        raise LevelError(
            f"level invariant on {device}: rlcore has no batch-invariant kernels for GPUs, whose libraries choose the"
            " order of additions by the number of rows",
            legal="cpu at level invariant; cuda at levels off and deterministic",
            remedy="--set model.device=cpu, or --level deterministic",
        )


def check_arithmetic() -> None:
    """See that numbers below the smallest normal one survive in every thread, and that nothing rounds operands down.

    Raises LevelError with what is off. Libraries built for speed at any price switch the former on while they load.
    """
    if bool((torch.full((1 << 18,), TINY) * 1.0 == 0).any()):
        raise LevelError("numbers below 1.2e-38 are flushed to zero in a thread of this process", remedy=_UNFLUSHED)
    check_settings()


def check_settings() -> None:
    """The same for what takes microseconds to see, in this thread: for every step. Raises LevelError."""
    if float(torch.tensor(TINY) * 1.0) == 0.0:
        raise LevelError("numbers below 1.2e-38 are flushed to zero in this thread", remedy=_UNFLUSHED)
    if torch.get_float32_matmul_precision() != "highest":
        raise LevelError(
            f"fp32 products are of {torch.get_float32_matmul_precision()!r} precision",
            legal="'highest'",
            remedy="leave torch.set_float32_matmul_precision alone while the level is on",
        )
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise LevelError("autocast is on", remedy="give the model the type you want: model.to(torch.bfloat16)")
    if torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled():
        raise LevelError("deterministic algorithms only warn", remedy="torch.use_deterministic_algorithms(True)")


TINY = 1e-40
"""A number that is not normal in fp32."""
_UNFLUSHED = "drop torch.set_flush_denormal(True), or the library that switches it on"
