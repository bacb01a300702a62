"""The file of the history of durations: opened only if it holds our schema and nothing else.

It lies in the user's cache, which no checkout can write to. It may still come from elsewhere, as out of the cache of a
CI system, and SQLite gives a file powers: a journal can name another file that is then deleted, views and triggers run,
and a link leads anywhere. So the files are looked at before SQLite opens them, the schema is compared literally before
anything is asked of it, and every question has a limit. A file that is not ours is set aside under a new name.
"""

import os
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from harness.bits.errors import HistoryError
from harness.bits.files import open_regular

if TYPE_CHECKING:
    import sqlite3

APPLICATION_ID = 0x524C4831  # "RLH1", in the header of the file: tells ours from anybody else's SQLite file
SCHEMA_VERSION = 4
BUSY_TIMEOUT_S = 2.0
MAX_SET_ASIDE = 2
"""Broken files set aside before the history is given up."""
MAX_BYTES = 64 << 20
"""Ten durations each of twenty thousand files take half of it; results of tests and collected files take the rest."""
MAX_TURNS = 1_000
TURN = 100_000
"""Instructions of SQLite's machine in a turn; so many turns take a few seconds."""

_HEADER = b"SQLite format 3\0"
_ROLLBACK_MODE = b"\1\1"
"""Bytes 18 and 19 of the header: no write-ahead log."""
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
"""Also the last bytes of a journal that names a super-journal, which SQLite deletes; none of ours does."""

_TABLES = (
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
)
_ADDED = {
    2: """
    CREATE TABLE results (
        name BLOB PRIMARY KEY,            -- path of a file, or node id of a test
        number INTEGER NOT NULL,          -- of its last run: ascends with time
        recent TEXT NOT NULL              -- JSON, oldest first: [run id, outcome, seconds] of its last runs
    ) WITHOUT ROWID
    """,
    3: """
    CREATE TABLE collected (
        path BLOB PRIMARY KEY,
        key TEXT NOT NULL,                -- digest of the file and of what else decides which tests it has
        number INTEGER NOT NULL,          -- ascends with time
        file TEXT NOT NULL                -- JSON: its need and its tests
    )
    """,
}
"""Tables by the version of the schema that added them. Since version 4, a result in `recent` may have a fourth value:
the most bytes of GPU memory that were measured. Earlier versions of rlharness cannot read such a row."""
_VERSION = f"PRAGMA user_version = {SCHEMA_VERSION}"
SCHEMA = (*_TABLES, *_ADDED.values(), f"PRAGMA application_id = {APPLICATION_ID}", _VERSION)


class _NotOursError(Exception):
    """The file is broken, or somebody else's."""


def open_history(path: Path, notes: list[str]) -> "sqlite3.Connection | None":
    """Return a connection to the history in `path`, made where the file is missing or empty; None where none can be.

    What a person should know is added to `notes`.
    """
    try:
        for _ in range(MAX_SET_ASIDE):
            seen = _identity(path)
            try:
                return _connect(path)
            except _NotOursError as error:
                notes.append(f"duration history {path} is unusable ({error}); {_set_aside(path, seen)}")
        notes.append(f"duration history {path} broke again; durations are estimated and not recorded")
    except (HistoryError, OSError) as error:
        notes.append(f"duration history {path}: {error}; durations are estimated and not recorded")
    return None


def limit_work(connection: "sqlite3.Connection") -> None:
    """Give what is asked of the history next a limit of its own: beyond it sqlite3.OperationalError is raised."""
    turns = count(1)
    connection.set_progress_handler(lambda: next(turns) > MAX_TURNS, TURN)


