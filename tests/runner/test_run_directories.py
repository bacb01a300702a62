"""Where runs find things and leave things: working and root directories, temporary ones, disks that take nothing."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.process.run_directory import MARK
from tests.support.suite_runs import HARNESS, QUICK, Done, ended, environment, run, started, write_suite

RUN = ("run", "--gpus", "none")
FAILS = "def test_fails(tmp_path):\n    (tmp_path / 'kept.txt').write_text('look at me')\n    assert False\n"
SELECTED = """
import pytest
@pytest.mark.parametrize("path", ["a/b", "a//b/../c::d", "./x"])
def test_paths(path): pass
class TestInner:
    def test_one(self): pass
    def test_two(self): assert False, "was not asked for"
"""


@pytest.mark.full
@pytest.mark.parametrize("where", ["", "tests", "tests/deep", "elsewhere"])
def test_node_ids_are_understood_from_anywhere(tmp_path: Path, where: str) -> None:
    write_suite(tmp_path, {"pytest.ini": "[pytest]\n", "tests/deep/test_a.py": SELECTED, "tests/test_b.py": QUICK})
    cwd = tmp_path / where
    cwd.mkdir(exist_ok=True)
    file = os.path.relpath(tmp_path / "tests/deep/test_a.py", cwd)
    wanted = ["test_paths[a//b/../c::d]", "test_paths[./x]", "TestInner::test_one"]
    done = run(cwd, *RUN, *(f"{file}::{name}" for name in wanted))
    done.assert_sound()
    assert done.code == ExitCode.OK, done.stdout
    path = "tests/deep/test_a.py"
    assert done.outcomes == {path: "passed"}
    assert [e["nodeid"].partition("::")[2] for e in done.of("test_finished")] == wanted
    assert done.results[path]["unit"]["selection"] == [f"{path}::{name}" for name in wanted]


@pytest.mark.full
def test_the_record_lies_beside_the_configuration(tmp_path: Path) -> None:
    configuration = "[tool.rlharness]\nhistory-free = true\n[tool.pytest.ini_options]\n"
    write_suite(tmp_path, {"pyproject.toml": configuration, "tests/test_a.py": QUICK})
    done = run(tmp_path, *RUN, cwd=tmp_path / "tests", env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    done.assert_sound()
    assert done.outcomes == {"tests/test_a.py": "passed"}
    home = tmp_path / ".rlharness"
    assert sorted(path.name for path in home.iterdir()) == [".gitignore", "runs"]
    assert not (tmp_path / "cache").exists(), "history-free: no history"
    assert sorted(path.name for path in done.record.iterdir()) == [
        MARK,
        "events.jsonl",
        "run.html",
        "session.log",
        "units",
    ]
    assert sorted(path.name for path in (done.record / "units" / "0000").iterdir()) == ["output.log", "report.jsonl"]


@pytest.mark.full
def test_temporary_directories_of_failed_files_are_kept_and_it_is_said_where(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": QUICK, "test_b.py": FAILS})
    done = run(tmp_path, *RUN, "--keep-tmp")
    done.assert_sound()
    (note,) = done.events[-1]["notes"]
    head, _, where = note.partition(": ")
    assert head == "kept the temporary directory of test_b.py"
    kept = Path(where)
    try:
        assert (kept / "pytest" / "test_fails0" / "kept.txt").read_text() == "look at me"
        assert [path.name for path in kept.parent.iterdir()] == [kept.name], "nothing else is left there"
    finally:
        shutil.rmtree(kept.parent)
    assert f"notes (1)\n  {note}\n" in done.stdout


@pytest.mark.full
def test_without_a_failure_nothing_is_kept(tmp_path: Path) -> None:
    tells = "import os\ndef test_tells(): open('tmpdir', 'w').write(os.environ['TMPDIR'])\n"
    write_suite(tmp_path / "suite", {"test_a.py": tells})
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as scratch:  # short: longer ones are passed over
        done = run(tmp_path / "suite", *RUN, "--keep-tmp", env={"TMPDIR": scratch})
        assert (tmp_path / "suite" / "tmpdir").read_text().startswith(scratch)
        assert os.listdir(scratch) == []
    assert done.code == ExitCode.OK
    assert done.events[-1]["notes"] == []


@pytest.mark.full
def test_two_runs_at_once_in_one_directory_keep_apart(tmp_path: Path) -> None:
    meet = """
