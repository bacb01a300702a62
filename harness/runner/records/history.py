"""Past results of each test file and test; from the durations of a file, packing expects its next one.

One SQLite file in the user's cache for each suite's root, shared by concurrent runs. None is read from a checkout,
which anybody may have written. It is an aid, never a condition: a history that cannot be opened, read or written costs
a run its good estimates and adds a line to `History.notes`, no more; so does a row that this program cannot have
written. A broken or foreign file is set aside under a new name; one of a later version of this program is left alone.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import median, pstdev
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from harness.bits.errors import HarnessError
from harness.process.user_cache import cache_path
from harness.runner.records.history_file import limit_work, open_history
from harness.runner.records.trends import NUM_RESULTS, PastResult, Trend, parse_results, results_text
from harness.runner.units import NeedSource, Outcome, UnitResult

if TYPE_CHECKING:
    import sqlite3

NUM_KEPT = 10
"""Durations kept per file."""
NUM_RECENT = 5
"""Latest durations whose median is expected: one odd run moves it little, and a change of the file is soon followed."""
MIN_SPREAD = 0.1
"""Spread of a measured duration even where the last runs agree: standard deviation of log(actual / expected)."""
ESTIMATE_SPREAD = 1.0
"""Spread of a duration that was estimated."""
UNKNOWN_S = 30.0
"""Estimate for a file of average size where no duration is known at all: only its ratio to the others matters."""
MAX_SIZE_FACTOR = 4.0
MAX_ROWS = 500_000
"""The latest of them are read."""
MAX_DURATION_S = 1e8
"""Three years; nothing beyond is a duration."""
MAX_PATH_BYTES = 4096
MAX_TESTS = 10_000
"""Files and tests whose results are kept: the latest; and as many are recorded in one run."""
MAX_NAME_BYTES = 500
"""Longer node ids are not kept."""

_Number = TypeVar("_Number", int, float)

NO_RESULTS: Mapping[str, PastResult] = {}
RAN_TO_THE_END = (Outcome.PASSED, Outcome.FAILED, Outcome.LEANING, Outcome.NO_TESTS)


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected duration of a unit."""

    seconds: float
    spread: float
    """See `packing.Job.spread`."""
    is_estimate: bool = False
    """Whether the file itself has no known duration."""


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


def sizes_bytes(root: Path, paths: Iterable[str]) -> dict[str, int]:
    """Size of each file by its path relative to `root`; 0 for one that is not there."""
    sizes = dict.fromkeys(paths, 0)
    for path in sizes:
        with suppress(OSError):
            sizes[path] = (root / path).stat().st_size
    return sizes


