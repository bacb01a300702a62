"""Whole runs: what a mixed suite ends as, what is recorded and reported of it, and every exit code."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from tests.support.suite_runs import QUICK, Done, run, write_suite

LOOK = """
import json, os, pytest
{mark}
def test_look(tmp_path):
    names = ("CUDA_VISIBLE_DEVICES", "TMPDIR", "MASTER_PORT", "RLHARNESS_ATTEMPT", "RAY_ADDRESS", "RAY_TMPDIR", "MINE")
    seen = {{name: os.environ.get(name) for name in names}} | {{"tmp_path": str(tmp_path), "cwd": os.getcwd()}}
    open("seen_{name}.json", "w").write(json.dumps(seen))
    waits = {{"seen_a.json", "seen_b.json"}}
    while {meets} and not waits <= set(os.listdir()):
        pass
"""
GPU = "pytestmark = pytest.mark.gpus({})"
MIXED = {
    "test_a.py": LOOK.format(mark=GPU.format(1), name="a", meets=True),
    "test_b.py": LOOK.format(mark=GPU.format(1), name="b", meets=True),
    "test_cpu.py": LOOK.format(mark="", name="cpu", meets=False),
    "test_fail.py": """
import os
def test_good(): pass
def test_bad():
    logs = os.path.join(os.environ["TMPDIR"], "ray", "session_1", "logs")
    os.makedirs(logs)
    open(os.path.join(logs, "raylet.out"), "w").write("fell over")
    assert 1 == 2, "the reason"
