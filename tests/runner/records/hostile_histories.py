"""Histories of durations that somebody else has made, to harm whoever has rlharness read them."""

import os
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from harness.runner.records.history_file import SCHEMA

ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
PAGE_BYTES = 4096


def make_history(path: Path, *statements: str, schema: tuple[str, ...] = SCHEMA) -> None:
    """A history in `path`, after these statements."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in (*schema, *statements):
            connection.execute(statement)
        connection.commit()


def name_victim(path: Path, victim: Path) -> None:
    """Leave a journal beside a history, as of a crash, that names a super-journal: SQLite deletes the file it names.

    The layout is that of "The Rollback Journal" in SQLite's description of its file format; it restores no page.
    """
    name = os.fsencode(victim)
    num_pages = path.stat().st_size // PAGE_BYTES
    head = JOURNAL_MAGIC + struct.pack(">5I", 0, 1, num_pages, 512, PAGE_BYTES)
    locking_page = (1 << 30) // PAGE_BYTES + 1
    tail = struct.pack(">I", locking_page) + name + struct.pack(">2I", len(name), sum(name)) + JOURNAL_MAGIC
    Path(f"{path}-journal").write_bytes(head.ljust(512, b"\0") + tail)


def with_endless_view(path: Path) -> None:
    """Durations are a view that has no end."""
    make_history(
        path,
        "DROP TABLE durations",
        f"CREATE VIEW durations AS {ENDLESS} SELECT i id, x'61' path, 1.0 duration_s FROM n",
    )


def with_endless_trigger(path: Path) -> None:
    """Whatever is recorded starts a search that has no end."""
    trigger = f"DELETE FROM durations WHERE id IN ({ENDLESS} SELECT -i FROM n)"
    make_history(path, f"CREATE TRIGGER t AFTER INSERT ON units BEGIN {trigger}; END")


def with_number_for_path(path: Path) -> None:
    """A path is a number."""
    make_history(path, "INSERT INTO durations (path, duration_s) VALUES (1, 2.0)")


def with_nul_in_path(path: Path) -> None:
    """A path that no file can have, of a file to be imported."""
    make_history(path, "INSERT INTO units VALUES (x'610062', 'passed', 1.0, 1, 1)")


def with_endless_duration(path: Path) -> None:
    """A duration is infinite, another is below zero."""
    make_history(
        path, *(f"INSERT INTO durations (path, duration_s) VALUES (x'61', {value})" for value in ("9e999", "-1.0"))
    )


MALFORMED: tuple[Callable[[Path], None], ...] = (
    with_endless_view,
    with_endless_trigger,
    with_number_for_path,
    with_nul_in_path,
    with_endless_duration,
)