def _connect(path: Path) -> "sqlite3.Connection":
    """A connection to our schema in `path`, made where the file is missing or empty.

    `_NotOursError` for a file to set aside, HistoryError for one to leave alone.
    """
    import sqlite3

    _check_files(path)
    connection = None
    try:
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level="IMMEDIATE")
        connection.text_factory = bytes  # a text need not be UTF-8
        limit_work(connection)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        # A lost history costs an estimate; not worth waiting for the disk after every unit.
        connection.execute("PRAGMA synchronous = OFF")
        _check_or_make_schema(connection)
        result, connection = connection, None
        return result
    except UnicodeDecodeError as error:  # sqlite3's error quotes the schema, which is no text
        raise _NotOursError("its schema is not text") from error
    except sqlite3.Error as error:
        # Only its first byte is the primary code: SQLITE_CORRUPT has kinds.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise _NotOursError(str(error)) from error
        raise HistoryError(str(error)) from error
    finally:
        if connection is not None:
            connection.close()


def _check_files(path: Path) -> None:
    """Check what SQLite would open, before it does."""
    found = _look_at(path)
    if found is not None and stat.S_ISLNK(found.st_mode):
        raise HistoryError("it is a link")
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise HistoryError("it is not a regular file")
    if found is not None and found.st_uid != os.geteuid():
        raise HistoryError(f"user {found.st_uid} owns it, and rlharness runs as user {os.geteuid()}")
    for suffix in ("-wal", "-shm"):
        if _look_at(Path(f"{path}{suffix}")) is not None:
            raise _NotOursError(f"SQLite left a file {suffix} next to it")
    journal = Path(f"{path}-journal")
    beside = _look_at(journal)
    for each in (found, beside):
        if each is not None and each.st_size > MAX_BYTES:
            raise _NotOursError(f"{each.st_size:,} bytes exceed the limit of {MAX_BYTES:,}")
    if beside is not None and not stat.S_ISREG(beside.st_mode):
        raise _NotOursError("its journal is not a regular file")
    if _end(journal, len(_JOURNAL_MAGIC)) == _JOURNAL_MAGIC:
        raise _NotOursError("its journal names another file")
    if found is not None and found.st_size:
        with open_regular(path) as file:
            header = file.read(20)
        if header[:16] != _HEADER or header[18:] != _ROLLBACK_MODE:
            raise _NotOursError("it is not a duration history")


def _look_at(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _end(path: Path, num_bytes: int) -> bytes:
    """The last bytes of a file; of one that is not there, or too short, none."""
    with suppress(FileNotFoundError), open_regular(path) as file:
        if file.seek(0, os.SEEK_END) >= num_bytes:
            file.seek(-num_bytes, os.SEEK_END)
            return file.read(num_bytes)
    return b""


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
        elif _schema(connection) != _own_schema(version):
            raise _NotOursError("its schema is not that of a duration history")
        else:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != b"ok":
                raise _NotOursError(verdict.decode("utf-8", "replace"))
            if version < SCHEMA_VERSION:
                for statement in (*(table for since, table in _ADDED.items() if since > version), _VERSION):
                    connection.execute(statement)
        connection.commit()
    finally:
        connection.rollback()


def _schema(connection: "sqlite3.Connection") -> list[tuple[bytes | None, ...]]:
    """Everything that the schema has, by name; a few entries more than ours at most."""
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 16"
    return sorted(connection.execute(query).fetchall(), key=repr)


def _own_schema(version: int) -> list[tuple[bytes | None, ...]]:
    """Everything that a history of a version has."""
    import sqlite3

    connection = sqlite3.connect(":memory:")
    try:
        connection.text_factory = bytes
        for statement in (*_TABLES, *(table for since, table in _ADDED.items() if since <= version)):
            connection.execute(statement)
        return _schema(connection)
    finally:
        connection.close()


def _identity(path: Path) -> tuple[int, int] | None:
    found = _look_at(path)
    return found and (found.st_dev, found.st_ino)


def _set_aside(path: Path, seen: tuple[int, int] | None) -> str:
    """Rename the broken file `seen` at `path`, and what SQLite keeps beside it; says what was done."""
    if _identity(path) != seen:
        return "another run has replaced it"
    number = next(n for n in count(1) if not os.path.lexists(f"{path}.broken-{n}"))
    aside = path.with_name(f"{path.name}.broken-{number}")
    # The journals go first: left behind, one would be played back into the file that is made next.
    for suffix in ("-journal", "-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return f"set aside as {aside.name}"