""",
    "test_skipped.py": "import pytest\n@pytest.mark.skip(reason='needs the moon')\ndef test_no(): pass\n",
    "test_secret_need.py": "import pytest\nglobals()['pytest' + 'mark'] = getattr(pytest.mark, 'gp' + 'us')(1)\n"
    + QUICK,
    "test_wide.py": "import pytest\n@pytest.mark.gpus(9)\n" + QUICK,
    "test_import_error.py": "import no_such_module\n" + QUICK,
    "test_no_tests.py": "def helper(): pass\n",
    "test_crash.py": "import os, signal\ndef test_die(): os.kill(os.getpid(), signal.SIGSEGV)\n",
    "test_exits.py": "import os\ndef test_leave(): os._exit(0)\n",
}
OUTCOMES = {
    "test_a.py": "passed",
    "test_b.py": "passed",
    "test_cpu.py": "passed",
    "test_fail.py": "failed",
    "test_skipped.py": "passed",
    "test_secret_need.py": "passed",
    "test_wide.py": "not_run",
    "test_import_error.py": "collect_error",
    "test_no_tests.py": "no_tests",
    "test_crash.py": "crashed",
    "test_exits.py": "exited_early",
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """One run of files that end in every way, with every report."""
    directory = write_suite(tmp_path_factory.mktemp("mixed"), MIXED)
    reports = ("--json", "--junit", "out/junit.xml", "--events", "out/events.jsonl")
    env = {"RAY_ADDRESS": "auto", "RAY_TMPDIR": "/x", "MINE": "kept"}
    return run(directory, "run", "--gpus", "sim:4", "--cpu-units", "3", *reports, env=env)


def seen(done: Done, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((done.directory / f"seen_{name}.json").read_text())
    return content


@pytest.mark.full
def test_every_unit_ends_as_it_must_and_the_record_is_whole(mixed: Done) -> None:
    assert mixed.outcomes == OUTCOMES
    mixed.assert_sound()
    assert mixed.code == ExitCode.TESTS_FAILED
    assert (mixed.directory / "out" / "events.jsonl").read_bytes() == (mixed.record / "events.jsonl").read_bytes()


def of_unit(done: Done, path: str) -> list[str]:
    """Names of the events about one unit, in order."""
    return [e["event"] for e in done.events if path in (e.get("path"), e.get("result", {}).get("unit", {}).get("path"))]


def test_what_a_unit_did_is_recorded_before_its_end(mixed: Done) -> None:
    tests = ("test_started", "test_finished")
    assert of_unit(mixed, "test_fail.py") == ["attempt_started", *tests, *tests, "unit_finished"]
    assert of_unit(mixed, "test_a.py") == ["attempt_started", *tests, "lease_returned", "unit_finished"]
    assert of_unit(mixed, "test_crash.py") == ["attempt_started", "test_started", "unit_finished"]
    assert of_unit(mixed, "test_wide.py") == ["unit_finished"]
    finished = [(e["nodeid"], e["outcome"]) for e in mixed.of("test_finished") if e["path"] == "test_fail.py"]
    assert finished == [("test_fail.py::test_good", "passed"), ("test_fail.py::test_bad", "failed")]


def test_reasons_are_told(mixed: Done) -> None:
    reasons = {path: result["reason"] for path, result in mixed.results.items()}
    assert "no_such_module" in reasons["test_import_error.py"]
    assert reasons["test_crash.py"] == "SIGSEGV while test_crash.py::test_die ran"
    assert reasons["test_exits.py"].startswith("the process exited with 0 before pytest had finished")
    assert "9 GPUs" in reasons["test_wide.py"]
    assert "4 x sim" in reasons["test_wide.py"]
    assert mixed.results["test_wide.py"]["for_want_of_gpus"] is True


def test_a_child_sees_its_own_cards_port_and_places(mixed: Done) -> None:
    a, b, cpu = (seen(mixed, name) for name in ("a", "b", "cpu"))
    assert {a["CUDA_VISIBLE_DEVICES"], b["CUDA_VISIBLE_DEVICES"]} <= {f"SIM-{number}" for number in range(4)}
    assert a["CUDA_VISIBLE_DEVICES"] != b["CUDA_VISIBLE_DEVICES"]
    assert abs(int(a["MASTER_PORT"]) - int(b["MASTER_PORT"])) >= 64, "they ran at the same time"
    assert len({a["TMPDIR"], b["TMPDIR"], cpu["TMPDIR"]}) == 3
    assert cpu["CUDA_VISIBLE_DEVICES"] == ""
    for one in (a, b, cpu):
        assert (one["RAY_ADDRESS"], one["RAY_TMPDIR"], one["MINE"]) == (None, None, "kept")
        assert one["tmp_path"].startswith(f"{one['TMPDIR']}/pytest")
        assert one["cwd"] == str(mixed.directory)
        assert not Path(one["TMPDIR"]).exists()
        assert not Path(one["TMPDIR"]).parent.exists(), "the run's scratch root"
        assert one["RLHARNESS_ATTEMPT"].startswith(mixed.events[0]["run_id"])


def test_rays_logs_of_the_failed_unit_are_kept(mixed: Done) -> None:
    (log,) = mixed.record.glob("units/*/ray_logs/session_1/logs/raylet.out")
    assert log.read_text() == "fell over"
    assert log.resolve().is_relative_to(mixed.results["test_fail.py"]["directory"])


def test_json_stands_alone_on_stdout_and_says_what_happened(mixed: Done) -> None:
    told = json.loads(mixed.stdout)
    assert {unit["path"]: unit["outcome"] for unit in told["units"]} == OUTCOMES
    assert told["exit_code"] == mixed.code
    assert (told["error"], told["notes"]) == ("", [])
    assert told["num_units"] == sum(told["outcomes"].values()) == len(OUTCOMES)


def test_the_summary_shows_each_failure_once_and_lists_what_needs_attention(mixed: Done) -> None:
    text = mixed.stderr
    assert text.count("E       AssertionError: the reason") == 1
    assert "every test skipped (1)\n  test_skipped.py: needs the moon\n" in text
    assert mixed.results["test_secret_need.py"]["gpu_ids"], "a need that no text shows is known before it runs"
    assert "not run for lack of GPUs (1)\n  test_wide.py: " in text
    assert "no tests (1)\n  test_no_tests.py\n" in text
    assert text.splitlines()[-1].startswith("11 units: 5 passed, 1 failed, 1 no tests, ")
    assert "lower bound" in text.splitlines()[-1]


def test_junit_has_every_unit_and_every_test(mixed: Done) -> None:
    suites = {suite.get("name"): suite for suite in ET.parse(mixed.directory / "out" / "junit.xml").getroot()}
    assert set(suites) == set(OUTCOMES)
    failed = suites["test_fail.py"]
    assert [(case.get("name"), [child.tag for child in case][:1]) for case in failed] == [
        ("test_good", []),
        ("test_bad", ["failure"]),
    ]
    assert suites["test_crash.py"].get("errors") == "1"
    assert suites["test_wide.py"].get("skipped") == "1"


@pytest.mark.full
def test_a_need_that_was_misread_is_imported_the_next_time(mixed: Done) -> None:
    again = run(mixed.directory, "run", "--gpus", "sim:4", "test_secret_need.py")
    again.assert_sound()
    assert again.code == ExitCode.OK
    (unit,) = again.of("collection_finished")[0]["units"]
    assert (unit["source"], unit["need"]["gpus"]) == ("import", 1)
    assert again.results["test_secret_need.py"]["gpu_ids"] == ["SIM-0"]
    assert "needs that differ from the plan" not in again.stdout


SOME_WANT_NINE = """
import pytest
@pytest.mark.gpus(9)
def test_nine(): pass
class TestRing:
    @pytest.mark.gpus({})
    @pytest.mark.parametrize("size", [1, 2])
    def test_wide(self, size): pass
