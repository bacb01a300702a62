"""--isolate worker: processes that take one file after the other, what files share, and what ends with a worker."""

import asyncio
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness.process.child_env import ATTEMPT_MARKER
from harness.process.supervisor import process_tree
from harness.process.supervisor.deadlines import Deadlines
from harness.process.supervisor_client import ProcessSpec, Supervisors
from harness.runner.sessions import workers
from harness.runner.sessions.workers import Workers
from tests.support.suite_runs import Done, bearing, run, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")
WORKER = ("run", "--no-split", "--no-check-leaning", "--grace", "1", "--json", "--isolate", "worker")
CONFTEST = """
import os, pytest
HERE = os.path.dirname(os.path.abspath(__file__))
def note(name, text):
    with open(os.path.join(HERE, name), "a") as file: file.write(f"{text}\\n")
@pytest.fixture(scope="session")
def server(): note("made", os.getpid()); yield os.getpid(); note("ended", os.getpid())
@pytest.fixture(scope="module")
def of_module(request): yield; note("modules_ended", request.node.name)
"""
FILE = """
import os
def test_shares_the_session(server, of_module): assert server == os.getpid()
def test_prints(of_module): print("printed by {name}"); assert {name!r} != "c"
"""
CRASHES = """
import os, signal, time, pytest
def test_before(server): pass
def test_crashes(): os.kill(os.getpid(), signal.SIGSEGV)
def test_between(): pass
@pytest.mark.timeout(1)
def test_hangs():
    signal.signal(signal.SIGALRM, signal.SIG_IGN); time.sleep(60)
def test_after(server): pass
"""


def units_of(done: Done) -> dict[str, dict[str, Any]]:
    """The units of a run by their paths."""
    return {unit["path"]: unit for unit in json.loads(done.stdout)["units"]}


def lines(done: Done, name: str) -> list[str]:
    """What the suite has noted in a file."""
    return (done.directory / name).read_text().split()


def shared_suite(directory: Path, **more: str) -> Path:
    """Four files that use a session-scoped fixture, of which one fails, and more files."""
    files = {f"test_{name}.py": FILE.format(name=name) for name in "abcd"}
    return write_suite(directory / "suite", {"conftest.py": CONFTEST, **files, **more})


@pytest.mark.full
def test_files_of_one_worker_share_its_session(tmp_path: Path) -> None:
    done = run(shared_suite(tmp_path), *WORKER, "--gpus", "none", "--cpu-units", "1")
    units = units_of(done)
    assert {path: unit["outcome"] for path, unit in units.items()} == {
        **{f"test_{name}.py": "passed" for name in "abd"},
        "test_c.py": "failed",
    }
    assert len(lines(done, "made")) == 1 and lines(done, "made") == lines(done, "ended")
    assert sorted(lines(done, "modules_ended")) == [f"test_{name}.py" for name in "abcd"]
    output = Path(units["test_c.py"]["directory"], "output.log").read_text()
    assert "printed by c" in output and "1 failed, 1 passed" in output and "test_a" not in output


@pytest.mark.full
def test_each_cpu_slot_has_a_worker(tmp_path: Path) -> None:
    slow = FILE.format(name="e") + "def test_sleeps():\n    import time; time.sleep(1)\n"
    more = {"test_e.py": slow, "test_f.py": slow}
    done = run(shared_suite(tmp_path, **more), *WORKER, "--gpus", "none", "--cpu-units", "2")
    assert len(set(lines(done, "made"))) == len(lines(done, "made")) == 2
    assert sorted(lines(done, "made")) == sorted(lines(done, "ended"))
    assert done.of("run_finished")[0]["isolation"] == [], "the MASTER_PORT of each slot is no change of a file"
    assert bearing(done) == []


@pytest.mark.full
def test_a_crash_or_timeout_ends_the_worker_and_the_rest_runs_in_another(tmp_path: Path) -> None:
    done = run(shared_suite(tmp_path, **{"test_0.py": CRASHES}), *WORKER, "--gpus", "none", "--cpu-units", "1")
    units = units_of(done)
    assert units["test_0.py"]["outcome"] == "crashed"
    assert units["test_0.py"]["tests"] == {"passed": 3, "unfinished": 2}
    assert [unit["outcome"] for path, unit in sorted(units.items())[1:]] == ["passed", "passed", "failed", "passed"]
    pids = lines(done, "made")
    assert len(set(pids)) >= 2
    assert lines(done, "ended") == pids[-1:]  # nobody can end the fixtures of a process that crashed
    assert not [pid for pid in pids if process_tree.read_process(int(pid))]


