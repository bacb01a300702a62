"""A GPU on which different files keep failing while other GPUs pass theirs: it is suspected, and leased no more.

Pure: it observes the end of each attempt, and names the GPUs that are suspected.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.runner.units import Outcome

MIN_FILES = 3
"""Different files that must fail one after the other on a GPU, and pass on other GPUs meanwhile."""
BLAMED = frozenset((Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CRASHED, Outcome.EXITED_EARLY))
"""Outcomes that a sick GPU can cause."""
CLEARING = frozenset((Outcome.PASSED, Outcome.FLAKY))


@dataclass(slots=True)
class GpuSuspicion:
    """What the attempts of a run have shown of its GPUs."""

    _failed: dict[str, dict[str, None]] = field(default_factory=dict)
    """Files that failed on each GPU since the last pass there, in order."""
    _passed: dict[str, set[str]] = field(default_factory=dict)
    """Files that passed, by GPU."""

    def observe(self, path: str, outcome: Outcome, gpu_ids: Sequence[str]) -> dict[str, str]:
        """Take note of an attempt at a file; return the GPUs among its own that are suspected now, with the reason.

        A file that has passed on another GPU and fails here, or that fails on several GPUs, counts once for each.
        """
        for gpu_id in gpu_ids:
            if outcome in CLEARING:
                self._failed.pop(gpu_id, None)
                self._passed.setdefault(gpu_id, set()).add(path)
            elif outcome in BLAMED:
                self._failed.setdefault(gpu_id, {})[path] = None
        if outcome not in BLAMED:
            return {}
        return {gpu_id: reason for gpu_id in gpu_ids if (reason := self._reason(gpu_id))}

    def _reason(self, gpu_id: str) -> str:
        elsewhere = {path for other, paths in self._passed.items() if other != gpu_id for path in paths}
        # A file that fails on every GPU is broken itself.
        failed_elsewhere = {path for other, paths in self._failed.items() if other != gpu_id for path in paths}
        failed = [path for path in self._failed.get(gpu_id, {}) if path not in failed_elsewhere]
        if len(failed) < MIN_FILES or len(elsewhere) < MIN_FILES:
            return ""
        named = ", ".join(failed[-MIN_FILES:])
        return f"suspected: {len(failed)} files failed on it one after the other, while other GPUs pass ({named})"
