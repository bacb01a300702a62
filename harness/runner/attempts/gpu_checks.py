"""What is checked of the GPUs of an attempt: memory that units share, files that keep failing on one, the driver's
errors and other users that explain a failure.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.machine.gpu_health import FATAL_XIDS, describe_xid
from harness.machine.gpu_watch import GpuWatch
from harness.runner.units import Outcome, UnitResult

MIN_FILES = 3
"""Different files that must fail one after the other on a GPU, and pass on other GPUs meanwhile."""
BLAMED = frozenset((Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CRASHED, Outcome.EXITED_EARLY))
"""Outcomes that a sick GPU can cause."""
CLEARING = frozenset((Outcome.PASSED, Outcome.FLAKY))


# ---- reasons of a failure


def with_reason(result: UnitResult, what: str, by_gpu: Mapping[str, str]) -> UnitResult:
    """Return a failed result with what was found of its GPUs, after `what`; any other as it is."""
    if not by_gpu or not result.is_failure:
        return result
    why = what.format("; ".join(f"{gpu_id}: {found}" for gpu_id, found in by_gpu.items()))
    return replace(result, reason=f"{result.reason}; {why}" if result.reason else why)


def with_xids(result: UnitResult, xids: Mapping[str, Sequence[int]]) -> UnitResult:
    """Return a failed result with the errors that the driver reported of its GPUs meanwhile; any other as it is."""
    found = {gpu_id: ", ".join(map(describe_xid, seen)) for gpu_id, seen in xids.items()}
    return with_reason(result, "the driver reported meanwhile {}", found)


def broken_by(xids: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Return the GPUs that run no test after these errors, with the reasons."""
    fatal = {gpu_id: [describe_xid(xid) for xid in seen if xid in FATAL_XIDS] for gpu_id, seen in xids.items()}
    return {gpu_id: f"the driver reported {', '.join(errors)}" for gpu_id, errors in fatal.items() if errors}


# ---- GPUs on which unrelated files fail


@dataclass(slots=True)
class GpuSuspicion:
    """A GPU on which different files keep failing while other GPUs pass theirs is suspected, and leased no more."""

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


# ---- GPUs that units share


@dataclass(slots=True)
class _Sharing:
    """A GPU while units share it."""

    checked: asyncio.Future[tuple[dict[str, int], dict[str, str]]]
    """Result of the check before the first unit; every unit starts after it."""
    num_holders: int = 0
    num_served: int = 0
    turn: int = 0
    """Number of times that the GPU was left by its last holder; only the latest such time decides."""

    def is_held(self) -> bool:
        """Whether a unit runs on the GPU."""
        return self.num_holders > 0


class SharedWatch:
    """Asks a `GpuWatch` about shared GPUs, so that no unit takes the memory of its neighbours for a leak.

    The baseline is the one before the first unit. A unit that leaves others on the GPU is not checked, nor is one
    whose GPU is shared anew while its memory is polled: the last of the units answers for all.
    """

    def __init__(self, watch: GpuWatch) -> None:
        self._watch = watch
        self._sharing: dict[str, _Sharing] = {}

    async def check(self, gpu_ids: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
        """Memory in use on the one GPU before the first of the units that share it, and why it is unfit."""
        (gpu_id,) = gpu_ids
        sharing = self._sharing.get(gpu_id)
        if sharing is None:
            sharing = self._sharing[gpu_id] = _Sharing(asyncio.ensure_future(self._watch.check(gpu_ids)))
        sharing.num_holders += 1
        sharing.num_served += 1
        baseline, unfit = await asyncio.shield(sharing.checked)
        if unfit:
            sharing.num_holders -= 1
            self._sharing.pop(gpu_id, None)
        return baseline, unfit

    async def not_back(
        self, gpu_ids: Sequence[str], baseline: Mapping[str, int], hurry: Callable[[], bool] = lambda: False
    ) -> dict[str, str]:
        """The GPU, and who holds it, if it did not come back after its last unit; empty while others share it."""
        (gpu_id,) = gpu_ids
        sharing = self._sharing[gpu_id]
        sharing.num_holders -= 1
        if sharing.is_held():
            return {}
        sharing.turn += 1
        turn = sharing.turn
        held = await self._watch.not_back(gpu_ids, baseline, lambda: hurry() or sharing.is_held())
        if sharing.is_held() or sharing.turn != turn:
            return {}
        del self._sharing[gpu_id]
        if sharing.num_served == 1:
            return held
        shared = f"; {sharing.num_served} units shared it, and any of them may be the cause"
        return {gpu: f"{reason}{shared}" for gpu, reason in held.items()}
