"""Results of files and tests in the history: recorded, bounded, migrated, read back."""

import json
import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.render.history import LETTERS, MEANINGS, OTHER, history_lines
from harness.runner.events import TestFinished, TestStarted, UnitFinished
from harness.runner.gpu_memory import GpuMemoryUse, Unmeasured
from harness.runner.need import Need
from harness.runner.records import history
from harness.runner.records.history import History
from harness.runner.records.history_file import SCHEMA, SCHEMA_VERSION
from harness.runner.records.history_keeper import HistoryKeeper
from harness.runner.records.stats import RunState
from harness.runner.records.trends import (
    NUM_RESULTS,
    PastResult,
    Trend,
    parse_results,
    select_trends,
)
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult
from tests.support.cli_commands import type_command

A = "tests/test_a.py"
X, Y = f"{A}::test_x[1-a]", f"{A}::TestY::test_y"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def result(name: str = A, outcome: Outcome = Outcome.PASSED, duration_s: float = 2.0, **fields: object) -> UnitResult:
    unit = Unit(name, Need(), NeedSource.IMPORT, **fields)  # type: ignore[arg-type]
    return UnitResult(unit, outcome, duration_s=duration_s)


def keep(path: Path, run_id: str, *tests: tuple[str, str, float], of: UnitResult | None = None) -> None:
    """Record one run of a file, through its events."""
    with History.open(path) as kept:
        keeper, state = HistoryKeeper(kept, {}, run_id), RunState()
        for nodeid, outcome, seconds in tests:
            keeper.on_event(TestStarted(1.0, A, nodeid, None), state)
            if outcome != "unfinished":
                keeper.on_event(TestFinished(1.0, A, nodeid, outcome, seconds), state)
        keeper.on_event(UnitFinished(2.0, of or result()), state)
        assert kept.notes == ()


def trends(path: Path) -> dict[str, list[tuple[str, str, float]]]:
    with History.open(path) as kept:
        found = {each.name: [(r.run_id, r.outcome, r.duration_s) for r in each.results] for each in kept.trends()}
        assert kept.notes == ()
    return found


def test_results_of_files_and_tests_are_recorded_per_run(path: Path) -> None:
    keep(path, "r1", (X, "passed", 0.5), (Y, "skipped", 0.0))
    keep(path, "r2", (X, "unfinished", 0.0), of=result(outcome=Outcome.CRASHED, duration_s=3.0))
    assert trends(path) == {
        A: [("r1", "passed", 2.0), ("r2", "crashed", 3.0)],
        X: [("r1", "passed", 0.5), ("r2", "unfinished", 0.0)],
        Y: [("r1", "skipped", 0.0)],
    }


def test_only_the_last_results_are_kept(path: Path) -> None:
    for number in range(NUM_RESULTS + 3):
        keep(path, f"r{number}", (X, "passed", float(number)))
    kept = trends(path)
    assert [run_id for run_id, _, _ in kept[X]] == [f"r{number}" for number in range(3, NUM_RESULTS + 3)]
    assert len(kept[A]) == NUM_RESULTS


def test_single_tests_of_a_file_are_recorded_without_the_file(path: Path) -> None:
    keep(path, "r1", (X, "passed", 0.5), of=result(selection=(X,)))
    assert list(trends(path)) == [X]


@pytest.mark.parametrize("outcome", [Outcome.INTERRUPTED, Outcome.NOT_RUN])
def test_a_cancelled_file_records_nothing(path: Path, outcome: Outcome) -> None:
    keep(path, "r1", (X, "passed", 0.5), of=result(outcome=outcome))
    assert trends(path) == {}


def test_the_number_of_names_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_TESTS", 5)
    keep(path, "r1", *((f"{A}::old_{n}", "passed", 0.1) for n in range(4)))
    with History.open(path) as kept:
        tests = {f"{A}::new_{n}": PastResult("r2", "passed", 0.1) for n in range(20)}
        kept.record(result(), 1, run_id="r2", tests=tests)
    assert len(trends(path)) <= 10, "those of one run more than are kept"
    keep(path, "r3", (X, "passed", 0.1))
    names = trends(path)
    assert len(names) <= 5 + 2
    assert X in names and not any("old" in name for name in names), "the oldest go"


def test_names_that_no_file_has_or_that_are_too_long_are_left_out(path: Path) -> None:
    odd = os.fsdecode(b"tests/test_\xff.py::test_x")
    keep(path, "r1", (f"{A}::" + "x" * 1000, "passed", 0.1), (f"{A}::\ud800", "passed", 0.1), (odd, "passed", 0.1))
    assert list(trends(path)) == [A, odd]


