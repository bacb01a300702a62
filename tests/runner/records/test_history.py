"""The history: it learns from runs, it survives what is done to its file, and it never fails a run."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.exit_codes import ExitCode
from harness.render.history import LETTERS, MEANINGS, OTHER, history_lines
from harness.runner.events import AttemptFailed, TestFinished, TestStarted, UnitFinished
from harness.runner.need import Need
from harness.runner.records import history
from harness.runner.records.history import (
    NUM_RESULTS,
    UNKNOWN_S,
    History,
    HistoryKeeper,
    PastResult,
    Trend,
    estimate_s,
    history_path,
    select_trends,
)
from harness.runner.records.stats import RunState
from harness.runner.units import Attempt, GpuMemoryUse, NeedSource, Outcome, Part, Unit, UnitResult, Unmeasured
from tests.support.cli_commands import type_command
from tests.support.suite_runs import HARNESS, QUICK, environment, write_suite

A, B, NEW = "tests/test_a.py", "tests/test_b.py", "tests/test_new.py"
X, Y = f"{A}::test_x[1-a]", f"{A}::TestY::test_y"
SIZES = {A: 1000, B: 3000, NEW: 2000}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def result(name: str = A, outcome: Outcome = Outcome.PASSED, duration_s: float = 2.0, **fields: object) -> UnitResult:
    unit = Unit(name, Need(1), NeedSource.IMPORT, **fields)  # type: ignore[arg-type]
    return UnitResult(unit, outcome, duration_s=duration_s)


def keep(path: Path, run_id: str, *tests: tuple[str, str, float], of: UnitResult | None = None) -> None:
    """Record one run of a file, through its events."""
    of = of or result()
    with History.open(path) as kept:
        keeper, state = HistoryKeeper(kept, run_id), RunState()
        for nodeid, outcome, seconds in tests:
            keeper.on_event(TestStarted(1.0, of.unit.path, nodeid, None), state)
            if outcome != "unfinished":
                keeper.on_event(TestFinished(1.0, of.unit.path, nodeid, outcome, seconds), state)
        keeper.on_event(UnitFinished(2.0, of), state)
        assert kept.notes == ()


def trends(path: Path) -> dict[str, list[tuple[str, str, float]]]:
    with History.open(path) as kept:
        found = {each.name: [(r.run_id, r.outcome, r.duration_s) for r in each.results] for each in kept.trends()}
        assert kept.notes == ()
    return found


def expected_s(path: Path) -> dict[str, float]:
    with History.open(path) as kept:
        return {name: found.seconds for name, found in kept.expectations(SIZES).items()}


# ---- expectations


def test_the_median_of_the_last_five_is_expected(path: Path) -> None:
    for seconds in (500.0, 500.0, 500.0, 10.0, 99.0, 11.0, 12.0, 13.0):
        keep(path, "r", of=result(duration_s=seconds))
    assert expected_s(path)[A] == 12.0


@pytest.mark.parametrize("outcome", list(Outcome))
def test_durations_of_units_that_ran_to_the_end_are_expected_and_limits_that_were_hit(
    path: Path, outcome: Outcome
) -> None:
    keep(path, "r1", of=result(duration_s=10.0))
    keep(path, "r2", of=result(duration_s=600.0, outcome=outcome))
    whole = (Outcome.PASSED, Outcome.FAILED, Outcome.LEANING, Outcome.NO_TESTS)
    ran = {**dict.fromkeys(whole, 305.0), Outcome.TIMED_OUT: 600.0}
    assert expected_s(path)[A] == ran.get(outcome, 10.0)


def test_files_that_never_ran_are_estimated_from_those_that_did(path: Path) -> None:
    keep(path, "r", of=result(duration_s=10.0))
    keep(path, "r", of=result(B, duration_s=30.0))
    assert expected_s(path) == {A: 10.0, B: 30.0, NEW: 20.0}
    with History.open(path) as kept:
        assert [path for path, found in kept.expectations(SIZES).items() if found.is_estimate] == [NEW]


@given(st.integers(0, 10**9), st.lists(st.tuples(st.integers(0, 10**9), st.floats(0.01, 1e5)), max_size=20))
def test_estimates_stay_near_what_is_known(size: int, known: list[tuple[int, float]]) -> None:
    estimate = estimate_s(size, known)
    if not known:
        assert estimate == UNKNOWN_S
    else:
        assert min(s for _, s in known) / 4.0001 <= estimate <= max(s for _, s in known) * 4.0001
        assert estimate_s(size + 1, known) >= estimate


# ---- results


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


def test_of_a_file_that_runs_again_the_first_attempt_is_recorded(path: Path) -> None:
    with History.open(path) as kept:
        keeper, state = HistoryKeeper(kept, "r1"), RunState()
        failed = result(outcome=Outcome.FAILED, duration_s=3.0)
        keeper.on_event(AttemptFailed(1.0, A, 1, 2, failed, ()), state)
        keeper.on_event(AttemptFailed(1.0, A, 2, 2, result(outcome=Outcome.CRASHED), ()), state)
        attempts = (Attempt(Outcome.FAILED, "", 3.0, ""),)
        keeper.on_event(UnitFinished(2.0, replace(result(outcome=Outcome.FLAKY), attempts=attempts)), state)
        keeper.on_event(UnitFinished(2.0, replace(result(B), resumed_from="r0")), state)
    assert trends(path) == {A: [("r1", "failed", 3.0)]}


def test_a_file_in_parts_has_one_result_once_all_have_ended(path: Path) -> None:
    """Each part has 1 s of pytest and imports, which a whole file has once."""
    parts = [
        result(f"{A} [{n}/2]", outcome, 1.0 + n, file=A, part=Part(n, 2))
        for n, outcome in ((1, Outcome.PASSED), (2, Outcome.FAILED))
    ]
    with History.open(path) as kept:
        keeper, state = HistoryKeeper(kept, "r1"), RunState()
        for number, (part, nodeid) in enumerate(zip(parts, (X, Y), strict=True), 1):
            assert A not in trends(path)
            keeper.on_event(TestFinished(1.0, part.unit.path, nodeid, "passed", float(number)), state)
            keeper.on_event(UnitFinished(2.0, part), state)
    assert trends(path)[A] == [("r1", "failed", 4.0)]
    assert {X, Y} < trends(path).keys()


def test_the_number_of_names_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_NAMES", 5)
    keep(path, "r1", *((f"{A}::old_{n}", "passed", 0.1) for n in range(4)))
    keep(path, "r2", *((f"{A}::new_{n}", "passed", 0.1) for n in range(20)))
    assert len(trends(path)) <= 10, "those of one run more than are kept"
    keep(path, "r3", (X, "passed", 0.1))
    names = trends(path)
    assert len(names) <= 5 + 2
    assert X in names and not any("old" in name for name in names), "the oldest go"


def test_measured_memory_of_files_and_their_tests_is_recorded(path: Path) -> None:
    use = GpuMemoryUse(5, None, X, {X: 5, f"{A}::unknown": 9})
    keep(path, "r1", (X, "passed", 0.5), (Y, "passed", 0.5), of=replace(result(), gpu_memory=use))
    keep(path, "r2", (X, "passed", 0.5), of=replace(result(), gpu_memory=GpuMemoryUse(None, Unmeasured.NOT_SEEN)))
    with History.open(path) as kept:
        peaks = {each.name: [past.peak_bytes for past in each.results] for each in kept.trends()}
        assert peaks == {A: [5, None], X: [5, None], Y: [None]}


# ---- the file


def test_a_file_that_is_no_history_is_set_aside(path: Path) -> None:
    path.write_text("not a database, and long enough to be taken for the header of one\n" * 50)
    found = path.lstat()
    with History.open(path) as kept:
        kept.expectations(SIZES)
        (note,) = kept.notes
    assert "is unusable" in note and "set aside as history.sqlite.broken" in note
    assert path.with_name("history.sqlite.broken").lstat().st_ino == found.st_ino
    keep(path, "r1", of=result(duration_s=5.0))
    assert expected_s(path)[A] == 5.0


def test_a_row_that_is_damaged_costs_a_note(path: Path) -> None:
    keep(path, "r1", (Y, "passed", 0.5))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE results SET recent = '[['")
        connection.commit()
    with History.open(path) as kept:
        assert kept.trends() == []
        assert "reading it failed" in kept.notes[0]


def test_a_lock_that_is_never_released_costs_a_note(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "BUSY_TIMEOUT_S", 0.05)
    with History.open(path) as kept, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        kept.record({A: PastResult("r", "passed", 1.0)})
        with History.open(path) as late:
            assert "locked" in late.notes[0]
        (note,) = kept.notes
    assert "locked" in note
    assert os.listdir(path.parent) == ["history.sqlite"], "locked is not broken"


RECORDER = """
import sys
from pathlib import Path
from harness.runner.records.history import History, PastResult
with History.open(Path(sys.argv[1])) as kept:
    for number in range(40):
        kept.record({f"tests/test_{sys.argv[2]}_{number}.py": PastResult("r", "passed", 1.0 + number)})
    print(*kept.notes)