import os, time
def test_meet():
    open(f"here_{os.environ['MASTER_PORT']}", "w")
    until = time.monotonic() + 30
    while len([name for name in os.listdir() if name.startswith("here_")]) < 2:
        assert time.monotonic() < until, "alone"
"""
    write_suite(tmp_path, {"test_a.py": meet})
    reports = [("--events", f"events_{number}.jsonl") for number in range(2)]
    with started(tmp_path, *RUN, *reports[0]) as first, started(tmp_path, *RUN, *reports[1]) as second:
        codes = [ended(process, tmp_path).code for process in (first, second)]
    assert codes == [ExitCode.OK] * 2
    runs = [path for path in (tmp_path / ".rlharness" / "runs").iterdir() if not path.is_symlink()]
    assert len(runs) == 2
    for directory in runs:
        assert '"event": "run_finished"' in (directory / "events.jsonl").read_text().splitlines()[-1]
    expected = run(tmp_path, "plan", "--gpus", "none", "--json").stdout
    assert '"makespan_s": 30.0' not in expected, "both have taught the history"


# ----------------------------------------------------------------------------- disks that take nothing, as root may


def run_mounted(directory: Path, options: str, *arguments: str) -> Done:
    """A run in a working directory that is mounted for it alone, the suite copied into it first."""
    steps = [
        'suite="$1"; shift',
        f'mount -t tmpfs -o "{options}" none "$suite.mnt"',
        'cp -r "$suite/." "$suite.mnt"; cd "$suite.mnt"',
        '[ ! -e read-only ] || mount -o remount,ro "$suite.mnt"',
        '"$@"; code=$?',
        'cp -r "$suite.mnt/." "$suite" 2>/dev/null; exit $code',
    ]
    Path(f"{directory}.mnt").mkdir()
    command = ["unshare", "--mount", "sh", "-c", "\n".join(steps), "sh", str(directory), *HARNESS, *arguments]
    env = environment()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=100)
    return Done(directory, done.returncode, done.stdout, done.stderr)


@pytest.fixture
def may_mount() -> None:
    """Skips where this process may not mount."""
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")


@pytest.mark.usefixtures("may_mount")
def test_a_read_only_root_can_be_planned_and_a_run_is_refused_with_what_to_do(tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "suite", {"test_a.py": QUICK, "read-only": ""})
    done = run_mounted(suite, "size=1m", *RUN)
    assert done.code == ExitCode.USAGE_ERROR
    assert done.stderr.startswith(
        f"error: cannot create a run directory in {suite}.mnt/.rlharness/runs: Read-only file"
    )
    assert "  remedy: make it writable, or name another directory with --results-dir" in done.stderr
    shutil.rmtree(f"{suite}.mnt")
    planned = run_mounted(suite, "size=1m", "plan", "--gpus", "none")
    assert (planned.code, planned.stderr, "makespan" in planned.stdout) == (ExitCode.OK, "", True)


FILLS = """
def test_fills_the_disk():
    with open("filler", "wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 512)
"""


@pytest.mark.full
@pytest.mark.usefixtures("may_mount")
def test_a_full_disk_ends_with_an_outcome_for_every_file(tmp_path: Path) -> None:
    files = {"test_a.py": FILLS, **{f"test_{n}.py": QUICK for n in range(3)}}
    files["needs.toml"] = '"test_a.py" = { exclusive = true }\n'  # so that it is the first
    suite = write_suite(tmp_path / "suite", files)
    done = run_mounted(suite, "size=300k", *RUN, "--cpu-units", "1", "--json", "--needs", "needs.toml")
    assert done.code == ExitCode.TESTS_FAILED, done.stderr
    assert "the record of events in " in done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    outcomes = {unit["path"]: unit["outcome"] for unit in json.loads(done.stdout)["units"]}
    assert len(outcomes) == 4
    assert "passed" not in outcomes.values(), "nothing can be known of what could write nothing"
    assert outcomes.keys() == {"test_a.py", "test_0.py", "test_1.py", "test_2.py"}