def make_version_1(path: Path, *statements: str) -> None:
    """A history as the first version of the schema has it."""
    added = ("TABLE results", "TABLE collected", "user_version")
    tables = [each for each in SCHEMA if not any(text in each for text in added)]
    with closing(sqlite3.connect(path)) as connection:
        for statement in (*tables, "PRAGMA user_version = 1", *statements):
            connection.execute(statement)
        connection.commit()


def user_version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def test_a_history_of_the_first_version_is_migrated_with_its_durations(path: Path) -> None:
    rows = (f"INSERT INTO durations (path, duration_s) VALUES (CAST('{A}' AS BLOB), {s})" for s in (4.0, 5.0, 6.0))
    make_version_1(path, f"INSERT INTO units VALUES (CAST('{A}' AS BLOB), 'passed', 6.0, 10, 0)", *rows)
    assert trends(path) == {A: [("", "", 4.0), ("", "", 5.0), ("", "", 6.0)]}
    assert user_version(path) == SCHEMA_VERSION == 4
    keep(path, "r1", (X, "passed", 0.5))
    assert trends(path)[A] == [("", "", 4.0), ("", "", 5.0), ("", "", 6.0), ("r1", "passed", 2.0)]
    with History.open(path) as kept:
        assert kept.expectations({A: 10})[A].seconds == 4.5


def test_a_history_of_the_third_version_is_migrated_with_its_results(path: Path) -> None:
    keep(path, "r1", (X, "passed", 0.5))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 3")
        connection.commit()
    assert trends(path) == {A: [("r1", "passed", 2.0)], X: [("r1", "passed", 0.5)]}
    assert user_version(path) == SCHEMA_VERSION


def test_measured_memory_of_files_and_their_tests_is_recorded(path: Path) -> None:
    use = GpuMemoryUse(5, None, X, {X: 5, f"{A}::unknown": 9})
    keep(path, "r1", (X, "passed", 0.5), (Y, "passed", 0.5), of=replace(result(), gpu_memory=use))
    keep(path, "r2", (X, "passed", 0.5), of=replace(result(), gpu_memory=GpuMemoryUse(None, Unmeasured.NOT_SEEN)))
    with History.open(path) as kept:
        peaks = {each.name: [past.peak_bytes for past in each.results] for each in kept.trends()}
        assert peaks == {A: [5, None], X: [5, None], Y: [None]}


def test_a_first_version_that_is_not_ours_is_set_aside_and_not_migrated(path: Path) -> None:
    make_version_1(path, "CREATE TABLE results (name BLOB)")
    before = path.read_bytes()
    with History.open(path) as kept:
        (note,) = kept.notes
    assert "its schema is not that of a duration history" in note
    assert path.with_name("history.sqlite.broken-1").read_bytes() == before


@pytest.mark.parametrize(
    "text",
    [
        None,
        5,
        "[]",  # text where SQLite was told to give bytes
        b"{}",
        b"[1]",
        b'[["r1", "great", 1.0]]',
        b'[["r1", "passed", -1.0]]',
        b'[["r1", "passed", NaN]]',
        b'[["r1", "passed"]]',
        b'[["r1", "passed", true]]',
        b'[[5, "passed", 1.0]]',
        b'[["r1", "passed", 1.0, 2.5]]',
        b'[["r1", "passed", 1.0, -1]]',
        b'[["r1", "passed", 1.0, 1e400]]',
        b'[["r1", "passed", 1.0, 10000000000000000000]]',
        b'[["r1", ["passed"], 1.0]]',
        b"[" * 4000,
        b"[]" * 4000,
        b"\xff",
    ],
)
def test_a_row_with_anything_else_has_no_results(text: object) -> None:
    assert parse_results(text) == ()


def test_rows_that_are_no_results_are_passed_over_and_replaced(path: Path) -> None:
    keep(path, "r1", (Y, "passed", 0.5))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE results SET recent = 'many' WHERE name = CAST(? AS BLOB)", (A,))
        connection.execute("INSERT INTO results VALUES (5, 'many', 'passed')")
        connection.execute("INSERT INTO results VALUES (x'6100', 9223372036854775807, printf('%.*c', 900000, '['))")
        connection.commit()
    assert list(trends(path)) == [A, Y]
    keep(path, "r2", (X, "passed", 0.5))
    assert trends(path)[A][-1] == ("r2", "passed", 2.0)


