"""Seconds and peak memory of each phase of a step, as an observer. The only clock of a run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from rlcore.observability.observers import Observer

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


TIMED = ("rollout", "reward", "reference", "update", "optimizer", "sync", "evaluation")
"""Stages that are phases of a step, in the order of a step."""


class Phases(Observer):
    """Measures the phases of one step; begins again with each step.

    `device` is the model's. Of a GPU, memory is that GPU's, and a phase ends when the GPU has done what was asked of it
    in the phase. A run on a CPU asks for no GPU, whatever its machine has.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._device = torch.device(device)
        self._seconds: dict[str, float] = {}
        self._peak_gb: dict[str, float] = {}
        self._run_seconds: dict[str, float] = {}
        self._run_peak_gb: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a phase; one that comes twice adds its seconds, and keeps the higher peak."""
        if name not in TIMED:
            yield
            return
        _wait(self._device)
        _forget_peak(self._device)
        began_s = time.perf_counter()
        try:
            yield
        finally:
            _wait(self._device)
            seconds, peak_gb = time.perf_counter() - began_s, _peak_gb(self._device)
            for all_seconds, all_peaks in ((self._seconds, self._peak_gb), (self._run_seconds, self._run_peak_gb)):
                all_seconds[name] = all_seconds.get(name, 0.0) + seconds
                all_peaks[name] = max(all_peaks.get(name, 0.0), peak_gb)

    def take(self) -> dict[str, float]:
        """Return `seconds/NAME` and `memory_gb/NAME` of the step, and begin again."""
        measured = {f"seconds/{name}": seconds for name, seconds in self._seconds.items()}
        measured |= {f"memory_gb/{name}": peak for name, peak in self._peak_gb.items()}
        self._seconds, self._peak_gb = {}, {}
        return measured

    def lines(self) -> list[str]:
        """Return a table of the run until now: seconds, their share, and peak memory of each phase."""
        if not self._run_seconds:
            return []
        total = sum(self._run_seconds.values())
        names = [name for name in TIMED if name in self._run_seconds]
        rows = [(name, self._run_seconds[name], self._run_peak_gb[name]) for name in names]
        rows.append(("total", total, max(self._run_peak_gb.values())))
        return [
            f"{'phase':<10}  {'time':>9}  {'share':>6}  {'peak memory':>11}",
            *(
                f"{name:<10}  {seconds:>7.2f} s  {seconds / total:>6.1%}  {peak_gb:>8.2f} GB"
                for name, seconds, peak_gb in rows
            ),
        ]


def _wait(device: torch.device) -> None:
    """Wait until a GPU has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _forget_peak(device: torch.device) -> None:
    """Reset the peak to the present use; where the kernel does not allow it, peaks are those of the run."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        _CLEAR.write_text("5")


def _peak_gb(device: torch.device) -> float:
    """Return the peak of a GPU's memory, or of this process's on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e9
    return 0.0
