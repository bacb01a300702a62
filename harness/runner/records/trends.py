"""Trends of files and tests: their results in the last runs, as the history keeps them."""

import difflib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from harness.bits.files import MALFORMED
from harness.runner.test_outcomes import TestOutcome
from harness.runner.units import Outcome

NUM_RESULTS = 10
"""Results kept per file and per test."""
MAX_RECENT_BYTES = 4096
MAX_RUN_ID = 64
MAX_PEAK_BYTES = 10**15
"""No GPU has a petabyte."""
_OUTCOMES = frozenset([*(each.value for each in Outcome), *(each.value for each in TestOutcome)])
_TIMED = frozenset(("", "passed", "failed", "error", "xpassed", "xfailed", "no_tests"))
"""Outcomes with a duration that says how long the file or test takes; empty where none was kept."""


@dataclass(frozen=True, slots=True)
class PastResult:
    """Result of a file or test in one run."""

    run_id: str
    """Empty for a duration that an earlier version recorded."""
    outcome: str
    """An Outcome for a file, a TestOutcome for a test; empty where none was kept."""
    duration_s: float
    peak_bytes: int | None = None
    """Most GPU memory that it was measured to use; None where that was not measured."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The last results of a file or test."""

    name: str
    """Path of the file, or node id of the test."""
    results: tuple[PastResult, ...]
    """Oldest first."""

    @property
    def is_test(self) -> bool:
        """Whether it is one test."""
        return "::" in self.name

    @property
    def path(self) -> str:
        """Path of the file."""
        return self.name.partition("::")[0]

    @property
    def durations_s(self) -> tuple[float, ...]:
        """Durations of the runs that it completed, oldest first."""
        return tuple(each.duration_s for each in self.results if each.outcome in _TIMED)

    @property
    def median_s(self) -> float | None:
        """Median of the durations; None without any."""
        return median(self.durations_s) if self.durations_s else None

    @property
    def peak_bytes(self) -> int | None:
        """Most GPU memory that it used in the known runs; None where no run measured it."""
        return max((each.peak_bytes for each in self.results if each.peak_bytes is not None), default=None)

    @property
    def spread(self) -> float | None:
        """Longest duration less the shortest, over the median; None without a median above 0."""
        return (max(self.durations_s) - min(self.durations_s)) / self.median_s if self.median_s else None


def parse_results(text: object) -> tuple[PastResult, ...]:
    """The results in a row of the history; none where the row holds anything else than `results_text` writes."""
    if not isinstance(text, bytes) or len(text) > MAX_RECENT_BYTES:
        return ()
    try:
        return tuple(_result(*each) for each in json.loads(text))
    except MALFORMED:
        return ()


def results_text(results: Sequence[PastResult]) -> str:
    """The last results as a row of the history keeps them: [run id, outcome, seconds], and bytes where measured."""
    kept = [
        [each.run_id[:MAX_RUN_ID], each.outcome, round(each.duration_s, 4)]
        + ([] if each.peak_bytes is None else [each.peak_bytes])
        for each in results[-NUM_RESULTS:]
    ]
    return json.dumps(kept, separators=(",", ":"))


def select_trends(trends: Iterable[Trend], names: Sequence[str]) -> list[Trend]:
    """The trends of a file with its tests, of the files below a directory, or of a test with its parameters.

    `names` are spellings of one name: a path may begin above the root of the suite.
    """
    return [trend for trend in trends if any(_is_named(trend, name) for name in names)]


def similar_names(trends: Iterable[Trend], name: str) -> list[str]:
    """Known names that are spelled like `name`, the most similar first."""
    known = [trend.name for trend in trends if trend.is_test == ("::" in name)]
    return difflib.get_close_matches(name, known[:5000], n=3, cutoff=0.5)


def _is_named(trend: Trend, name: str) -> bool:
    path, colons, test = name.partition("::")
    is_file = path == trend.path or path.endswith(f"/{trend.path}")
    if colons:
        own = trend.name.partition("::")[2]
        return is_file and (own == test or own.startswith((f"{test}::", f"{test}[")))
    return is_file or (not trend.is_test and (path == "." or trend.path.startswith(f"{path.rstrip('/')}/")))


def _result(run_id: object, outcome: object, duration_s: object, peak_bytes: object = None) -> PastResult:
    if not isinstance(run_id, str) or outcome not in _OUTCOMES or len(run_id) > MAX_RUN_ID:
        raise ValueError("not a result")
    if isinstance(duration_s, bool) or not isinstance(duration_s, int | float) or not 0 <= duration_s < math.inf:
        raise ValueError("not a duration")
    if peak_bytes is None:
        return PastResult(run_id, str(outcome), float(duration_s))
    if isinstance(peak_bytes, bool) or not isinstance(peak_bytes, int) or not 0 <= peak_bytes <= MAX_PEAK_BYTES:
        raise ValueError("not an amount of memory")
    return PastResult(run_id, str(outcome), float(duration_s), peak_bytes)
