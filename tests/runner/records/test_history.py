"""The history of durations: it learns, it survives what is done to its file, and it never fails a run."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.runner.need import Need
from harness.runner.records import history_file
from harness.runner.records.history import (
    ESTIMATE_SPREAD,
    MIN_SPREAD,
    UNKNOWN_S,
    Expectation,
    History,
    estimate_s,
)
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult

SIZES = {"tests/test_a.py": 1000, "tests/test_b.py": 3000, "tests/test_new.py": 2000}


def result(
    path: str = "tests/test_a.py",
    duration_s: float = 10.0,
    outcome: Outcome = Outcome.PASSED,
    *,
    source: NeedSource = NeedSource.IMPORT,
    collected: Need | None = None,
    selection: tuple[str, ...] = (),
) -> UnitResult:
    unit = Unit(path, Need(1), source, selection=selection)
    return UnitResult(unit, outcome, duration_s=duration_s, collected_need=collected)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "history").mkdir()
    return tmp_path / "history" / "history.sqlite"


def expected_s(path: Path) -> dict[str, float]:
    with History.open(path) as kept:
        assert kept.notes == ()
        return {name: found.seconds for name, found in kept.expectations(SIZES).items()}


def record(path: Path, *results: UnitResult) -> None:
    with History.open(path) as kept:
        for one in results:
            kept.record(one, SIZES.get(one.unit.path, 0))
        assert kept.notes == ()


def test_the_median_of_the_last_five_is_expected(path: Path) -> None:
    record(path, *(result(duration_s=seconds) for seconds in (500.0, 500.0, 500.0, 10.0, 99.0, 11.0, 12.0, 13.0)))
    assert expected_s(path)["tests/test_a.py"] == 12.0


@pytest.mark.parametrize("outcome", list(Outcome))
def test_durations_of_units_that_ran_to_the_end_are_expected_and_limits_that_were_hit(
    path: Path, outcome: Outcome
) -> None:
    record(path, result(duration_s=10.0), result(duration_s=600.0, outcome=outcome))
    whole = (Outcome.PASSED, Outcome.FAILED, Outcome.LEANING, Outcome.NO_TESTS)
    ran = {**dict.fromkeys(whole, 305.0), Outcome.TIMED_OUT: 600.0}
    assert expected_s(path)["tests/test_a.py"] == ran.get(outcome, 10.0)


def test_files_that_never_ran_are_estimated_from_those_that_did(path: Path) -> None:
    record(path, result(duration_s=10.0), result("tests/test_b.py", 30.0))
    assert expected_s(path) == {"tests/test_a.py": 10.0, "tests/test_b.py": 30.0, "tests/test_new.py": 20.0}


def test_an_estimate_says_that_it_is_one(path: Path) -> None:
    record(path, *(result(duration_s=seconds) for seconds in (10.0, 10.0, 10.1)), result("tests/test_b.py", 1.0))
    record(path, *(result("tests/test_b.py", seconds) for seconds in (1.0, 20.0, 20.0, 20.0)))
    with History.open(path) as kept:
        found = kept.expectations(SIZES)
    assert found["tests/test_a.py"] == Expectation(10.0, MIN_SPREAD)
    assert found["tests/test_new.py"].spread == ESTIMATE_SPREAD
    assert 1.0 < found["tests/test_b.py"].spread < 2.0


@given(st.integers(0, 10**9), st.lists(st.tuples(st.integers(0, 10**9), st.floats(0.01, 1e5)), max_size=20))
def test_estimates_stay_near_what_is_known(size: int, known: list[tuple[int, float]]) -> None:
    estimate = estimate_s(size, known)
    if not known:
        assert estimate == UNKNOWN_S
    else:
        assert min(s for _, s in known) / 4.0001 <= estimate <= max(s for _, s in known) * 4.0001
        assert estimate_s(size + 1, known) >= estimate


def make_truncated(path: Path) -> None:
    record(path, *(result(f"tests/test_{i}.py" * 20) for i in range(200)))
    os.truncate(path, path.stat().st_size // 2)


def make_text(path: Path) -> None:
    path.write_text("not a database, and long enough to be taken for the header of one\n" * 50)


def make_foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA application_id = 7")
        connection.execute("CREATE TABLE units (something TEXT)")
        connection.commit()


@pytest.mark.parametrize("spoil", [make_truncated, make_text, make_foreign])
def test_a_file_that_is_no_history_is_set_aside(path: Path, spoil: Callable[[Path], None]) -> None:
    for number in (1, 2):
        spoil(path)
        spoilt = path.read_bytes()
        with History.open(path) as kept:
            (note,) = kept.notes
            assert f"set aside as history.sqlite.broken-{number}" in note
            kept.record(result(duration_s=5.0), 1)
            assert len(kept.notes) == 1
        assert path.with_name(f"history.sqlite.broken-{number}").read_bytes() == spoilt
        assert expected_s(path)["tests/test_a.py"] == 5.0
        path.unlink()


def test_a_file_of_a_later_version_is_left_alone(path: Path) -> None:
    record(path, result(duration_s=5.0))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with History.open(path) as kept:
        kept.record(result(duration_s=50.0), 1)
        assert kept.expectations(SIZES)["tests/test_a.py"].seconds == UNKNOWN_S
        (note,) = kept.notes
    assert "later version of rlharness (schema 99)" in note
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["history.sqlite"]


def test_a_lock_that_is_never_released_costs_a_note(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "BUSY_TIMEOUT_S", 0.05)
    with History.open(path) as kept, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        kept.record(result(), 1)
        with History.open(path) as late:
            assert "locked" in late.notes[0]
        (note,) = kept.notes
    assert "locked" in note
    assert os.listdir(path.parent) == ["history.sqlite"], "locked is not broken"


RECORDER = """
import sys
from pathlib import Path
from harness.runner.records.history import History
from harness.runner.units import Need, NeedSource, Outcome, Unit, UnitResult
with History.open(Path(sys.argv[1])) as kept:
    for number in range(40):
        unit = Unit(f"tests/test_{sys.argv[2]}_{number}.py", Need(), NeedSource.IMPORT)
        kept.record(UnitResult(unit, Outcome.PASSED, duration_s=1.0 + number), 1)
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
        assert all(found.spread != ESTIMATE_SPREAD for found in kept.expectations(sizes).values())


def test_a_broken_file_that_another_run_has_replaced_is_not_set_aside(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_text(path)
    good = tmp_path / "good.sqlite"
    record(good, result(duration_s=5.0))
    connect = history_file._connect

    def connect_late(where: Path) -> sqlite3.Connection:
        try:
            return connect(where)
        finally:  # the other run is just ahead of us
            if good.exists():
                os.replace(good, where)

    monkeypatch.setattr(history_file, "_connect", connect_late)
    with History.open(path) as kept:
        assert kept.expectations(SIZES)["tests/test_a.py"].seconds == 5.0
    assert os.listdir(path.parent) == ["history.sqlite"]


def test_sqlite_is_imported_only_where_a_history_is_opened() -> None:
    code = "import sys, harness.runner.records.history; sys.exit('sqlite3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
