"""--last-failed and --failed-first: what of the latest run is selected, and whole runs that select it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.runner import events
from harness.runner.collection.collect import Collected
from harness.runner.need import Need
from harness.runner.reruns.earlier_runs import LastFailed, read_last_failed, select_last_failed
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult
from tests.support.suite_runs import QUICK, run, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")
RECORDS = {"collected": {"need": Need().to_json(), "nodeids": ["a.py::x", "a.py::y", "a.py::z"]}}


def end(name: str, outcome: str) -> dict[str, object]:
    return {"k": "end", "id": f"a.py::{name}", "outcome": outcome, "duration_s": 0.1, "reason": "", "text": ""}


def recorded(root: Path, result: UnitResult | None, report: list[dict[str, object]], name: str = "1") -> Path:
    """A run with one file and its report; its directory."""
    directory = root / ".rlharness" / "runs" / name
    (directory / "units" / "0000").mkdir(parents=True)
    hello = [{"k": "hello", "version": 1, "pid": 1}, {"k": "collected", **RECORDS["collected"]}]
    lines = [json.dumps(record) + "\n" for record in [*hello, *report]]
    (directory / "units" / "0000" / "report.jsonl").write_text("".join(lines))
    unit = Unit("a.py", Need(), NeedSource.IMPORT)
    told: list[events.Event] = [
        events.RunStarted(0.0, name, str(directory), (), (), (), "cgroup", 1),
        events.CollectionFinished(0.0, (unit,), (1.0,), 1.0, 1.0, 1.0),
    ]
    if result is not None:
        told.append(events.UnitFinished(1.0, replace(result, directory=str(directory / "units" / "0000"))))
    (directory / "events.jsonl").write_text("".join(events.to_json_line(event) + "\n" for event in told))
    return directory


def ended(outcome: Outcome, *selection: str) -> UnitResult:
    return UnitResult(Unit("a.py", Need(), NeedSource.IMPORT, selection=selection), outcome)


START_Y: dict[str, object] = {"k": "start", "id": "a.py::y", "timeout_s": None}
FINISH: dict[str, object] = {"k": "finish", "exit": 1}


@pytest.mark.parametrize(
    ("result", "report", "tests"),
    [
        (ended(Outcome.FAILED), [end("x", "failed"), end("y", "passed"), end("z", "error"), FINISH], ("x", "z")),
        (ended(Outcome.FAILED), [end("x", "passed"), end("y", "failed"), FINISH], ("y", "z")),
        (ended(Outcome.TIMED_OUT), [end("x", "passed"), START_Y], ("y", "z")),
        (ended(Outcome.CRASHED), [end("x", "passed"), START_Y], ("y", "z")),
        (ended(Outcome.CRASHED), [end("x", "passed"), end("y", "passed"), end("z", "passed")], ()),
        (ended(Outcome.CRASHED, "a.py::x"), [], ("x",)),
        (ended(Outcome.INTERRUPTED), [START_Y], ("x", "y", "z")),
        (ended(Outcome.NOT_RUN), [], ()),
        (None, [], ()),
    ],
)
def test_what_runs_again_of_a_file(
    tmp_path: Path, result: UnitResult | None, report: list[dict[str, object]], tests: tuple[str, ...]
) -> None:
    recorded(tmp_path, result, report)
    last = read_last_failed(tmp_path)
    assert last == LastFailed("1", {"a.py": tuple(f"a.py::{test}" for test in tests)})


@pytest.mark.parametrize("outcome", [Outcome.PASSED, Outcome.NO_TESTS])
def test_nothing_runs_again_of_a_file_that_did_not_fail(tmp_path: Path, outcome: Outcome) -> None:
    recorded(tmp_path, ended(outcome), [])
    assert read_last_failed(tmp_path) == LastFailed("1", {})


def collection(root: Path, **selections: tuple[str, ...]) -> Collected:
    """Files of these names, each with a function x and y, and these node ids asked for."""
    for name in selections:
        (root / f"{name}.py").write_text("def test_x(): pass\nasync def test_y(): pass\n")
    units = tuple(
        Unit(f"{name}.py", Need(), NeedSource.IMPORT, selection=tuple(f"{name}.py::{test}" for test in tests))
        for name, tests in selections.items()
    )
    return Collected(units, root, ())


@pytest.mark.parametrize(
    ("asked", "failed", "selection"),
    [
        ((), ("test_x",), ("test_x",)),
        ((), ("test_x[1]", "T::test_y"), ("test_x[1]", "T::test_y")),
        ((), (), ()),
        ((), ("test_x", "test_renamed"), ()),
        (("test_x",), ("test_x[1]", "test_x[2]", "test_y"), ("test_x[1]", "test_x[2]")),
        (("test_x", "test_y"), (), ("test_x", "test_y")),
    ],
)
def test_a_file_is_narrowed_to_what_failed_of_what_was_asked(
    tmp_path: Path, asked: tuple[str, ...], failed: tuple[str, ...], selection: tuple[str, ...]
) -> None:
    last = LastFailed("r", {"a.py": tuple(f"a.py::{test}" for test in failed)})
    found = select_last_failed(collection(tmp_path, a=asked, b=()), last)
    assert [unit.path for unit in found.units] == ["a.py"]
    assert found.units[0].selection == tuple(f"a.py::{test}" for test in selection)


@pytest.mark.parametrize("last", [None, LastFailed("r", {}), LastFailed("r", {"gone.py": ()})])
def test_everything_runs_with_a_note_where_nothing_that_failed_was_collected(
    tmp_path: Path, last: LastFailed | None
) -> None:
    collected = collection(tmp_path, a=(), b=("test_x",))
    found = select_last_failed(collected, last)
    assert found.units == collected.units
    assert found.notes[0].endswith("everything runs")


@pytest.mark.full
def test_whole_runs_repeat_what_failed_until_nothing_does(tmp_path: Path) -> None:
    flaky = (
        "import os\ndef test_fine(): open('ran', 'a').write('f')\ndef test_bad(): assert 'repaired' in os.listdir()\n"
    )
    write_suite(tmp_path, {"test_a.py": QUICK, "test_b.py": flaky, "test_c.py": "import absent\n"})
    words = ("--gpus", "none", "--cpu-units", "1")
    assert run(tmp_path, "run", *words, "--lf", "--no-check-leaning").outcomes.keys() == {
        "test_a.py",
        "test_b.py",
        "test_c.py",
    }
    plan = json.loads(run(tmp_path, "plan", *words, "--last-failed", "--json").stdout)
    assert {*plan["order"], *(each["path"] for each in plan["never"])} == {"test_b.py", "test_c.py"}
    (tmp_path / "test_c.py").write_text(QUICK)
    again = run(tmp_path, "run", *words, "--last-failed", "--no-check-leaning")
    assert again.outcomes == {"test_b.py": "failed", "test_c.py": "passed"}
    assert again.results["test_b.py"]["unit"]["selection"] == ["test_b.py::test_bad"]
    assert "--last-failed: 1 test and 1 whole file of run " in again.stdout
    assert (tmp_path / "ran").read_text() == "f"
    (tmp_path / "repaired").touch()
    first = run(tmp_path, "run", *words, "--failed-first")
    assert next(event["path"] for event in first.of("attempt_started")) == "test_b.py"
    assert len(first.outcomes) == 3
    last = run(tmp_path, "run", *words, "--last-failed")
    assert (last.code, len(last.outcomes)) == (ExitCode.OK, 3)
    assert ", so everything runs" in last.stdout


def test_a_failure_stays_until_its_test_has_run_again(tmp_path: Path) -> None:
    a, b = (Unit(f"{name}.py", Need(), NeedSource.IMPORT) for name in "ab")
    runs = tmp_path / ".rlharness" / "runs"

    def ran(name: str, *results: UnitResult) -> None:
        (runs / name).mkdir(parents=True)
        units = tuple(replace(result.unit) for result in results)
        told: list[events.Event] = [
            events.RunStarted(0.0, name, str(runs / name), (), (), (), "cgroup", 1),
            events.CollectionFinished(0.0, units, (0.0,) * len(units), 0.0, 0.0, 0.0),
            *(events.UnitFinished(1.0, result) for result in results),
        ]
        (runs / name / "events.jsonl").write_text("".join(events.to_json_line(each) + "\n" for each in told))

    ran("1", UnitResult(a, Outcome.CRASHED), UnitResult(b, Outcome.PASSED))
    ran("2", UnitResult(b, Outcome.PASSED))
    assert read_last_failed(tmp_path) == LastFailed("1", {"a.py": ()})
    ran("3", UnitResult(b, Outcome.FAILED))
    assert read_last_failed(tmp_path) == LastFailed("3", {"b.py": (), "a.py": ()})
    ran("4", UnitResult(a, Outcome.PASSED))
    assert read_last_failed(tmp_path) == LastFailed("3", {"b.py": ()})


@pytest.mark.full
def test_a_run_of_one_test_keeps_the_failures_of_the_others(tmp_path: Path) -> None:
    recorded(
        tmp_path,
        UnitResult(Unit("a.py", Need(), NeedSource.IMPORT), Outcome.FAILED),
        [end("x", "failed"), end("y", "failed"), end("z", "passed")],
        "1",
    )
    selected = Unit("a.py", Need(), NeedSource.IMPORT, selection=("a.py::x",))
    directory = recorded(tmp_path, UnitResult(selected, Outcome.PASSED), [], "2")
    report = [
        {"k": "hello", "version": 1, "pid": 1},
        RECORDS["collected"] | {"k": "collected", "nodeids": ["a.py::x"]},
        end("x", "passed"),
    ]
    (directory / "units" / "0000" / "report.jsonl").write_text("".join(json.dumps(each) + "\n" for each in report))
    last = read_last_failed(tmp_path)
    assert last is not None and last.tests == {"a.py": ("a.py::y",)}


def test_the_latest_run_with_units_counts(tmp_path: Path) -> None:
    assert read_last_failed(tmp_path) is None
    recorded(tmp_path, ended(Outcome.FAILED), [], "1")
    recorded(tmp_path, ended(Outcome.PASSED), [], "2")
    (tmp_path / ".rlharness" / "runs" / "3").mkdir()  # interrupted before it wrote anything
    record = tmp_path / ".rlharness" / "runs" / "4" / "events.jsonl"
    record.parent.mkdir()
    started = events.RunStarted(0.0, "4", str(record.parent), (), (), (), "cgroup", 1)
    record.write_text(events.to_json_line(started) + "\n")  # the run that asks
    (tmp_path / ".rlharness" / "runs" / "latest").symlink_to("1")
    last = read_last_failed(tmp_path)
    assert last is not None
    assert last.run_id == "2"