@pytest.mark.gpus(1)
def test_one(): pass
def test_none(): pass
"""


@pytest.mark.full
def test_tests_that_keep_their_file_from_running_are_named(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": SOME_WANT_NINE.format("int('9')"), "test_b.py": NEEDS_FOUR.replace("4", "9")})
    lines = {
        "  test_a.py: needs 9 GPUs; this run has 8 x sim 80 GB; only test_nine and TestRing::test_wide ask for that: "
        "move them to a file of their own, so that the other tests of this file can run",
        "  test_b.py: needs 9 GPUs; this run has 8 x sim 80 GB",
    }
    for command in "run", "plan":
        done = run(tmp_path, command, "--no-split", "--gpus", "sim:8")
        assert lines <= set(done.stdout.splitlines())


# ------------------------------------------------------------------------------------------------------- exit codes


NEEDS_FOUR = "import pytest\npytestmark = pytest.mark.gpus(4)\n" + QUICK
REFUSES = "def pytest_sessionstart(session):\n    import os\n    os.kill(os.getpid(), 9)\n"
CODES: list[tuple[dict[str, str], tuple[str, ...], ExitCode]] = [
    ({"test_a.py": QUICK}, (), ExitCode.OK),
    ({"test_a.py": QUICK, "conftest.py": REFUSES}, (), ExitCode.TESTS_FAILED),
    ({"test_a.py": QUICK}, ("test_nowhere.py",), ExitCode.USAGE_ERROR),
    ({"readme.txt": "no test here"}, (), ExitCode.NOTHING_COLLECTED),
    ({"test_a.py": QUICK, "test_b.py": NEEDS_FOUR}, (), ExitCode.UNITS_NOT_RUN),
    ({"test_a.py": QUICK, "test_b.py": "def helper(): pass\n"}, (), ExitCode.OK),
    ({"test_a.py": QUICK, "test_b.py": "import nothing_there\n"}, (), ExitCode.TESTS_FAILED),
    ({"test_a.py": QUICK}, ("--", "--no-such-option"), ExitCode.USAGE_ERROR),
    ({"test_a.py": QUICK, "test_b.py": "import gone\n"}, ("test_a.py::test_gone", "."), ExitCode.TESTS_FAILED),
    ({"test_b.py": "import nothing_there\n"}, ("test_b.py::test_gone",), ExitCode.TESTS_FAILED),
    ({"test_a.py": QUICK, "test_b.py": NEEDS_FOUR}, ("--allow-missing-gpus",), ExitCode.OK),
]


@pytest.mark.full
@pytest.mark.parametrize(("files", "arguments", "code"), CODES)
def test_exit_codes(tmp_path: Path, files: dict[str, str], arguments: tuple[str, ...], code: ExitCode) -> None:
    done = run(write_suite(tmp_path, files), "run", "--gpus", "sim:2", *arguments)
    assert done.code == code, done.stderr
    done.assert_sound()


@pytest.mark.full
def test_node_ids_that_name_no_test_are_told_as_pytest_tells_them(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": QUICK, "test_b.py": QUICK})
    gone = ("test_a.py::test_gone", "test_a.py::TestGone", "test_b.py::test_quick")
    done = run(tmp_path, "run", "--gpus", "none", *gone)
    assert done.outcomes == {"test_a.py": "usage_error", "test_b.py": "passed"}
    told = "; ".join(f"not found: {tmp_path / each}" for each in gone[:2])
    assert done.results["test_a.py"]["reason"] == told
    assert told in done.stdout.replace("\n", " ")
    assert "exit code 4: pytest refused its arguments" in done.stdout
    plan = run(tmp_path, "plan", "--gpus", "none", *gone)
    assert (plan.code, plan.stderr) == (done.code, "rlharness: exit code 4: pytest refused its arguments\n")
    assert f"\n  test_a.py: {told}\n" in plan.stdout


@pytest.mark.full
@pytest.mark.parametrize(("test", "code"), [("pass", ExitCode.USAGE_ERROR), ("assert False", ExitCode.TESTS_FAILED)])
def test_reports_that_were_asked_for_and_are_not_there_do_not_end_with_0(
    tmp_path: Path, test: str, code: ExitCode
) -> None:
    """Tests that failed weigh more."""
    write_suite(tmp_path, {"test_a.py": f"import shutil\ndef test_it():\n    shutil.rmtree('out')\n    {test}\n"})
    done = run(tmp_path, "run", "--gpus", "none", "--json", "--junit", "out/junit.xml")
    told, finished = json.loads(done.stdout), done.events[-1]
    assert done.code == told["exit_code"] == finished["exit_code"] == code, done.stderr
    assert told["notes"] == finished["notes"]
    assert any("out/junit.xml is incomplete: [Errno 2]" in note for note in told["notes"])
    assert (code is ExitCode.USAGE_ERROR) == ("exit code 4: a requested file could not be written" in done.stderr)


@pytest.mark.full
@pytest.mark.parametrize("option", ["--junit", "--events"])
def test_a_report_that_cannot_be_made_is_refused_before_any_test_runs(tmp_path: Path, option: str) -> None:
    write_suite(tmp_path, {"test_a.py": "def test_it(): open('ran', 'w').close()\n", "file": ""})
    for place in (".", "file/report"):
        done = run(tmp_path, "run", "--gpus", "none", option, place)
        assert done.code == ExitCode.USAGE_ERROR, done.stderr
        assert done.stderr.startswith("error: ") and " cannot be written to " in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.full
def test_workers_that_are_not_started_are_told(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    write_suite(tmp_path, {"test_a.py": QUICK})
    done = run(tmp_path, "run", "--gpus", "none", "--json", "--", "-p", "xdist", "-n", "2")
    assert done.code == ExitCode.OK, done.stderr
    (note,) = json.loads(done.stdout)["notes"]
    assert note.startswith("-n 2 of pytest-xdist is set to 0: ")


@pytest.mark.full
def test_a_suite_that_cannot_be_collected_is_a_failure_with_its_reason_in_every_report(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": QUICK, "conftest.py": REFUSES})
    done = run(tmp_path, "run", "--gpus", "none", "--json", "--junit", "junit.xml")
    done.assert_sound()
    assert done.code == ExitCode.TESTS_FAILED
    assert "error: the test files cannot be listed: pytest died of SIGKILL" in done.stderr
    assert "Traceback" not in done.stderr
    assert "the test files cannot be listed" in json.loads(done.stdout)["error"]
    assert "the test files cannot be listed" in done.events[-1]["error"]
    assert run(tmp_path, "plan", "--gpus", "none").stderr.startswith("error: the test files cannot be listed: ")
    (suite,) = ET.parse(tmp_path / "junit.xml").getroot()
    assert suite.get("errors") == "1"


# ------------------------------------------------------------------------------------------------------------- plan


COMPUTED = "import pytest\nimport no_such_module\npytestmark = pytest.mark.gpus(no_such_module.NUMBER)\n" + QUICK


@pytest.mark.full
def test_plan_shows_the_schedule_and_leaves_nothing_behind(tmp_path: Path) -> None:
    files = {"test_a.py": QUICK, "test_b.py": NEEDS_FOUR, "test_c.py": COMPUTED}
    done = run(write_suite(tmp_path, files), "plan", "--gpus", "sim:2")
    assert (done.code, done.stderr) == (ExitCode.TESTS_FAILED, "")
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["0.0", "s", "30.0", "s", "cpu", "test_a.py"]
    assert any(line.startswith("lower bound") for line in lines)
    assert any(line.startswith("durations    estimated for ") for line in lines)
    assert "  test_b.py: needs 4 GPUs; this run has 2 x sim 80 GB" in lines
    assert any(line.startswith("  test_c.py: cannot be collected: ") for line in lines)
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == set(files)


@pytest.mark.full
def test_plan_ends_as_a_run_does_where_there_are_no_tests(tmp_path: Path) -> None:
    for options, shown in ((), "nothing to run\n"), (("--json",), '"units": []'):
        done = run(write_suite(tmp_path, {"readme.txt": "no test here"}), "plan", "--gpus", "none", *options)
        assert (done.code, done.stderr) == (
            ExitCode.NOTHING_COLLECTED,
            "rlharness: exit code 5: no tests were collected\n",
        )
        assert shown in done.stdout


@pytest.mark.full
def test_plan_ends_as_a_run_does_where_files_cannot_be_collected(tmp_path: Path) -> None:
    computed = "import pytest\nimport no_such_module\npytestmark = pytest.mark.gpus(no_such_module.NUMBER)\n" + QUICK
    write_suite(tmp_path, {"test_a.py": QUICK, "test_b.py": NEEDS_FOUR, "test_c.py": computed})
    done = run(tmp_path, "plan", "--gpus", "sim:2", "--json")
    told = json.loads(done.stdout)
    assert done.code == ExitCode.TESTS_FAILED, "one file cannot be collected"
    assert [unit["path"] for unit in told["units"]] == ["test_a.py"]
    assert [entry["path"] for entry in told["never"]] == ["test_b.py", "test_c.py"]
    assert "No module named 'no_such_module'" in told["never"][1]["reason"]
    done = run(write_suite(tmp_path / "none", {"test_a.py": QUICK, "conftest.py": REFUSES}), "plan", "--gpus", "none")
    assert (done.code, done.stdout) == (ExitCode.TESTS_FAILED, "")
    assert done.stderr.startswith("error: the test files cannot be listed: ")
