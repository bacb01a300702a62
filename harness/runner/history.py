"""How long each test file took before: what packing expects of it next time.

One SQLite file, `.rlharness/history.sqlite`, shared by concurrent runs. It is an aid, never a condition: a history
that cannot be opened, read or written costs a run its good estimates and adds a line to `History.notes`, no more.
A broken or foreign file is set aside under a new name; one written by a later version of this program is left alone.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from math import log
from pathlib import Path
from statistics import median, pstdev
from types import TracebackType
from typing import TYPE_CHECKING, Any

from harness.errors import HistoryError
from harness.runner.units import NeedSource, Outcome, UnitResult

if TYPE_CHECKING:
    import sqlite3

APPLICATION_ID = 0x524C4831  # "RLH1", in the header of the file: tells ours from anybody else's SQLite file
SCHEMA_VERSION = 1
BUSY_TIMEOUT_S = 2.0
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
MAX_SET_ASIDE = 2
"""Broken files set aside before the history is given up."""

RAN_TO_THE_END = (Outcome.PASSED, Outcome.FAILED, Outcome.NO_TESTS)

SCHEMA = (
    """
    CREATE TABLE units (
        path BLOB PRIMARY KEY,            -- as the file system spells it, which need not be UTF-8
        outcome TEXT NOT NULL,            -- Outcome of its last attempt
        duration_s REAL NOT NULL,         -- of its last attempt, however that ended
        size_bytes INTEGER NOT NULL,      -- of the file, at its last attempt
        needs_import INTEGER NOT NULL     -- 1: its markers, read without importing it, were not what it asked for
    )
    """,
    """
    CREATE TABLE durations (
        id INTEGER PRIMARY KEY,           -- ascends with time
        path BLOB NOT NULL,
        duration_s REAL NOT NULL          -- of an attempt that ran to its end
    )
    """,
    "CREATE INDEX durations_by_path ON durations (path, id)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


@dataclass(frozen=True, slots=True)
class Expectation:
    """How long a unit should take."""

    seconds: float
    spread: float
    """See `packing.Job.spread`."""
    is_measured: bool
    """It ran before; else it is an estimate."""


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

    @classmethod
    def open(cls, path: Path) -> "History":
        """The history in the file `path`, made where it is missing.

        Where it cannot be used, one that knows nothing and records nothing, with the reason in `notes`.
        """
        notes: list[str] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for _ in range(MAX_SET_ASIDE):
                seen = _identity(path)
                try:
                    return cls(_connect(path), notes)
                except _NotOursError as error:
                    notes.append(f"duration history {path} is unusable ({error}); {_set_aside(path, seen)}")
            notes.append(f"duration history {path} broke again; durations are estimated and not recorded")
        except (HistoryError, OSError) as error:
            notes.append(f"duration history {path}: {error}; durations are estimated and not recorded")
        return cls(None, notes)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should be told: a file set aside, a history that cannot be used or written."""
        return tuple(self._notes)

    def expectations(self, sizes: Mapping[str, int]) -> dict[str, Expectation]:
        """What to expect of each file of `sizes` (path -> size in bytes), in their order.

        The median of its last five durations; if its last attempt was ended at a time limit, at least as long as that.
        For files that never ran to their end, `estimate_s`.
        """
        recent: dict[str, list[float]] = {}
        for path, duration_s in self._read("SELECT path, duration_s FROM durations ORDER BY id"):
            recent.setdefault(path, []).append(duration_s)
        limits = dict(self._read("SELECT path, duration_s FROM units WHERE outcome = ?", (Outcome.TIMED_OUT.value,)))
        measured = {
            path: max(median(recent[path][-NUM_RECENT:]) if path in recent else 0.0, limits.get(path, 0.0))
            for path in sizes
            if path in recent or path in limits
        }
        known = [(sizes[path], seconds) for path, seconds in measured.items() if path in recent]
        return {
            path: Expectation(measured[path], _spread(recent.get(path, [])[-NUM_RECENT:]), is_measured=True)
            if path in measured
            else Expectation(estimate_s(size, known), ESTIMATE_SPREAD, is_measured=False)
            for path, size in sizes.items()
        }

    def to_import(self, root: Path) -> frozenset[str]:
        """Files below `root` whose markers, read without importing them, once were not what they really asked for, and
        whose size is still the same: their needs are better read by importing them."""
        flagged = dict(self._read("SELECT path, size_bytes FROM units WHERE needs_import"))
        sizes = sizes_bytes(root, flagged)
        return frozenset(path for path, size in flagged.items() if sizes[path] == size)

    def record(self, result: UnitResult, size_bytes: int) -> None:
        """Keep what one attempt taught. Raises nothing: see `notes`.

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
        except sqlite3.Error as error:
            self._give_up("recording", error)

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

    def _read(self, query: str, values: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
        if self._connection is None:
            return []
        import sqlite3

        try:
            return [(os.fsdecode(path), value) for path, value in self._connection.execute(query, values)]
        except sqlite3.Error as error:
            self._give_up("reading", error)
            return []

    def _give_up(self, doing: str, error: Exception) -> None:
        """One failure is told once; a history that failed is not tried again for every unit to wait on."""
        self._notes.append(f"duration history: {doing} it failed ({error}); nothing more is recorded in this run")
        self.close()


class _NotOursError(Exception):
    """The file is broken, or somebody else's."""


def _connect(path: Path) -> "sqlite3.Connection":
    """A connection to our schema in `path`, made where the file is missing or empty.

    `_NotOursError` for a file to set aside, HistoryError for one to leave alone.
    """
    import sqlite3

    connection = None
    try:
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level="IMMEDIATE")
        # A lost history costs an estimate; not worth waiting for the disk after every unit.
        connection.execute("PRAGMA synchronous = OFF")
        _check_or_make_schema(connection)
        result, connection = connection, None
        return result
    except sqlite3.Error as error:
        # Only its first byte is the primary code: SQLITE_CORRUPT has kinds.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise _NotOursError(str(error)) from error
        raise HistoryError(str(error)) from error
    finally:
        if connection is not None:
            connection.close()


def _check_or_make_schema(connection: "sqlite3.Connection") -> None:
    connection.execute("BEGIN IMMEDIATE")  # two runs that start together: one makes the schema, the other finds it
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (num_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if num_tables == 0 and application in (0, APPLICATION_ID):
            for statement in SCHEMA:
                connection.execute(statement)
        elif application != APPLICATION_ID:
            raise _NotOursError("it belongs to another program")
        elif version > SCHEMA_VERSION:
            raise HistoryError(f"it was written by a later version of rlharness (schema {version})")
        else:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise _NotOursError(verdict)
        connection.commit()
    finally:
        connection.rollback()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _set_aside(path: Path, seen: tuple[int, int] | None) -> str:
    """Rename the broken file `seen` at `path`, and what SQLite keeps beside it; says what was done."""
    if _identity(path) != seen:
        return "another run has replaced it meanwhile"
    number = next(n for n in count(1) if not path.with_name(f"{path.name}.broken-{n}").exists())
    aside = path.with_name(f"{path.name}.broken-{number}")
    # The journals go first: left behind, one would be played back into the file that is made next.
    for suffix in ("-journal", "-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return f"set aside as {aside.name}"


def _spread(durations: Sequence[float]) -> float:
    """Standard deviation of the logarithms, at least MIN_SPREAD."""
    logs = [log(max(duration_s, 1e-3)) for duration_s in durations]
    return max(MIN_SPREAD, pstdev(logs)) if len(logs) > 1 else MIN_SPREAD