class History:
    """The durations of earlier runs. Use `History.open`; close it, or use it as a context manager."""

    def __init__(self, connection: "sqlite3.Connection | None" = None, notes: Sequence[str] = ()) -> None:
        self._connection = connection
        self._notes = list(notes)
        self._num_recorded = 0
        """Results of files and tests recorded so far."""
        self._number = 0
        """Number of this run among the results; 0 before the first record."""

    @classmethod
    def open(cls, path: Path) -> "History":
        """The history in the file `path`, made where it is missing.

        Where it cannot be used, one that knows nothing and records nothing, with the reason in `notes`.
        """
        notes: list[str] = []
        return cls(open_history(path, notes), notes)

    @classmethod
    def of_root(cls, root: Path, environ: Mapping[str, str], *, is_run: bool) -> "History":
        """The history of the suite in `root`, in this user's cache; only a run makes one that is missing."""
        try:
            path = cache_path(environ, "history", root, ".sqlite")
        except HarnessError as error:
            why = f"duration history: {error.what}; durations are estimated and not recorded; {error.remedy}"
            return cls(None, [why])
        return cls.open(path) if is_run or path.exists() else cls()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user: a file set aside, a history that cannot be used or written."""
        return tuple(self._notes)

    def expectations(self, sizes: Mapping[str, int]) -> dict[str, Expectation]:
        """Return the expectation for each file of `sizes` (path -> size in bytes), in their order.

        The median of its last five durations; if its last attempt was ended at a time limit, at least as long as that.
        For files that never ran to their end, `estimate_s`.
        """
        recent: dict[str, list[float]] = {}
        latest_first = self._read("SELECT path, duration_s FROM durations ORDER BY id DESC", float)
        for path, duration_s in reversed(latest_first):
            recent.setdefault(path, []).append(duration_s)
        timed_out = "SELECT path, duration_s FROM units WHERE outcome = ?"
        limits = dict(self._read(timed_out, float, (Outcome.TIMED_OUT.value,)))
        measured = {
            path: max(median(recent[path][-NUM_RECENT:]) if path in recent else 0.0, limits.get(path, 0.0))
            for path in sizes
            if path in recent or path in limits
        }
        known = [(sizes[path], seconds) for path, seconds in measured.items() if path in recent]
        return {
            path: Expectation(measured[path], _spread(recent.get(path, [])[-NUM_RECENT:]))
            if path in measured
            else Expectation(estimate_s(size, known), ESTIMATE_SPREAD, is_estimate=True)
            for path, size in sizes.items()
        }

    def trends(self) -> list[Trend]:
        """The last results of every file and test that is known, by name. Raises nothing: see `notes`."""
        durations: dict[str, list[float]] = {}
        for path, duration_s in self._read("SELECT path, duration_s FROM durations ORDER BY id", float):
            durations.setdefault(path, []).append(duration_s)
        found = {name: results for name, recent in self._recent() if (results := parse_results(recent))}
        for path, known in durations.items():  # those that earlier versions recorded without an outcome
            results = found.get(path, ())
            num_older = len(known) - sum(each.outcome in RAN_TO_THE_END for each in results)
            older = tuple(PastResult("", "", duration_s) for duration_s in known[: max(0, num_older)])
            found[path] = (*older, *results)[-NUM_RESULTS:]
        return [Trend(name, found[name]) for name in sorted(found)]

    def record(
        self, result: UnitResult, size_bytes: int, *, run_id: str = "", tests: Mapping[str, PastResult] = NO_RESULTS
    ) -> None:
        """Keep what one attempt taught, with the results of its tests by node id. Raises nothing: see `notes`.

        Nothing is learnt from units that never started or were cancelled, and no duration where single tests of the
        file were asked for.
        """
        if self._connection is None or result.outcome in (Outcome.NOT_RUN, Outcome.INTERRUPTED):
            return
        import sqlite3

        path = os.fsencode(result.unit.path)
        # A file that is imported because it was flagged agrees with itself: that does not take the flag away.
        disagrees = result.need_disagrees and result.unit.source is not NeedSource.TABLE
        keeps_flag = result.unit.source is NeedSource.IMPORT
        try:
            with self._connection as connection:
                limit_work(connection)
                connection.execute(
                    """
                    INSERT INTO units VALUES (:path, :outcome, :duration_s, :size_bytes, :disagrees)
                    ON CONFLICT (path) DO UPDATE SET outcome = :outcome, duration_s = :duration_s,
                        size_bytes = :size_bytes, needs_import = :disagrees OR (:keeps_flag AND needs_import)
                    """,
                    {
                        "path": path,
                        "outcome": result.outcome.value,
                        "duration_s": result.duration_s,
                        "size_bytes": size_bytes,
                        "disagrees": disagrees,
                        "keeps_flag": keeps_flag,
                    },
                )
                if result.outcome in RAN_TO_THE_END and not result.unit.selection:
                    connection.execute(
                        "INSERT INTO durations (path, duration_s) VALUES (?, ?)", (path, result.duration_s)
                    )
                    connection.execute(
                        """
                        DELETE FROM durations WHERE path = ? AND id NOT IN
                            (SELECT id FROM durations WHERE path = ? ORDER BY id DESC LIMIT ?)
                        """,
                        (path, path, NUM_KEPT),
                    )
                results = dict(tests)
                if not result.unit.selection:
                    peak_bytes = result.gpu_memory.peak_bytes if result.gpu_memory is not None else None
                    of_unit = PastResult(run_id, result.outcome.value, result.duration_s, peak_bytes)
                    results[result.unit.path] = of_unit
                self._record_results(connection, results)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter for an error that quotes the file
            self._give_up("recording", error)

    def record_tests(self, tests: Mapping[str, PastResult]) -> None:
        """Keep results of tests alone, by node id. Raises nothing: see `notes`."""
        if self._connection is None:
            return
        import sqlite3

        try:
            with self._connection as connection:
                limit_work(connection)
                self._record_results(connection, tests)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter for an error that quotes the file
            self._give_up("recording", error)

    def test_durations_s(self, paths: Iterable[str]) -> dict[str, float]:
        """Return the median duration of each test of these files, by node id, where one is known."""
        wanted = frozenset(paths)
        trends = (
            Trend(name, parse_results(recent))
            for name, recent in (self._recent() if wanted else ())
            if name.partition("::")[0] in wanted
        )
        return {trend.name: trend.median_s for trend in trends if trend.is_test and trend.median_s is not None}

    def leaning_files(self, paths: Iterable[str]) -> frozenset[str]:
        """Return those of these files that leaned on other tests in a known run."""
        wanted = frozenset(paths)
        known = ((name, parse_results(recent)) for name, recent in (self._recent() if wanted else ()))
        leaning = {name for name, results in known if any(each.outcome == Outcome.LEANING for each in results)}
        return wanted & leaning

    def _record_results(self, connection: "sqlite3.Connection", results: Mapping[str, PastResult]) -> None:
        """Add a result to each name. Of the names of earlier runs, the latest MAX_TESTS stay."""
        if not self._number:
            latest = "SELECT name FROM results ORDER BY number DESC LIMIT ?"
            connection.execute(f"DELETE FROM results WHERE name NOT IN ({latest})", (MAX_TESTS,))
            (self._number,) = connection.execute("SELECT coalesce(max(number), 0) + 1 FROM results").fetchone()
        for name, result in results.items():
            key = _name_bytes(name)
            if not 0 < len(key) <= MAX_NAME_BYTES or self._num_recorded >= MAX_TESTS:
                continue
            self._num_recorded += 1
            row = connection.execute("SELECT recent FROM results WHERE name = ?", (key,)).fetchone()
            recent = results_text([*(parse_results(row[0]) if row else ()), result])
            connection.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", (key, self._number, recent))

    def _recent(self) -> list[tuple[str, object]]:
        """(name, recent results as text) of every row with a name that a file or test can have."""
        rows = self._rows("SELECT name, recent FROM results ORDER BY number DESC")
        return [(os.fsdecode(name), recent) for name, recent in rows if _is_path(name)]

    def _rows(self, query: str, values: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, unchecked; none where the history cannot be read."""
        if self._connection is None:
            return []
        import sqlite3

        try:
            limit_work(self._connection)
            return self._connection.execute(f"{query} LIMIT {MAX_ROWS}", values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter for an error that quotes the file
            self._give_up("reading", error)
            return []

    def close(self) -> None:
        """Let go of the file; nothing is read or recorded afterwards."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> "History":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, query: str, kind: type[_Number], values: tuple[str, ...] = ()) -> list[tuple[str, _Number]]:
        """(path, number) of the rows of a query, whose second column is of this kind."""
        rows = self._rows(query, values)
        good = [(os.fsdecode(path), number) for path, number in rows if _is_path(path) and _is_number(number, kind)]
        if len(good) < len(rows):
            passed = len(rows) - len(good)
            rows_text = "row" if passed == 1 else "rows"
            self._notes.append(f"duration history: passed over {passed} {rows_text} without a valid measurement")
        return good

    def _give_up(self, doing: str, error: Exception) -> None:
        """One failure is told once; a history that failed is not tried again for every unit to wait on."""
        self._notes.append(f"duration history: {doing} it failed ({error}); this run records no more durations")
        self.close()


def _name_bytes(name: str) -> bytes:
    """A path or node id as the file system spells it; nothing for one that it cannot spell."""
    try:
        return os.fsencode(name)
    except UnicodeEncodeError:  # a test may have any name
        return b""


def _is_path(value: object) -> bool:
    return isinstance(value, bytes) and 0 < len(value) <= MAX_PATH_BYTES and b"\0" not in value


def _is_number(value: object, kind: type[int] | type[float]) -> bool:
    return isinstance(value, kind) and 0 <= value <= (MAX_DURATION_S if kind is float else sys.maxsize)


def _spread(durations: Sequence[float]) -> float:
    """Standard deviation of the logarithms, at least MIN_SPREAD."""
    logs = [log(max(duration_s, 1e-3)) for duration_s in durations]
    return max(MIN_SPREAD, pstdev(logs)) if len(logs) > 1 else MIN_SPREAD
