"""Results of each test file and test in the last runs; from the durations of a file, packing expects its next one.

One SQLite file in the user's cache for each suite's root, shared by concurrent runs. None is read from a checkout,
which anybody may have written. It is an aid, never a condition: a history that cannot be opened, read or written costs
a run its good estimates and adds a line to `History.notes`, no more.
"""

import difflib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from harness.bits.errors import HarnessError
from harness.bits.files import MALFORMED
from harness.process.user_cache import cache_path
from harness.runner.events import AttemptFailed, Event, TestFinished, TestStarted, UnitFinished
from harness.runner.records.stats import RunState
from harness.runner.report_file import TestOutcome
from harness.runner.units import Outcome, UnitResult, merge_uses

if TYPE_CHECKING:
    import sqlite3

NUM_RESULTS = 10
"""Results kept per file and per test."""
NUM_RECENT = 5
"""Latest durations whose median is expected: one odd run moves it little, and a change of the file is soon followed."""
UNKNOWN_S = 30.0
"""Estimate for a file of average size where no duration is known at all: only its ratio to the others matters."""
MAX_SIZE_FACTOR = 4.0
MAX_NAMES = 10_000
"""Files and tests whose results are kept: the latest; and as many are recorded in one run."""
BUSY_TIMEOUT_S = 2.0
SUFFIX = "-5.sqlite"
"""End of the file's name, with the version of the schema: each version of rlharness that has another one has a file."""
# A name is a path or node id, which need not be UTF-8; numbers ascend with time; `recent` has the last results, oldest
# first: [run id, outcome, seconds] and bytes of GPU memory where measured.
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS results"
    " (name BLOB PRIMARY KEY, number INTEGER NOT NULL, recent TEXT NOT NULL) WITHOUT ROWID"
)
RAN_TO_THE_END = (Outcome.PASSED, Outcome.FAILED, Outcome.LEANING, Outcome.NO_TESTS)
TIMED = frozenset((*RAN_TO_THE_END, *("passed", "failed", "error", "xpassed", "xfailed")))
"""Outcomes with a duration that says how long the file or test takes."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected duration of a unit."""

    seconds: float
    is_estimate: bool = False
    """Whether the file itself has no known duration."""


@dataclass(frozen=True, slots=True)
class PastResult:
    """Result of a file or test in one run."""

    run_id: str
    outcome: str
    """An Outcome for a file, a TestOutcome for a test."""
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
        return tuple(each.duration_s for each in self.results if each.outcome in TIMED)

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


