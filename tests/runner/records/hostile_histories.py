"""Histories that somebody else has made, to harm whoever has rlharness read them."""

import os
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from harness.runner.records.history import SCHEMA

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
    """Results are a view that has no end."""
    view = f"CREATE VIEW results AS {ENDLESS} SELECT x'61' name, i number, '[]' recent FROM n"
    make_history(path, "DROP TABLE results", view)


def with_endless_trigger(path: Path) -> None:
    """Each recorded result starts a search that has no end."""
    trigger = f"DELETE FROM results WHERE number IN ({ENDLESS} SELECT -i FROM n)"
    make_history(path, f"CREATE TRIGGER t AFTER INSERT ON results BEGIN {trigger}; END")


def with_other_tables(path: Path) -> None:
    """The file of another program."""
    make_history(path, "CREATE TABLE results (something TEXT)", schema=())


def with_text(path: Path) -> None:
    """No database."""
    path.write_text("not a database, and long enough to be taken for the header of one\n" * 50)


def with_half_a_file(path: Path) -> None:
    """A history that was cut short."""
    rows = (f"INSERT INTO results VALUES (x'{n:08x}', 1, '{'[]' * 500}')" for n in range(200))
    make_history(path, *rows)
    os.truncate(path, path.stat().st_size // 2)


def with_a_large_file(path: Path) -> None:
    """More than anybody would read."""
    make_history(path)
    os.truncate(path, 20 << 30)  # sparse


def with_a_link(path: Path) -> None:
    """A link to a file elsewhere."""
    make_history(path.with_name("target"))
    path.symlink_to(path.with_name("target"))


MALFORMED: tuple[Callable[[Path], None], ...] = (
    with_endless_view,
    with_endless_trigger,
    with_other_tables,
    with_text,
    with_half_a_file,
    with_a_large_file,
    with_a_link,
    os.mkfifo,
)
