"""What was looked at on this machine, what held, and the switch that needs it: `with invariant(certificate)`."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from rlcore.errors import LevelError
from rlcore.numerics.attention import attention, visible
from rlcore.numerics.level import KernelStrategy, check_arithmetic, following
from rlcore.numerics.linear import linear


@dataclass(frozen=True, slots=True)
class Measurement:
    """One operation under one recipe: how often its bits were not those of the row alone."""

    operation: str
    strategy: str
    """"off" is torch's own operation, looked at so that it is seen what the recipe is for."""
    num_cases: int
    """Comparisons: a number of rows, or a position, at an index in the batch and a number of threads."""
    num_different: int
    first: str = ""
    """The first case that differs; empty where all held."""
    duration_s: float = 0.0
    """Of the whole measurement."""

    @property
    def held(self) -> bool:
        """Whether no case differs."""
        return self.num_different == 0

    def __str__(self) -> str:
        told = "holds" if self.held else f"{self.num_different} differ, first {self.first}"
        return f"{self.operation} {self.strategy}: {self.num_cases} cases, {told} ({self.duration_s * 1e3:.0f} ms)"


@dataclass(frozen=True, slots=True)
class InvarianceReport:
    """The cheapest strategy that holds for one type on one device of this machine, and its measurements."""

    strategy: KernelStrategy
    dtype: torch.dtype
    device: str
    length: int
    """The most keys that attention was looked at with."""
    measurements: tuple[Measurement, ...]
    machine: str

    @property
    def duration_s(self) -> float:
        """What looking took."""
        return sum(measurement.duration_s for measurement in self.measurements)

    def lines(self) -> list[str]:
        """For people: the choice, then each measurement."""
        dtype = str(self.dtype).removeprefix("torch.")
        head = f"{self.strategy.name} for {dtype} on {self.device}, up to {self.length} positions"
        return [
            f"{head}, {self.duration_s:.1f} s; {self.machine}",
            *(f"  {measurement}" for measurement in self.measurements),
        ]


def machine() -> str:
    """What a certificate is good for: another of any of these may choose other kernels. It asks for no GPU."""
    isa = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__}, {platform.machine()} {isa}, {os.cpu_count()} cores"


@contextmanager
def invariant(invariance_report: InvarianceReport) -> Iterator[None]:
    """Level invariant for what this context computes; undone however it ends.

    Entering and leaving compare bits that differ where the recipe is not at work. Raises LevelError where they do.
    """
    with following(invariance_report.strategy, longest=invariance_report.length):
        check_effect(invariance_report)
        yield
        check_effect(invariance_report)


def check_effect(invariance_report: InvarianceReport) -> None:
    """See that rows keep their bits now, in this process; a few milliseconds. Raises LevelError."""
    check_arithmetic()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        x, weight, q = (
            torch.randn(shape, generator=generator).to(invariance_report.device, invariance_report.dtype)
            for shape in ((64, 96), (96, 96), (2, 1, 48, 32))
        )
        batch = linear(x, weight)
        wrong = [row for row in range(3) if not torch.equal(linear(x[row : row + 1], weight), batch[row : row + 1])]
        if wrong:
            raise LevelError(
                f"matmul is not batch-invariant: rows {wrong} differ between batch sizes 1 and 64", remedy=_REMEDY
            )
        whole = attention(q, q, q)
        for position in (0, 7, 46):
            seen = visible(torch.full((2,), position, device=q.device), 1, 48)
            alone = attention(q[:, :, position : position + 1], q, q, seen)
            if not torch.equal(alone, whole[:, :, position : position + 1]):
                raise LevelError(
                    f"attention at position {position} differs between decoding and one pass", remedy=_REMEDY
                )


_REMEDY = "certify again, in this process and with its settings: rlcore.numerics.probe.certify"