class History:
    """The results of earlier runs. Use `History.open`; close it, or use it as a context manager."""

    def __init__(self, path: Path | None = None, note: str = "") -> None:
        self._path = path
        self.notes: tuple[str, ...] = (note,) if note else ()
        """Notes for the user: a file set aside, a history that cannot be used or written."""
        self._connection: sqlite3.Connection | None = None
        self._num_recorded = 0
        """Results of files and tests recorded so far."""
        self._number = 0
        """Number of this run among the results; 0 before the first record."""

    @classmethod
    def open(cls, path: Path) -> "History":
        """The history in the file `path`, made where it is missing.

        Where it cannot be used, one that knows nothing and records nothing, with the reason in `notes`.
        """
        import sqlite3

        history = cls(path)
        for _ in range(2):
            try:
                history._connection = _connect(path)
                break
            except sqlite3.OperationalError as error:
                history._note(f"{error}; durations are estimated and not recorded")
                break
            except sqlite3.DatabaseError as error:
                history._set_aside(error)
        return history

    @classmethod
    def of_root(cls, root: Path, environ: Mapping[str, str], *, is_run: bool) -> "History":
        """The history of the suite in `root`, in this user's cache; only a run makes one that is missing."""
        try:
            path = history_path(root, environ)
        except HarnessError as error:
            why = f"duration history: {error.what}; durations are estimated and not recorded; {error.remedy}"
            return cls(None, why)
        return cls.open(path) if is_run or path.exists() else cls()

    def close(self) -> None:
        """Let go of the file; nothing is read or recorded afterwards."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> "History":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def trends(self) -> list[Trend]:
        """The last results of every file and test that is known, by name."""

        def work(connection: "sqlite3.Connection") -> list[Trend]:
            rows = connection.execute("SELECT name, recent FROM results")
            return [Trend(name.decode("utf-8", "surrogatepass"), parse_results(recent)) for name, recent in rows]

        return sorted(self._tried("reading", work, list[Trend]()), key=lambda trend: trend.name)

    def expectations(self, sizes: Mapping[str, int]) -> dict[str, Expectation]:
        """Return the expectation for each file of `sizes` (path -> size in bytes), in their order.

        The median of its last five durations; if its last attempt was ended at a time limit, at least as long as that.
        For files that never ran to their end, `estimate_s`.
        """
        measured, known = dict[str, float](), list[tuple[int, float]]()
        for trend in self.trends():
            if trend.name in sizes:
                if recent := trend.durations_s[-NUM_RECENT:]:
                    measured[trend.name] = median(recent)
                    known.append((sizes[trend.name], measured[trend.name]))
                last = trend.results[-1]
                if last.outcome == Outcome.TIMED_OUT:
                    measured[trend.name] = max(measured.get(trend.name, 0.0), last.duration_s)
        return {
            path: Expectation(measured[path])
            if path in measured
            else Expectation(estimate_s(size, known), is_estimate=True)
            for path, size in sizes.items()
        }

    def test_durations_s(self, paths: Iterable[str]) -> dict[str, float]:
        """Return the median duration of each test of these files, by node id, where one is known."""
        wanted = frozenset(paths)
        trends = (trend for trend in (self.trends() if wanted else ()) if trend.is_test and trend.path in wanted)
        return {trend.name: trend.median_s for trend in trends if trend.median_s is not None}

    def leaning_files(self, paths: Iterable[str]) -> frozenset[str]:
        """Return those of these files that leaned on other tests in a known run."""
        wanted = frozenset(paths)
        trends = (trend for trend in (self.trends() if wanted else ()) if trend.name in wanted)
        return frozenset(each.name for each in trends if any(r.outcome == Outcome.LEANING for r in each.results))

    def record(self, results: Mapping[str, PastResult]) -> None:
        """Add a result to each path or node id. Of the names of earlier runs, the latest MAX_NAMES stay."""

        def work(connection: "sqlite3.Connection") -> None:
            if not self._number:
                latest = "SELECT name FROM results ORDER BY number DESC LIMIT ?"
                connection.execute(f"DELETE FROM results WHERE name NOT IN ({latest})", (MAX_NAMES,))
                (self._number,) = connection.execute("SELECT coalesce(max(number), 0) + 1 FROM results").fetchone()
            for name, result in results.items():
                if self._num_recorded < MAX_NAMES:
                    self._num_recorded += 1
                    key = name.encode("utf-8", "surrogatepass")
                    row = connection.execute("SELECT recent FROM results WHERE name = ?", (key,)).fetchone()
                    recent = results_text([*(parse_results(row[0]) if row else ()), result])
                    connection.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", (key, self._number, recent))

        self._tried("recording", work, None)

    # ---- the file

    def _tried(self, doing: str, work: Callable[["sqlite3.Connection"], _T], default: _T) -> _T:
        """Return the result of `work` in one transaction; `default`, and the history is closed, where it fails."""
        if self._connection is None:
            return default
        import sqlite3

        try:
            with self._connection as connection:
                return work(connection)
        except (sqlite3.Error, *MALFORMED) as error:
            self._note(f"{doing} it failed ({error}); this run records no more durations")
            self.close()
            if not isinstance(error, sqlite3.OperationalError):
                self._set_aside(error)
            return default

    def _note(self, why: str) -> None:
        self.notes += (f"duration history {self._path}: {why}",)

    def _set_aside(self, error: Exception) -> None:
        """Rename the file, which is broken or of another program."""
        aside = f"{self._path}.broken"
        with suppress(OSError):
            os.replace(str(self._path), aside)
        self._note(f"it is unusable ({error}); set aside as {Path(aside).name}")


def history_path(root: Path, environ: Mapping[str, str]) -> Path:
    """Return where the history of the suite in `root` is kept. Raises UsageError for a cache that cannot be used."""
    return cache_path(environ, "history", root, SUFFIX)


def _connect(path: Path) -> "sqlite3.Connection":
    """A connection to our schema in `path`, made where the file is missing or empty."""
    import sqlite3

    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level="IMMEDIATE")
    try:
        # A lost history costs an estimate; not worth waiting for the disk after every unit.
        for statement in ("PRAGMA journal_mode = MEMORY", "PRAGMA synchronous = OFF", SCHEMA):
            connection.execute(statement)
        connection.execute("SELECT name, number, recent FROM results LIMIT 1")
    except BaseException:
        connection.close()
        raise
    return connection


def estimate_s(size_bytes: int, known: Sequence[tuple[int, float]]) -> float:
    """Expected seconds of a file of `size_bytes` that never ran, from files that did: (size_bytes, seconds) each.

    The median of their durations, times the size of this file over the median of their sizes; the factor kept between
    1/4 and 4, since length says little more about a test file than whether it is a small or a big one.
    Where none is known: 30 s, whatever the size.
    """
    if not known:
        return UNKNOWN_S
    typical_bytes = max(1.0, median(size for size, _ in known))
    factor = min(MAX_SIZE_FACTOR, max(1 / MAX_SIZE_FACTOR, size_bytes / typical_bytes))
    return median(seconds for _, seconds in known) * factor


def parse_results(text: str) -> tuple[PastResult, ...]:
    """The results in a row of the history, as `results_text` writes them."""
    return tuple(PastResult(*each) for each in json.loads(text))


def results_text(results: Sequence[PastResult]) -> str:
    """The last results as a row of the history keeps them: [run id, outcome, seconds], and bytes where measured."""
    kept = [
        [each.run_id, each.outcome, round(each.duration_s, 4)] + [each.peak_bytes] * (each.peak_bytes is not None)
        for each in results[-NUM_RESULTS:]
    ]
    return json.dumps(kept, separators=(",", ":"))


class HistoryKeeper:
    """Records each file and its tests as the outcome of the file comes: an interrupted run has taught something too."""

    def __init__(self, history: History, run_id: str) -> None:
        self._history = history
        self._run_id = run_id
        self._tests: dict[str, dict[str, PastResult]] = {}
        """Results of the tests of each running unit, by node id."""
        self._parts: dict[str, list[tuple[UnitResult, float]]] = {}
        """Results of the parts of each file so far, with the seconds of their tests."""

    def on_event(self, event: Event, state: RunState) -> None:
        """Remember the results of tests, and record them with their file."""
        match event:
            case TestStarted():
                self._remember(event.path, event.nodeid, TestOutcome.UNFINISHED, 0.0)
            case TestFinished():
                self._remember(event.path, event.nodeid, event.outcome, event.duration_s)
            case AttemptFailed(is_rest=True):
                pass  # its tests and those of the rest are recorded together
            case UnitFinished(result=UnitResult(resumed_from=str(run_id))) if run_id:
                pass  # an earlier run has recorded it
            case AttemptFailed(number=1, result=result):  # of a file that runs again, the first attempt runs all of it
                self._ended(result)
            case UnitFinished(result=result) if all(each.is_rest for each in result.attempts):
                self._ended(result)
            case AttemptFailed(result=result) | UnitFinished(result=result):
                self._tests.pop(result.unit.path, None)

    def close(self) -> None:
        """The context closes the history."""

    def _remember(self, path: str, nodeid: str, outcome: str, duration_s: float) -> None:
        tests = self._tests.setdefault(path, {})
        if nodeid in tests or len(tests) < MAX_NAMES:
            tests[nodeid] = PastResult(self._run_id, str(outcome), duration_s)

    def _ended(self, result: UnitResult) -> None:
        """Record what one attempt taught: nothing if it was cancelled, no duration if single tests were asked for."""
        unit, tests = result.unit, self._tests.pop(result.unit.path, {})
        if result.outcome in (Outcome.NOT_RUN, Outcome.INTERRUPTED) or not result.duration_s:
            return
        for nodeid, peak_bytes in (result.gpu_memory.tests if result.gpu_memory is not None else {}).items():
            if nodeid in tests:
                tests[nodeid] = replace(tests[nodeid], peak_bytes=peak_bytes)
        if unit.part:
            parts = self._parts.setdefault(unit.file_path, [])
            parts.append((result, sum(each.duration_s for each in tests.values())))
            if len(parts) == unit.part.count:
                tests[unit.file_path] = self._of_parts(parts)
        elif not unit.selection:
            peak = result.gpu_memory.peak_bytes if result.gpu_memory is not None else None
            tests[unit.path] = PastResult(self._run_id, result.outcome.value, result.duration_s, peak)
        self._history.record(tests)

    def _of_parts(self, parts: Sequence[tuple[UnitResult, float]]) -> PastResult:
        """Return the result of a file from those of all its parts, each with the seconds of its tests.

        The first part that did not run to its end decides the outcome. The duration is that of all tests, and of the
        longest rest of a part: each part starts pytest and imports the file, which happens once for a whole file.
        """
        results = [result for result, _ in parts]
        outcomes = [result.outcome for result in results]
        ended_early = [outcome for outcome in outcomes if outcome not in (*RAN_TO_THE_END, Outcome.FLAKY)]
        order = (*ended_early, Outcome.FAILED, Outcome.LEANING, Outcome.FLAKY, Outcome.PASSED, Outcome.NO_TESTS)
        rests_s = [max(0.0, result.duration_s - tests_s) for result, tests_s in parts]
        memory = merge_uses([result.gpu_memory for result in results])
        return PastResult(
            self._run_id,
            next(outcome for outcome in order if outcome in outcomes).value,
            sum(result.duration_s for result in results) - sum(rests_s) + max(rests_s),
            memory.peak_bytes if memory is not None else None,
        )


# ---- names that a user types


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