@pytest.mark.full
def test_what_a_file_changes_is_charged_to_it(tmp_path: Path) -> None:
    changes = (
        "import os, subprocess\n"
        "def test_changes():\n"
        "    os.environ['CHANGED'] = '1'; os.chdir('/'); subprocess.Popen(['sleep', '3918'])\n"
    )
    stays = "import os\ndef test_cwd(): assert os.getcwd() != '/'\n"
    files = {"test_0.py": changes, "test_1.py": stays}
    done = run(write_suite(tmp_path / "suite", files), *WORKER, "--gpus", "none", "--cpu-units", "1")
    assert done.outcomes == {"test_0.py": "passed", "test_1.py": "passed"}
    found = {note["code"]: note["detail"] for note in done.of("run_finished")[0]["isolation"]}
    assert {note["path"] for note in done.of("run_finished")[0]["isolation"]} == {"test_0.py"}
    assert list(found) == ["changed_environment", "changed_cwd", "left_process"]
    assert (found["changed_environment"], found["changed_cwd"]) == ("CHANGED", "/")
    assert "sleep 3918" in found["left_process"]
    assert "test_0.py changed environment variables" in " ".join(json.loads(done.stdout)["notes"])
    assert not [each for each in process_tree.all_processes() if "3918" in process_tree.command_line(each.pid)]


@pytest.mark.full
def test_a_thread_that_keeps_a_worker_from_exiting_is_charged_to_its_file(tmp_path: Path) -> None:
    text = (
        "import threading, time\ndef test_{0}(): threading.Thread(target=time.sleep, args=(3,), daemon={0}).start()\n"
    )
    files = {f"test_{each}.py": text.format(each) for each in ("True", "False")}
    done = run(write_suite(tmp_path / "suite", files), *WORKER, "--gpus", "none", "--cpu-units", "1")
    (note,) = done.of("run_finished")[0]["isolation"]
    assert (note["code"], note["path"]) == ("left_thread", "test_False.py") and "sleep" in note["detail"]


@pytest.mark.full
def test_files_of_several_directories_find_their_own_conftest_module(tmp_path: Path) -> None:
    """A file below runs first, so that the module `conftest` is not that of the directory of the files after it."""
    conftest = 'WHERE = {name!r}\ndef example():\n    """\n    >>> WHERE\n    {name!r}\n    """\n'
    imports = "import conftest\ndef test_where(): assert conftest.WHERE == {name!r}\n"
    files = {
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "--doctest-modules"\n',
        "a/conftest.py": conftest.format(name="a"),
        "a/test_a.py": imports.format(name="a"),
        "conftest.py": conftest.format(name="top"),
        "test_z.py": imports.format(name="top"),
    }
    done = run(write_suite(tmp_path / "suite", files), *WORKER, "--gpus", "none", "--cpu-units", "1")
    assert done.outcomes == dict.fromkeys((name for name in files if name.endswith(".py")), "passed"), done.stdout


@pytest.mark.full
def test_workers_keep_their_gpus_and_end_for_another_lease(tmp_path: Path) -> None:
    one = "import os, pytest\npytestmark = pytest.mark.gpus({num})\n" + (
        "def test_gpus(server):\n"
        "    gpus = os.environ['CUDA_VISIBLE_DEVICES']; assert len(gpus.split(',')) == {num}\n"
        "    import conftest\n    conftest.note('gpus', f'{{os.getpid()}}={{gpus}}')\n"
    )
    files = {f"test_{number}.py": one.format(num=1 + number % 2) for number in range(6)}
    suite = write_suite(tmp_path / "suite", {"conftest.py": CONFTEST, **files})
    done = run(suite, *WORKER, "--gpus", "sim:2")
    assert set(done.outcomes.values()) == {"passed"} and len(done.outcomes) == 6
    seen = dict(line.split("=") for line in lines(done, "gpus"))
    assert len(seen) == len(lines(done, "made")) < 6  # each worker has one set of GPUs, and takes several files
    assert {len(gpus.split(",")) for gpus in seen.values()} == {1, 2}


