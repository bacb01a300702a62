"""A run against earlier runs of the same suite: newly failing, fixed, slower and flaky tests.

A run may be of a part of the suite. So each test is compared with the latest earlier run that had a result of it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness.process.run_directory import earlier_directories
from harness.runner.records.run_record import RECORD, RunRecord, read_run_record
from harness.runner.test_outcomes import TestOutcome
from harness.runner.units import Outcome, file_of

MAX_EARLIER = 5
"""Earlier runs that are read."""
MAX_EARLIER_BYTES = 1 << 26
"""Bytes of the record of each that are read: those of about a hundred thousand tests."""
SLOWER_RATIO = 1.5
SLOWER_S = 0.5
"""A test is slower if it takes this ratio of its median, this many seconds more, and longer than it ever took."""
FAILING = frozenset((TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.UNFINISHED))
PASSING = frozenset((TestOutcome.PASSED, TestOutcome.XFAILED, TestOutcome.XPASSED))


@dataclass(frozen=True, slots=True)
class Change:
    """A test, or a file whose tests do not explain it, that now has another outcome."""

    name: str
    before: str
    now: str
    run_id: str
    """Latest earlier run with a result of it."""


@dataclass(frozen=True, slots=True)
class Slower:
    """A test that takes longer than in every earlier run."""

    name: str
    median_s: float
    now_s: float
    num_runs: int
    """Earlier runs in which it passed."""

    @property
    def ratio(self) -> float:
        """Duration now over the median of the earlier runs."""
        return self.now_s / self.median_s


@dataclass(frozen=True, slots=True)
class Flaky:
    """A test that changed between passing and failing more than once."""

    name: str
    passes: tuple[bool, ...]
    """Whether it passed, for each run that decided it, oldest first; this run last if it decided it."""

    @property
    def num_changes(self) -> int:
        """Number of neighbouring runs that disagree."""
        return sum(a != b for a, b in zip(self.passes, self.passes[1:], strict=False))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run against earlier ones."""

    run_ids: tuple[str, ...]
    """Earlier runs, latest first."""
    newly_failing: tuple[Change, ...]
    fixed: tuple[Change, ...]
    slower: tuple[Slower, ...]
    """Greatest ratio first."""
    flaky: tuple[Flaky, ...]
    """Most changes first."""


@dataclass(frozen=True, slots=True)
class _Result:
    outcome: str
    passes: bool | None
    """None where it decides nothing: skipped, interrupted, not run."""
    duration_s: float


def read_earlier_runs(directory: Path) -> list[RunRecord]:
    """The records of the runs before the one in `directory`, latest first; those that cannot be read are left out."""
    records: list[RunRecord] = []
    for earlier in earlier_directories(directory):
        if len(records) == MAX_EARLIER:
            break
        try:
            record = read_run_record(earlier / RECORD, max_bytes=MAX_EARLIER_BYTES)
        except OSError:
            continue
        if any(each.outcome is not None for each in record.files.values()):
            records.append(record)
    return records


def compare_runs(now: RunRecord, earlier: Sequence[RunRecord]) -> Comparison | None:
    """Compare a run with earlier ones, latest first; None where no test of it has an earlier result."""
    results = dict(_results(now))
    past = [(record.run_id, dict(_results(record))) for record in earlier]
    used = tuple(run_id for run_id, found in past if not results.keys().isdisjoint(found))
    if not used:
        return None
    newly_failing: list[Change] = []
    fixed: list[Change] = []
    slower: list[Slower] = []
    flaky: list[Flaky] = []
    for name, result in results.items():
        known = [(run_id, found[name]) for run_id, found in past if name in found]
        decided = [(run_id, each) for run_id, each in known if each.passes is not None]
        if decided and result.passes is not None and decided[0][1].passes != result.passes:
            change = Change(name, decided[0][1].outcome, result.outcome, decided[0][0])
            (fixed if result.passes else newly_failing).append(change)
        if found := _slower(name, result, [each.duration_s for _, each in decided if each.passes]):
            slower.append(found)
        passes = [each.passes for _, each in decided if each.passes is not None][::-1]
        if result.passes is not None:
            passes.append(result.passes)
        if (each := Flaky(name, tuple(passes))).num_changes > 1:
            flaky.append(each)
    return Comparison(
        used,
        tuple(sorted(_unexplained(newly_failing), key=lambda each: each.name)),
        tuple(sorted(_unexplained(fixed), key=lambda each: each.name)),
        tuple(sorted(slower, key=lambda each: -each.ratio)),
        tuple(sorted(flaky, key=lambda each: (-each.num_changes, each.name))),
    )


def _results(record: RunRecord) -> Iterator[tuple[str, _Result]]:
    """The results of files and tests, by path and node id."""
    for span in record.files.values():
        if span.outcome is not None and span.outcome is not Outcome.NOT_RUN:
            decides = span.outcome not in (Outcome.INTERRUPTED, Outcome.NO_TESTS)
            passes = not span.outcome.is_failure if decides else None
            yield span.path, _Result(span.outcome.value, passes, span.duration_s)
        for test in span.tests:
            known = test.outcome in FAILING or test.outcome in PASSING
            is_cut = test.outcome is TestOutcome.UNFINISHED and span.outcome in (None, Outcome.INTERRUPTED)
            passes = test.outcome in PASSING if known and not is_cut else None
            yield test.nodeid, _Result(test.outcome.value, passes, test.duration_s)


def _slower(name: str, result: _Result, earlier_s: Sequence[float]) -> Slower | None:
    if not earlier_s or not result.passes:
        return None
    typical_s = median(earlier_s)
    is_more = result.duration_s - typical_s >= SLOWER_S and result.duration_s > max(earlier_s)
    if typical_s <= 0 or not is_more or result.duration_s < SLOWER_RATIO * typical_s:
        return None
    return Slower(name, typical_s, result.duration_s, len(earlier_s))


def _unexplained(changes: Iterable[Change]) -> list[Change]:
    """The changes, without those of files that a test of theirs explains."""
    found = list(changes)
    explained = {each.name.partition("::")[0] for each in found if "::" in each.name}
    return [each for each in found if file_of(each.name) not in explained]