def trend(name: str, *results: tuple[str, float]) -> Trend:
    return Trend(name, tuple(PastResult(f"r{n}", outcome, s) for n, (outcome, s) in enumerate(results)))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (A, [A, X, Y]),
        (f"suite/{A}", [A, X, Y]),
        ("tests", [A, "tests/test_b.py"]),
        ("tests/", [A, "tests/test_b.py"]),
        (".", [A, "tests/test_b.py", "other.py"]),
        (f"{A}::test_x", [X]),
        (X, [X]),
        (f"{A}::TestY", [Y]),
        (f"{A}::Test", []),
        ("tests/test", []),
    ],
)
def test_a_name_selects_files_directories_and_tests(name: str, wanted: list[str]) -> None:
    known = [trend(each) for each in (A, X, Y, "tests/test_b.py", "tests/test_b.py::test_x", "other.py")]
    assert [each.name for each in select_trends(known, [name])] == wanted


def test_the_table_shows_each_run_as_a_letter() -> None:
    known = [
        trend(A, ("", 3.0), ("passed", 1.0), ("failed", 2.0), ("timed_out", 60.0), ("interrupted", 0.1)),
        trend(f"{A}::test_\x1b[2J", ("passed", 0.5), ("skipped", 0.0), ("xfailed", 0.25)),
        trend("tests/test_b.py", ("no_tests", 0.0)),
    ]
    assert (
        "\n".join(history_lines(known))
        == """\
outcomes  runs   median          range  spread  file or test
?.FTo        5    2.0 s      1.0-3.0 s    100%  tests/test_a.py
.sx          3  0.375 s  0.250-0.500 s     67%  tests/test_a.py::test_\\x1b[2J
-            1  0.000 s  0.000-0.000 s          tests/test_b.py

outcomes, oldest first: ? not recorded, . passed, F failed, T timed out, o other, s skipped, x xfailed, - no tests"""
    )
    assert history_lines(known[1:2])[-4:] == [
        "",
        "r0                        passed                0.500 s",
        "r1                        skipped               0.000 s",
        "r2                        xfailed               0.250 s",
    ]


def test_every_letter_has_a_meaning_and_every_outcome_a_letter() -> None:
    assert set(LETTERS.values()) | {OTHER} == set(MEANINGS)
    assert {each.value for each in Outcome} - LETTERS.keys() == {"interrupted", "not_run"}


# --------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "suite"
    (root / "tests").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[tool.rlharness]\n")
    return root


def record_a_run(suite: Path) -> None:
    with History.of_root(suite, os.environ, is_run=True) as kept:
        kept.record(result(), 1, run_id="r1", tests={X: PastResult("r1", "failed", 0.5)})


def test_nothing_known_is_said_and_makes_no_file(suite: Path) -> None:
    done = type_command(suite, "history")
    assert done.code == ExitCode.OK
    assert f"No run of the suite in {suite} is recorded" in done.stdout
    told = json.loads(type_command(suite, "history", "--json").stdout)
    assert (told["trends"], Path(told["file"]).exists()) == ([], False)
    done = type_command(suite, "history", A, "--json")
    assert (done.code, json.loads(done.stdout)["exit_code"]) == (ExitCode.USAGE_ERROR, 4)
    assert "remedy: run the suite with rlharness run" in done.stderr


@pytest.mark.full
def test_files_are_listed_and_a_name_is_found_from_any_directory(suite: Path) -> None:
    record_a_run(suite)
    done = type_command(suite, "history")
    assert (done.code, done.stdout.splitlines()[1].split()[-1]) == (ExitCode.OK, A)
    assert "1 file and 1 test known" in done.stderr
    done = type_command(suite / "tests", "history", "test_a.py", "--json")
    of_file, of_test = json.loads(done.stdout)["trends"]
    assert (of_file["name"], of_file["kind"], of_file["median_s"]) == (A, "file", 2.0)
    assert (of_test["name"], of_test["results"][0]["outcome"]) == (X, "failed")
    done = type_command(suite, "history", X)
    assert done.stdout.splitlines()[-1].split() == ["r1", "failed", "0.500", "s"]
    (suite / A).parent.mkdir(exist_ok=True)
    (suite / A).touch()
    done = type_command(suite.parent, "history", f"{suite.name}/{X}")
    assert done.stdout.splitlines()[-1].split() == ["r1", "failed", "0.500", "s"]


def test_an_unknown_name_is_refused_with_similar_ones(suite: Path) -> None:
    record_a_run(suite)
    done = type_command(suite, "history", "tests/test_aa.py")
    assert done.code == ExitCode.USAGE_ERROR
    assert "no recorded run has tests/test_aa.py" in done.stderr
    assert f"such as {A}" in done.stderr


def test_a_suite_that_keeps_no_history_is_told(suite: Path) -> None:
    (suite / "pyproject.toml").write_text("[tool.rlharness]\nhistory-free = true\n")
    assert "sets history-free" in type_command(suite, "history").stderr