@pytest.mark.full
def test_conftests_of_directories_hold_for_all_their_files(tmp_path: Path) -> None:
    """Files of a directory and of one below it take turns in one worker."""
    conftest = "import pytest\n@pytest.fixture\ndef {name}(): return {name!r}\n"
    uses = "def test_uses({name}): assert {name} == {name!r}\n"
    package = "import pytest\n@pytest.fixture(scope='package')\ndef of_package(): yield 1\n"
    files = {
        "above/conftest.py": conftest.format(name="above"),
        "above/below/conftest.py": conftest.format(name="below"),
        "above/below/test_1.py": uses.format(name="below"),
        "above/test_2.py": uses.format(name="above"),
        "above/below/test_3.py": uses.format(name="above") + uses.replace("uses", "too").format(name="below"),
        "above/test_4.py": uses.format(name="above"),
        "package/__init__.py": "",
        "package/conftest.py": package,
        "package/test_5.py": "def test_uses(of_package): pass\n",
        "package/test_6.py": "def test_uses(of_package): pass\n",
    }
    done = run(write_suite(tmp_path / "suite", files), *WORKER, "--gpus", "none", "--cpu-units", "1")
    assert len(done.outcomes) == 6 and set(done.outcomes.values()) == {"passed"}


@pytest.mark.full
def test_collection_errors_and_empty_files_have_their_outcomes(tmp_path: Path) -> None:
    files = {
        "test_broken.py": "raise RuntimeError('broken')\n",
        "test_empty.py": "VALUE = 1\n",
        "test_exits.py": "import pytest\ndef test_exit(): pytest.exit('enough')\n",
        "test_closes.py": "import os\ndef test_closes(): os.closerange(3, 256)\n",
        "test_fine.py": "def test_fine(): pass\n",
    }
    done = run(write_suite(tmp_path / "suite", files), *WORKER, "--gpus", "none", "--cpu-units", "1")
    assert set(done.outcomes) == set(files)
    assert {path: outcome for path, outcome in done.outcomes.items() if path != "test_closes.py"} == {
        "test_broken.py": "collect_error",
        "test_empty.py": "no_tests",
        "test_exits.py": "failed",
        "test_fine.py": "passed",
    }


@pytest.mark.full
def test_a_worker_without_a_warm_session_works_too(tmp_path: Path) -> None:
    starts = "import threading, time\nthreading.Thread(target=time.sleep, args=(30,), daemon=True).start()\n"
    suite = shared_suite(tmp_path)
    (suite / "conftest.py").write_text(CONFTEST + starts)
    done = run(suite, *WORKER, "--gpus", "none", "--cpu-units", "1")
    assert sorted(done.outcomes.values()) == ["failed", "passed", "passed", "passed"]
    assert len(lines(done, "made")) == 1


@pytest.mark.full
def test_a_fixture_that_fails_at_the_end_of_a_worker_is_reported(tmp_path: Path) -> None:
    conftest = "import pytest\n@pytest.fixture(scope='session')\ndef server(): yield; raise ValueError('at the end')\n"
    suite = write_suite(tmp_path / "suite", {"conftest.py": conftest, "test_a.py": "def test_a(server): pass\n"})
    done = run(suite, *WORKER, "--gpus", "none", "--junit", "j.xml")
    assert (done.code, done.outcomes) == (1, {"test_a.py": "passed"})
    (worker,) = json.loads(done.stdout)["failed_workers"]
    assert worker["reason"] == "ValueError: at the end" and "conftest.py" in worker["text"]
    assert "ValueError: at the end" in Path(worker["log"]).read_text()
    assert "workers that failed after their last file (1)" in done.stderr and worker["log"] in done.stderr
    (error,) = ElementTree.parse(suite / "j.xml").getroot().iter("error")
    assert (error.get("message"), error.get("type")) == ("ValueError: at the end", "worker")
    page = Path(done.of("run_started")[0]["directory"], "run.html").read_text()
    assert "failed after its last file: ValueError: at the end" in page


