"""Measured GPU memory of a unit: the peak that its processes held on one GPU, and which test ran then.

sample ─▶ bytes by process of each GPU, and the processes of each unit ─▶ MemoryTally ─▶ GpuMemoryUse
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from harness.bits.findings import FindingCode
from harness.runner.need import Need

MAX_TESTS = 10_000
"""Tests of one unit whose peaks are kept."""


Listed = Mapping[int, int | None]
"""Bytes of each process that the driver lists on a GPU; None where it does not report them."""


class Unmeasured(FindingCode):
    """Reason why there is no figure for a unit."""

    NOT_SEEN = "not_seen", "none of its processes was on a GPU in any sample"
    NOT_REPORTED = "not_reported", "the driver reports no memory by process here, as with MIG or in some containers"
    NOT_VISIBLE = "not_visible", "the driver lists processes that cannot be seen from here, as in a container"
    NO_ANSWER = "no_answer", "the driver did not answer in time"


@dataclass(frozen=True, slots=True)
class GpuMemoryUse:
    """Measured GPU memory of a unit, or the reason why it was not measured."""

    peak_bytes: int | None = None
    """Most memory that its processes held together on one of its GPUs; None where it was not measured."""
    why: Unmeasured | None = None
    """Reason why it was not measured; None where it was."""
    test: str = ""
    """Node id of the test that ran at the peak; empty where none did, or the peak is not known to be of one test."""
    tests: dict[str, int] = field(default_factory=dict)
    """Peak in bytes while each test ran, by node id, of those that ran during a sample."""


def exceeds_budget(use: GpuMemoryUse | None, need: Need) -> bool:
    """Return whether a unit with this need was measured to use more memory of a GPU that it shares than its budget."""
    return need.shared and use is not None and (use.peak_bytes or 0) > need.budget_bytes


@dataclass(slots=True)
class MemoryTally:
    """The samples of one unit, folded."""

    peak_bytes: int = 0
    test: str = ""
    tests: dict[str, int] = field(default_factory=dict)
    pids: dict[str, set[int]] = field(default_factory=dict)
    """Processes of the unit that were seen, by GPU."""
    reasons: set[Unmeasured] = field(default_factory=set)

    def take(
        self, by_gpu: Mapping[str, Listed], *, tree: Collection[int], living: Collection[int], test: str = ""
    ) -> None:
        """Fold one sample in.

        `tree` are the processes of the unit, `living` those that can be seen from here; `test` ran throughout.
        """
        for gpu_id, listed in by_gpu.items():
            own = {pid: used for pid, used in listed.items() if pid in tree}
            self.pids.setdefault(gpu_id, set()).update(own)
            if None in own.values():
                self.reasons.add(Unmeasured.NOT_REPORTED)
            elif not own and any(pid not in living for pid in listed):
                self.reasons.add(Unmeasured.NOT_VISIBLE)
            used_bytes = sum(used for used in own.values() if used is not None)
            if used_bytes > self.peak_bytes:
                self.peak_bytes, self.test = used_bytes, test
            is_kept = test in self.tests or len(self.tests) < MAX_TESTS
            if test and used_bytes and is_kept:
                self.tests[test] = max(used_bytes, self.tests.get(test, 0))

    def take_accounted(self, peaks: Mapping[int, int]) -> None:
        """Fold in the peaks of single processes that the driver has kept; they also hold between samples."""
        if (most := max(peaks.values(), default=0)) > self.peak_bytes:
            self.peak_bytes, self.test = most, ""

    def finish(self) -> GpuMemoryUse:
        """Return the figure, or the reason why it was not measured."""
        if Unmeasured.NOT_REPORTED not in self.reasons and self.peak_bytes:
            return GpuMemoryUse(self.peak_bytes, None, self.test, dict(self.tests))
        why = next((reason for reason in _MOST_TELLING if reason in self.reasons), Unmeasured.NOT_SEEN)
        return GpuMemoryUse(None, why)


_MOST_TELLING = (Unmeasured.NOT_REPORTED, Unmeasured.NO_ANSWER, Unmeasured.NOT_VISIBLE)


def merge_uses(uses: Collection[GpuMemoryUse | None]) -> GpuMemoryUse | None:
    """Return the use of several attempts or parts: the highest peak, and that of each test."""
    known = [use for use in uses if use is not None]
    if not known:
        return None
    highest = max(known, key=lambda use: use.peak_bytes or 0)
    tests: dict[str, int] = {}
    for use in known:
        tests |= {test: max(peak, tests.get(test, 0)) for test, peak in use.tests.items()}
    return GpuMemoryUse(highest.peak_bytes, highest.why, highest.test, tests)
