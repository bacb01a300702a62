"""--resume: which units keep their outcome, and that the resumed run reports all of them as one run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.runner.collection.collect import Collected
from harness.runner.events import CollectionFinished, RunStarted
from harness.runner.need import Need
from harness.runner.records.recorded_run import RecordedRun
from harness.runner.reruns.resume import keep_passed, with_digests
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult
from tests.support.suite_runs import Done, run, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")
COUNTED = "from pathlib import Path\ndef test_it():\n    with Path({0!r}).open('a') as f: f.write({1!r})\n    {2}\n"


@pytest.mark.full
def test_a_resumed_run_keeps_what_passed_runs_the_rest_and_reports_all(tmp_path: Path) -> None:
    log = tmp_path / "log"
    files = {
        "test_kept.py": COUNTED.format(str(log), "k", "pass"),
        "test_changed.py": COUNTED.format(str(log), "c", "pass"),
        "test_failed.py": COUNTED.format(str(log), "f", "assert Path('mended').exists()"),
        "test_killed.py": COUNTED.format(str(log), "n", "pass"),
    }
    write_suite(tmp_path, files)
    first = run(tmp_path, "run", "--gpus", "none", "--no-check-leaning")
    assert first.code == 1
    assert sorted(log.read_text()) == ["c", "f", "k", "n"]
    first_directory = first.results["test_kept.py"]["directory"]
    end_without(first, "test_killed.py")
    (tmp_path / "mended").touch()
    (tmp_path / "test_changed.py").write_text(files["test_changed.py"] + "# changed\n")
    log.write_text("")
    second = run(tmp_path, "run", "--gpus", "none", "--resume", "latest", "--junit", "junit.xml")
    second.assert_sound()
    assert sorted(log.read_text()) == ["c", "f", "n"]
    assert (second.code, second.outcomes) == (0, dict.fromkeys(files, "passed"))
    assert {path: bool(result["resumed_from"]) for path, result in second.results.items()} == {
        path: path == "test_kept.py" for path in files
    }
    assert 'tests="4"' in (tmp_path / "junit.xml").read_text()
    kept = second.results["test_kept.py"]["directory"]
    assert kept == first_directory, "what it printed is in the run that ran it"
    assert "test_kept.py" in Path(kept, "output.log").read_text()


def end_without(done: Done, path: str) -> None:
    """Make the record of a run that of one which was killed while it ran this unit."""
    record, report = done.record / "events.jsonl", Path(done.results[path]["directory"], "report.jsonl")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    kept = [
        line
        for line in lines
        if line["event"] != "run_finished"
        and not (line["event"] == "unit_finished" and line["result"]["unit"]["path"] == path)
    ]
    record.write_text("".join(f"{json.dumps(line)}\n" for line in kept))
    report.write_text("".join(report.read_text().splitlines(keepends=True)[:-1]))


def test_a_run_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": "def test_a(): pass\n"})
    done = run(tmp_path, "run", "--gpus", "none", "--resume", "nothing")
    assert done.code == 4


def resumed(directory: Path, *arguments: str) -> dict[str, bool]:
    """Whether each unit of a resumed run was kept, by its path."""
    done = run(directory, "run", "--resume", "latest", *arguments)
    done.assert_sound()
    assert done.code == 0, done.stdout
    return {path: bool(result["resumed_from"]) for path, result in done.results.items()}


MANY = """
import pathlib, pytest
@pytest.mark.gpus(1)
@pytest.mark.parametrize("n", range(16))
def test_many(n):
    with open("log", "a") as log: log.write(f"{n}\\n")
    assert n != 7 or pathlib.Path("mended").exists()