ENDS_BADLY = {
    "hook": ("def pytest_sessionfinish(): raise ValueError('at the end')\n", "ValueError: at the end"),
    "exit": (
        "@pytest.fixture(scope='session', autouse=True)\ndef server(): yield; os._exit(3)\n",
        "its process exited with 3 after its last file",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.full) if kind == "exit" else kind for kind in ENDS_BADLY]
)
def test_a_worker_that_ends_badly_makes_the_run_fail(tmp_path: Path, kind: str) -> None:
    source, reason = ENDS_BADLY[kind]
    files = {"conftest.py": "import os, pytest\n" + source, "test_a.py": "def test_a(): pass\n"}
    done = run(write_suite(tmp_path / "suite", files), *WORKER, "--gpus", "none")
    (worker,) = done.of("run_finished")[0]["failed_workers"]
    assert (done.code, done.outcomes, worker["reason"]) == (1, {"test_a.py": "passed"}, reason)


def test_the_supervisor_holds_each_file_of_a_worker_to_its_limits() -> None:
    deadlines = Deadlines(0.0, float("inf"), 10.0)
    assert deadlines.expired(11.0) == "collect_timeout"
    deadlines.observe({"k": "idle"}, 1.0)
    assert deadlines.next_s() == float("inf")
    deadlines.observe({"k": "file", "timeout_s": 50.0, "startup_timeout_s": 5.0}, 100.0)
    assert deadlines.next_s() == 105.0
    deadlines.observe({"k": "collected"}, 101.0)
    assert deadlines.next_s() == 150.0
    deadlines.observe({"k": "idle"}, 102.0)
    assert deadlines.next_s() == float("inf")


@pytest.mark.full
def test_a_sick_gpu_is_quarantined_although_its_worker_lives(tmp_path: Path) -> None:
    sick = (
        "import os, pytest\n@pytest.mark.gpus(1)\ndef test_it(): assert os.environ['CUDA_VISIBLE_DEVICES'] != 'SIM-0'\n"
    )
    suite = write_suite(tmp_path / "suite", {f"test_{number}.py": sick for number in range(20)})
    done = run(suite, *WORKER, "--gpus", "sim:2")
    done.assert_sound()
    (quarantine,) = done.of("gpu_quarantined")
    assert (quarantine["gpu_id"], "suspected" in quarantine["reason"]) == ("SIM-0", True)
    assert list(done.outcomes.values()).count("failed") < 10


@pytest.mark.full
def test_a_conftest_waits_for_the_files_of_its_directory(tmp_path: Path) -> None:
    """Both conftest files are loaded first, since the command names files of both directories."""
    files = {f"tests/{name}/conftest.py": f"import pytest\n@pytest.fixture\ndef f{name}(): return 1\n" for name in "ab"}
    files |= {f"tests/{name}/test_{name}.py": f"def test_{name}(f{name}): pass\n" for name in "ab"}
    write_suite(tmp_path, files)
    done = run(
        tmp_path, "run", "--gpus=none", "--isolate=worker", "--cpu-units=1", "tests/b/test_b.py", "tests/a/test_a.py"
    )
    assert done.outcomes == {"tests/a/test_a.py": "passed", "tests/b/test_b.py": "passed"}, done.stdout


def test_a_worker_that_does_not_end_after_its_last_file_is_ended_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "CLOSE_S", 0.5)
    spec = ProcessSpec(
        argv=(sys.executable, "-c", "import time; time.sleep(600)"),
        cwd=str(tmp_path),
        env={ATTEMPT_MARKER: "own"},
        directory=str(tmp_path),
        marker="own",
        timeout_s=60.0,
        startup_timeout_s=60.0,
        grace_s=0.2,
    )

    async def closed(attempts: Supervisors) -> Workers:
        pool, worker = Workers(attempts, "run", tmp_path, tmp_path, ()), workers._Worker("w0", spec, frozenset())
        worker.ended = asyncio.create_task(attempts.run(spec))
        await pool._close(worker)
        assert worker.ended.done()
        return pool

    with closing(Supervisors("subreaper", "run")) as attempts:
        (failure,) = asyncio.run(closed(attempts)).failures
    assert (failure.name, failure.reason) == ("w0", "it did not end within 0.5 s of its last file")
