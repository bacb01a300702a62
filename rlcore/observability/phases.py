"""Seconds and peak memory of each phase of a step, as an observer. The only clock of a run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from rlcore.observability.observers import Observer

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


TIMED = frozenset({"rollout", "reward", "reference", "update", "optimizer", "sync", "evaluation"})
"""Stages that are phases of a step."""


class Phases(Observer):
    """Measures the phases of one step; begins again with each step."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._peak_gb: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a phase; one that comes twice adds its seconds, and keeps the higher peak."""
        if name not in TIMED:
            yield
            return
        _forget_peak()
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began_s
            self._peak_gb[name] = max(self._peak_gb.get(name, 0.0), _peak_gb())

    def take(self) -> dict[str, float]:
        """Return `seconds/NAME` and `memory_gb/NAME` of the step, and begin again."""
        measured = {f"seconds/{name}": seconds for name, seconds in self._seconds.items()}
        measured |= {f"memory_gb/{name}": peak for name, peak in self._peak_gb.items()}
        self._seconds, self._peak_gb = {}, {}
        return measured


def _forget_peak() -> None:
    """Reset the peak to the present use; where the kernel does not allow it, peaks are those of the run."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):
        _CLEAR.write_text("5")


def _peak_gb() -> float:
    """Return the peak of the GPU if there is one, else of this process's memory."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() / 1e9
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e9
    return 0.0