"""


def test_runs_side_by_side_share_it(path: Path) -> None:
    """They also race to make the schema."""
    command = [sys.executable, "-c", RECORDER, str(path)]
    runs = [
        subprocess.Popen([*command, str(run)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for run in range(4)
    ]
    assert [run.communicate(timeout=60)[0].strip() for run in runs] == [""] * 4
    sizes = {f"tests/test_{run}_{number}.py": 1 for run in range(4) for number in range(40)}
    with History.open(path) as kept:
        assert not any(found.is_estimate for found in kept.expectations(sizes).values())


def test_sqlite_is_imported_only_where_a_history_is_opened() -> None:
    code = "import sys, harness.runner.records.history; sys.exit('sqlite3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- whole runs


def rlharness(suite: Path, command: str) -> "subprocess.CompletedProcess[str]":
    """The command in the suite; TimeoutExpired where it hangs."""
    words = [*HARNESS, command, "--gpus", "none"]
    env = environment(XDG_CACHE_HOME=str(suite.parent / "cache"))
    return subprocess.run(
        words, cwd=suite, env=env, capture_output=True, text=True, timeout=60.0, check=False, errors="replace"
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return write_suite(tmp_path / "checkout", {"test_a.py": QUICK, "pytest.ini": "[pytest]\n"})


def cached(suite: Path) -> Path:
    """Where the history of the suite is kept."""
    return history_path(suite, {"XDG_CACHE_HOME": str(suite.parent / "cache")})


@pytest.mark.parametrize("command", ["plan", pytest.param("run", marks=pytest.mark.full)])
def test_a_history_that_a_checkout_brings_along_is_neither_read_nor_changed(checkout: Path, command: str) -> None:
    brought = checkout / ".rlharness" / "history.sqlite"
    brought.parent.mkdir()
    brought.write_text("mine")
    done = rlharness(checkout, command)
    assert done.returncode == ExitCode.OK
    assert "duration history" not in done.stdout + done.stderr
    assert brought.read_text() == "mine"


@pytest.mark.full
def test_a_run_learns_into_my_cache_and_not_into_the_checkout(checkout: Path) -> None:
    assert rlharness(checkout, "run").returncode == ExitCode.OK
    assert sorted(path.name for path in (checkout / ".rlharness").iterdir()) == [".gitignore", "runs"]
    found = trends(cached(checkout))
    ((run_id, outcome, _),) = found.pop("test_a.py")
    assert [(run_id, outcome) for ((run_id, outcome, _),) in found.values()] == [(run_id, outcome)]
    assert (outcome, (checkout / ".rlharness" / "runs" / run_id).is_dir()) == ("passed", True)


@pytest.mark.full
def test_a_cache_that_cannot_be_used_costs_a_note_and_no_run(checkout: Path) -> None:
    (checkout.parent / "cache").write_text("a file")
    done = rlharness(checkout, "run")
    assert done.returncode == ExitCode.OK
    assert "duration history: the cache directory" in done.stdout
    assert "set XDG_CACHE_HOME to a directory of your own" in done.stdout.replace("\n", " ")


# ---- the command


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
        trend(A, ("passed", 3.0), ("passed", 1.0), ("failed", 2.0), ("timed_out", 60.0), ("interrupted", 0.1)),
        trend(f"{A}::test_\x1b[2J", ("passed", 0.5), ("skipped", 0.0), ("xfailed", 0.25)),
        trend("tests/test_b.py", ("no_tests", 0.0)),
    ]
    assert (
        "\n".join(history_lines(known))
        == """\
outcomes  runs   median          range  spread  file or test
..FTo        5    2.0 s      1.0-3.0 s    100%  tests/test_a.py
.sx          3  0.375 s  0.250-0.500 s     67%  tests/test_a.py::test_\\x1b[2J
-            1  0.000 s  0.000-0.000 s          tests/test_b.py

outcomes, oldest first: . passed, F failed, T timed out, o other, s skipped, x xfailed, - no tests"""
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


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "suite"
    (root / "tests").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[tool.rlharness]\n")
    return root


def record_a_run(suite: Path) -> None:
    with History.of_root(suite, os.environ, is_run=True) as kept:
        kept.record({A: PastResult("r1", "passed", 2.0), X: PastResult("r1", "failed", 0.5)})


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
    assert (of_file["name"], of_file["median_s"]) == (A, 2.0)
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
