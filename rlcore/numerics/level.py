"""The switch of level invariant in this thread, and the strategies by which products and attention hold it.

    with invariant(report):                  # rlcore.numerics.probe: compares bits on entry and exit
        logits = decoder(tokens)

Two things that move bits are the machine's, and no setting's: which strategy holds (the probe looks), and which library
multiplies (`rlcore.numerics.product.LIBRARY`, by the processor). Both follow from the processor, the libraries and the
variables that a trace's fingerprint has among its numerics: `diff` calls traces that differ there not comparable.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.errors import LevelError


@dataclass(frozen=True, slots=True)
class Strategy:
    """Zero rows up to a multiple of `rows`, queries of `queries`, keys of `keys`: there, kernels agree with each other.

    A product of one row takes another path through oneDNN than one of sixteen, one of up to twelve through MKL where it
    is not strict, and so does attention of a single query; multiples of sixteen rows take one path whatever their
    number. Sums over keys are cut into blocks: over up to some 190 keys the cuts do not depend on how many follow,
    beyond it they do unless whole blocks of torch's attention are filled, which costs short sequences as much as long
    ones. That is seen, not promised.

    Where it is not seen, everything is computed in tiles of that size: every product has one shape, so that no kernel
    can be chosen by the number of rows.
    """

    name: str = "pad16"
    rows: int = 16
    queries: int = 4
    keys: int = 16
    is_tiled: bool = False
    is_triton: bool = False
    """Computed by `rlcore.numerics.gpu`; `is_tiled` then takes one tile for every shape."""
    longest: int | None = None
    """The most keys that attention may have; None: any number."""


_level: ContextVar[Strategy | None] = ContextVar("rlcore_level", default=None)


def active() -> Strategy | None:
    """Return the strategy at work in this context; None at level off."""
    return _level.get()


def is_invariant() -> bool:
    """Return whether a strategy is at work in this context."""
    return active() is not None


def uses_triton() -> bool:
    """Return whether `rlcore.numerics.gpu` computes in this context."""
    return (strategy := active()) is not None and strategy.is_triton


@contextmanager
def following(strategy: Strategy | None) -> Iterator[None]:
    """Follow a strategy, or none, without looking whether it holds here: for the probe, and for what is measured.

    fp32 products are products of fp32 numbers inside, as torch's own default has it. New memory is not filled with NaN
    first, which torch's deterministic algorithms do: nothing here reads what it has not written. All is undone however
    it ends.
    """
    precision = torch.get_float32_matmul_precision()
    fills = torch._C._get_deterministic_fill_uninitialized_memory()
    before = _level.set(strategy)
    try:
        torch.set_float32_matmul_precision("highest")
        torch._C._set_deterministic_fill_uninitialized_memory(False)
        yield
    finally:
        torch._C._set_deterministic_fill_uninitialized_memory(fills)
        torch.set_float32_matmul_precision(precision)
        _level.reset(before)


def padded(x: Tensor, multiple: int, dim: int) -> Tensor:
    """Return x with zeros up to the next multiple along one dimension; x itself where nothing is missing."""
    missing = -x.shape[dim] % multiple
    return F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, missing)) if missing else x


def in_tiles(x: Tensor, multiple: int, dim: int) -> tuple[Tensor, ...]:
    """Return x, padded with zeros, in pieces of `multiple` along one dimension, each contiguous."""
    return tuple(tile.contiguous() for tile in torch.split(padded(x, multiple, dim), multiple, dim))


def check_invariant_device(device: str) -> None:
    """Raise LevelError for a device on which nothing keeps the bits of a row: any but a CPU, and a GPU with Triton.

    A GPU's libraries choose tiles, splits and blocks of reductions by the number of rows. The driver is not asked.
    """
    kind = torch.device(device).type
    if kind == "cuda" and find_spec("triton") is None:
        raise LevelError(
            f"level invariant on {device}: its kernels are Triton's, which is not installed",
            legal="torch built for CUDA, which brings Triton along",
            remedy="pip install 'rlharness[cuda]', or --level deterministic",
        )
    if kind not in ("cpu", "cuda"):
        raise LevelError(
            f"level invariant on {device}: rlcore has no batch-invariant kernels for it",
            legal="cpu and cuda at level invariant",
            remedy="--set model.device=cpu, or --level deterministic",
        )


TINY = 1e-40
"""A number that is not normal in fp32."""
ALL_THREADS = 1 << 18
"""Numbers that torch divides among all its threads."""


def check_settings(num_numbers: int = 1) -> None:
    """See that numbers below the smallest normal one survive, and that nothing rounds operands down: for every step.

    With `ALL_THREADS` of them all threads are seen. Raises LevelError with what is off. Libraries built for speed at
    any price switch the former on while they load.
    """
    if bool((torch.full((num_numbers,), TINY) * 1.0 == 0).any()):
        raise LevelError(
            "numbers below 1.2e-38 are flushed to zero in a thread of this process",
            remedy="drop torch.set_flush_denormal(True), or the library that switches it on",
        )
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
