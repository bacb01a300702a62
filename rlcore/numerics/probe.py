"""Looks at this machine's operations, and picks the cheapest recipe that holds: seconds at start-up, seeded.

No library promises batch-invariant kernels; they are measured. A probe is finite, so it certifies what runs:
give the model's own product shapes. Recipes are tried from cheap to dear, each whole, until one holds.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from rlcore.errors import LevelError
from rlcore.numerics.cases import Case, Draw, of_attention, of_products, of_rows
from rlcore.numerics.invariance_report import InvarianceReport, Measurement, machine
from rlcore.numerics.level import (
    KernelStrategy,
    check_arithmetic,
    check_invariant_device,
    following,
)
from rlcore.numerics.padding import Padding
from rlcore.numerics.product import hold_mkl_mode
from rlcore.numerics.tiles import Tiles

STRATEGIES: tuple[KernelStrategy, ...] = (Padding(), Padding(keys=512, name="pad16_keys512"), Tiles())
"""From cheap to dear. Torch's own operation is not among them, even where it seems to hold."""
SHAPES = ((64, 64), (64, 192), (128, 344), (384, 384), (100, 37))
"""(inputs, outputs) that are looked at where the model's own are not given."""
HEADS = ((4, 4, 16), (4, 2, 32), (6, 2, 64))
"""(heads, kv_heads, width) that attention is looked at with."""
LENGTH = 128
MIN_LENGTH = 64
KEYS_AT_ONCE = 16
"""Lengths are certified, and caches are read, in such multiples."""
THREADS = (1, 2)
"""Numbers of threads with which every recipe is looked at; others where a run is to compute with them."""


@contextmanager
def num_threads(count: int, *phases: str) -> Iterator[None]:
    """torch computes with this many threads inside, which is in these phases of a step.

    Raises LevelError at the end if something inside has set another number, where a level of determinism is on.
    """
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
        if torch.are_deterministic_algorithms_enabled():
            check_num_threads(count, *phases)
    finally:
        torch.set_num_threads(before)


def check_num_threads(expected: int | None, *phases: str) -> int:
    """Check that torch computes with this number of threads; None: with any. Return its number. Raises LevelError."""
    found = torch.get_num_threads()
    if expected not in (None, found):
        raise LevelError(
            f"torch computes with {found} threads: something has set the number since, such as an import",
            legal=f"{expected}",
            remedy="leave torch.set_num_threads alone; runtime.training_threads and runtime.sampling_threads set it",
            phases=phases,
        )
    return found


def certify(
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    *,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    heads: Sequence[tuple[int, int, int]] = HEADS,
    length: int = LENGTH,
    strategies: Sequence[KernelStrategy] = STRATEGIES,
    clock: Callable[[], float] = time.perf_counter,
) -> InvarianceReport:
    """The first of the recipes that holds for these products and heads.

    `shapes` are (inputs, outputs), `heads` (heads, kv_heads, width), `length` the most keys there will be. Raises
    LevelError where none holds, and for any device but a CPU. MKL's mode is held first (`hold_mkl_mode`).
    """
    check_invariant_device(device)
    hold_mkl_mode(os.environ)
    check_arithmetic()
    length = max(MIN_LENGTH, length + -length % KEYS_AT_ONCE)
    plain = _Inspection(None, THREADS, clock)
    found = [
        plain("linear", of_products(Draw.seeded(dtype, device), shapes[:1])),
        plain("attention", of_attention(Draw.seeded(dtype, device), heads[:1], length)),
    ]
    for strategy in strategies:
        own = _Inspection(strategy, THREADS, clock).at_all(dtype, device, _Sizes(shapes, heads, length))
        found += own
        if all(measurement.held for measurement in own):
            return InvarianceReport(strategy, dtype, device, length, tuple(found), machine())
    told = "; ".join(str(measurement) for measurement in found if not measurement.held)
    raise LevelError(
        f"no kernel strategy is batch-invariant on this machine ({machine()}): {told}",
        legal=", ".join(strategy.name for strategy in strategies),
        remedy="determinism: deterministic, or another build of torch",
    )


def check_threads(
    invariance_report: InvarianceReport,
    count: int,
    *,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    heads: Sequence[tuple[int, int, int]] = HEADS,
) -> None:
    """Check that a certified strategy gives the same bits with this number of threads; raise LevelError if not.

    No other strategy is tried: its bits would differ, and the number of threads should not affect results.
    """
    look = _Inspection(invariance_report.strategy, (count,), time.perf_counter)
    sizes = _Sizes(shapes, heads, invariance_report.length)
    found = look.at_all(invariance_report.dtype, invariance_report.device, sizes)
    if different := [measurement for measurement in found if not measurement.held]:
        raise LevelError(
            f"results differ bitwise between {count} threads and one ({machine()}): {'; '.join(map(str, different))}",
            legal=f"numbers of threads with equal results on this machine; {' and '.join(map(str, THREADS))} have them",
            remedy=f"runtime.sampling_threads and runtime.training_threads: {THREADS[-1]}",
        )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Of what is looked at, as `certify` has them."""

    shapes: Sequence[tuple[int, int]]
    heads: Sequence[tuple[int, int, int]]
    length: int


@dataclass(frozen=True, slots=True)
class _Inspection:
    """Each case with these numbers of threads, against what one thread gave for the whole batch."""

    strategy: KernelStrategy | None
    threads: tuple[int, ...]
    clock: Callable[[], float]

    def at_all(self, dtype: torch.dtype, device: str, of: _Sizes) -> list[Measurement]:
        """At every operation that the recipe stands for."""

        def drawn() -> Draw:
            return Draw.seeded(dtype, device)

        return [
            self("linear", of_products(drawn(), of.shapes)),
            self("attention", of_attention(drawn(), of.heads, of.length)),
            self("rows", of_rows(drawn(), sorted({width for shape in of.shapes for width in shape}))),
        ]

    def __call__(self, operation: str, cases: Iterable[Case]) -> Measurement:
        """At one operation; its cases are drawn here."""
        began_s = self.clock()
        with following(self.strategy):
            with num_threads(1):
                given = list(cases)
            different = []
            for count in self.threads:  # all cases with one number, then all with the next: changing it is slow
                with num_threads(count):
                    for case in given:
                        if not all(torch.equal(a, b) for a, b in zip(case.compute(), case.expected, strict=True)):
                            different.append(f"{case.what}, threads {count}")
        num_cases = len(given) * len(self.threads)
        name = self.strategy.name if self.strategy else "off"
        return Measurement(operation, name, num_cases, len(different), "".join(different[:1]), self.clock() - began_s)
