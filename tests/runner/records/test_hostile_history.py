"""A history of durations that came from elsewhere harms nobody: not out of a checkout, and not out of a cache."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.process.user_cache import cache_path
from harness.runner.need import Need
from harness.runner.records import history, history_file
from harness.runner.records.history import ESTIMATE_SPREAD, UNKNOWN_S, History
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult
from tests.runner.records.hostile_histories import (
    MALFORMED,
    make_history,
    name_victim,
    with_endless_trigger,
    with_endless_view,
    with_nul_in_path,
)
from tests.support.suite_runs import HARNESS, QUICK, environment, write_suite

PATIENCE_S = 60.0
SIZES = {"test_a.py": 100}
RESULT = UnitResult(Unit("test_a.py", Need(), NeedSource.IMPORT), Outcome.PASSED, duration_s=5.0)

malformed = pytest.mark.parametrize("make", MALFORMED, ids=lambda make: make.__name__)


def rlharness(suite: Path, command: str) -> "subprocess.CompletedProcess[str]":
    """The command in the suite; TimeoutExpired where it hangs."""
    words = [*HARNESS, command, "--gpus", "none"]
    env = environment(XDG_CACHE_HOME=str(suite.parent / "cache"))
    return subprocess.run(
        words, cwd=suite, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False, errors="replace"
    )


def cached(suite: Path) -> Path:
    """Where the history of the suite is kept."""
    return cache_path({"XDG_CACHE_HOME": str(suite.parent / "cache")}, "history", suite, ".sqlite")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return write_suite(tmp_path / "checkout", {"test_a.py": QUICK, "pytest.ini": "[pytest]\n"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


# ------------------------------------------------------------------------------------------------------ in a checkout


@pytest.mark.parametrize("command", ["plan", pytest.param("run", marks=pytest.mark.full)])
def test_a_history_that_a_checkout_brings_along_is_neither_read_nor_changed(
    suite: Path, tmp_path: Path, command: str
) -> None:
    """Where versions before kept theirs, with the journal of a crash that names a file of mine."""
    victim, brought = tmp_path / "id_rsa", suite / ".rlharness" / "history.sqlite"
    victim.write_text("mine")
    brought.parent.mkdir()
    with_endless_view(brought)
    name_victim(brought, victim)
    before = brought.read_bytes()

    done = rlharness(suite, command)

    assert done.returncode == ExitCode.OK
    assert "duration history" not in done.stdout + done.stderr
    assert (brought.read_bytes(), victim.read_text()) == (before, "mine")


@pytest.mark.full
def test_what_a_run_has_learnt_lies_in_my_cache_and_not_in_the_checkout(suite: Path) -> None:
    assert rlharness(suite, "run").returncode == ExitCode.OK

    assert sorted(path.name for path in (suite / ".rlharness").iterdir()) == [".gitignore", "runs"]
    with History.open(cached(suite)) as kept:
        assert kept.expectations(SIZES)["test_a.py"].spread != ESTIMATE_SPREAD
        found = {each.name: each.results[-1] for each in kept.trends()}
    assert found["test_a.py"].outcome == "passed"
    (test,) = [result for name, result in found.items() if name.startswith("test_a.py::")]
    assert (test.run_id, test.outcome) == (found["test_a.py"].run_id, "passed")
    assert (suite / ".rlharness" / "runs" / test.run_id).is_dir()


@pytest.mark.full
def test_a_cache_that_cannot_be_used_costs_a_note_and_no_run(suite: Path) -> None:
    (suite.parent / "cache").write_text("a file")

    done = rlharness(suite, "run")

    assert done.returncode == ExitCode.OK
    assert "duration history: the cache directory" in done.stdout
    assert "set XDG_CACHE_HOME to a directory of your own" in done.stdout.replace("\n", " ")


# --------------------------------------------------------------------------------------------------------- in the cache


@pytest.mark.parametrize(
    "make",
    [
        with_endless_view,
        pytest.param(with_endless_trigger, marks=pytest.mark.full),
        pytest.param(with_nul_in_path, marks=pytest.mark.full),
    ],
)
def test_a_malformed_history_costs_a_run_a_note_and_nothing_else(suite: Path, make: Callable[[Path], None]) -> None:
    make(cached(suite))

    done = rlharness(suite, "run")

    assert done.returncode == ExitCode.OK
    assert "duration history" in done.stdout


@pytest.mark.full
def test_a_plan_says_that_rows_are_passed_over(suite: Path) -> None:
    make_history(cached(suite), "INSERT INTO durations (path, duration_s) VALUES (1, 2.0)")

    assert "duration history: passed over 1 row without a valid measurement" in rlharness(suite, "plan").stderr


@malformed
def test_what_is_recorded_after_a_malformed_history_is_expected(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    with History.open(path) as kept:
        assert kept.expectations(SIZES)["test_a.py"].seconds == UNKNOWN_S
        kept.record(RESULT, 100)
        assert len(kept.notes) == 1
        assert kept.expectations(SIZES)["test_a.py"].seconds == 5.0


def test_good_rows_beside_a_bad_one_count(path: Path) -> None:
    good = "INSERT INTO durations (path, duration_s) VALUES (CAST('test_a.py' AS BLOB), 7.0)"
    make_history(path, good, "INSERT INTO durations (path, duration_s) VALUES (1, 2.0)")
    with History.open(path) as kept:
        assert kept.expectations(SIZES)["test_a.py"].seconds == 7.0


def test_the_journal_of_a_crash_deletes_no_file_and_goes_aside(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "id_rsa"
    victim.write_text("mine")
    make_history(path)
    name_victim(path, victim)
    with History.open(path) as kept:
        (note,) = kept.notes
    assert "its journal names another file); set aside as history.sqlite.broken-1" in note
    assert victim.read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == [
        "history.sqlite",
        "history.sqlite.broken-1",
        "history.sqlite.broken-1-journal",
        "id_rsa",
    ]


def link(path: Path, target: Path) -> None:
    make_history(target)
    path.symlink_to(target)


def link_beside(suffix: str) -> Callable[[Path, Path], None]:
    def make(path: Path, target: Path) -> None:
        make_history(path)
        target.write_text("mine")
        Path(f"{path}{suffix}").symlink_to(target)

    return make


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (link, "it is a link; durations are estimated"),
        (lambda path, target: os.mkfifo(path), "it is not a regular file; durations are estimated"),
        (link_beside("-journal"), "its journal is not a regular file"),
        (link_beside("-wal"), "SQLite left a file -wal next to it"),
        (link_beside("-shm"), "SQLite left a file -shm next to it"),
    ],
    ids=["link", "fifo", "link for a journal", "link for a log", "link for shared memory"],
)
def test_links_are_not_followed(path: Path, tmp_path: Path, make: Callable[[Path, Path], None], said: str) -> None:
    target = tmp_path / "target"
    make(path, target)
    before = target.read_bytes() if target.exists() else b""
    with History.open(path) as kept:
        kept.record(RESULT, 100)
        (note,) = kept.notes
    assert said in note
    assert (target.read_bytes() if target.exists() else b"") == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_history_of_another_user_is_left_alone(path: Path) -> None:
    make_history(path)
    os.chown(path, 12345, 12345)
    with History.open(path) as kept:
        (note,) = kept.notes
    assert "user 12345 owns it" in note


@pytest.mark.parametrize("suffix", ["", "-journal"])
def test_a_file_without_end_is_set_aside_unread(path: Path, suffix: str) -> None:
    make_history(path)
    Path(f"{path}{suffix}").open("ab").close()
    os.truncate(f"{path}{suffix}", 20 << 30)  # sparse
    with History.open(path) as kept:
        (note,) = kept.notes
    assert "bytes exceed the limit of" in note


def test_only_the_latest_rows_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_ROWS", 3)
    row = "INSERT INTO durations (path, duration_s) VALUES (CAST('test_a.py' AS BLOB), {}.0)"
    make_history(path, *(row.format(seconds) for seconds in (1, 1, 1, 1, 8, 9, 10)))
    with History.open(path) as kept:
        assert kept.expectations(SIZES)["test_a.py"].seconds == 9.0


def test_a_question_that_takes_too_long_costs_a_note(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "INSERT INTO durations (path, duration_s) VALUES (x'61', 1.0)"
    make_history(path, *[row] * 100)
    with History.open(path) as kept:
        monkeypatch.setattr(history_file, "MAX_TURNS", 1)
        monkeypatch.setattr(history_file, "TURN", 100)
        assert kept.expectations(SIZES)["test_a.py"].seconds == UNKNOWN_S
        (note,) = kept.notes
    assert "reading it failed (interrupted)" in note


def test_a_history_that_would_keep_a_log_beside_it_is_set_aside(path: Path) -> None:
    make_history(path, "PRAGMA journal_mode = WAL", schema=())
    make_history(path)
    with History.open(path) as kept:
        (note,) = kept.notes
    assert "it is not a duration history); set aside" in note