"""
PARTS = {f"test_many.py [{number}/4]" for number in range(1, 5)}


@pytest.mark.full
def test_a_file_in_parts_is_kept_if_all_its_parts_passed(tmp_path: Path) -> None:
    write_suite(tmp_path, {"pyproject.toml": "[tool.rlharness]\n", "test_many.py": MANY, "mended": ""})
    assert run(tmp_path, "run", "--gpus", "sim:4").outcomes == dict.fromkeys(PARTS, "passed")
    (tmp_path / "log").write_text("")
    assert resumed(tmp_path, "--gpus", "sim:4", "--junit", "junit.xml") == dict.fromkeys(PARTS, True)
    assert (tmp_path / "log").read_text() == ""
    assert 'tests="16"' in (tmp_path / "junit.xml").read_text()
    assert resumed(tmp_path, "--gpus", "sim:4") == dict.fromkeys(PARTS, True), "kept by a run that kept it"
    assert resumed(tmp_path, "--gpus", "sim:2", "--no-split") == dict.fromkeys(PARTS, True), "whatever the plan is now"


@pytest.mark.full
def test_a_file_of_which_a_part_failed_runs_again_with_all_its_tests(tmp_path: Path) -> None:
    write_suite(tmp_path, {"pyproject.toml": "[tool.rlharness]\n", "test_many.py": MANY})
    first = run(tmp_path, "run", "--gpus", "sim:4")
    assert sorted(first.outcomes.values()) == ["failed", "passed", "passed", "passed"]
    (tmp_path / "log").write_text("")
    (tmp_path / "mended").touch()
    kept = resumed(tmp_path, "--gpus", "sim:4")
    assert not any(kept.values())
    assert sorted(map(int, (tmp_path / "log").read_text().split())) == list(range(16))


@pytest.mark.full
def test_a_file_of_which_a_part_has_no_outcome_runs_again(tmp_path: Path) -> None:
    write_suite(tmp_path, {"pyproject.toml": "[tool.rlharness]\n", "test_many.py": MANY, "mended": ""})
    done = run(tmp_path, "run", "--gpus", "sim:4")
    end_without(done, max(PARTS))
    assert not any(resumed(tmp_path, "--gpus", "sim:4").values())


@pytest.mark.full
def test_a_run_of_some_tests_does_not_speak_for_all(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": "def test_fast(): pass\ndef test_slow(): pass\n"})
    assert run(tmp_path, "run", "--gpus", "none", "--", "-k", "fast").code == 0
    assert resumed(tmp_path, "--gpus", "none", "--", "-k", "fast") == {"test_a.py": True}
    assert resumed(tmp_path, "--gpus", "none") == {"test_a.py": False}
    assert resumed(tmp_path, "--gpus", "none", "--", "-q") == {"test_a.py": True}, "-q selects nothing"
    assert resumed(tmp_path, "--gpus", "none", "test_a.py::test_slow") == {"test_a.py": False}


def unit(path: str, digest: str = "d", **more: Any) -> Unit:
    return Unit(path, Need(), NeedSource.IMPORT, digest=digest, **more)


def kept_of(earlier: Unit, outcome: Outcome, now: Unit) -> Mapping[str, UnitResult]:
    """The units that are kept of a run of one unit."""
    collection = CollectionFinished(0.0, (earlier,), (1.0,), 1.0, 1.0, 1.0)
    started = RunStarted(0.0, "earlier", "/runs/earlier", (), (), (), "cgroup", 2)
    run_then = RecordedRun("run", started, collection, {earlier.path: UnitResult(earlier, outcome)}, (), None)
    found = keep_passed(Collected((now,), Path(), ()), run_then)
    assert len(found.units) + len(found.kept) == 1
    return found.kept


@pytest.mark.parametrize("outcome", Outcome)
def test_outcomes_that_are_kept_are_those_that_are_no_failure(outcome: Outcome) -> None:
    kept = kept_of(unit("a.py"), outcome, unit("a.py"))
    assert bool(kept) is (outcome in (Outcome.PASSED, Outcome.FLAKY, Outcome.NO_TESTS))


def test_a_unit_that_would_run_something_different_or_cannot_be_read_is_not_kept(tmp_path: Path) -> None:
    differing = [
        unit("a.py", "e"),
        unit("b.py"),
        unit("a.py", selection=("a.py::x",)),
    ]
    for now in differing:
        assert kept_of(unit("a.py"), Outcome.PASSED, now) == kept_of(now, Outcome.PASSED, unit("a.py")) == {}
    (unread,) = with_digests(Collected((unit("gone.py", ""),), tmp_path, ())).units
    assert kept_of(unread, Outcome.PASSED, unread) == {}
