"""--isolate test: a process for each test, its outcome whatever happens to it, and what pytest's plugins see."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.process.supervisor import process_tree
from harness.process.supervisor.deadlines import FORK_SLACK_S, TEST_SLACK_S, Deadlines
from tests.support.suite_runs import Done, run, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")
WHOLE = ("run", "--gpus", "none", "--no-split", "--grace", "1", "--json", "--isolate")
SHARING = """
import os, random
STATE = []
def test_a(): STATE.append(1); os.environ["LEFT"] = "1"; os.chdir("/")
def test_b(): assert not STATE and "LEFT" not in os.environ and os.getcwd() != "/"
"""
MISBEHAVING = """
import os, signal, subprocess, sys, time, pytest
def test_before(): pass
def test_crashes(): print("printed before"); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGSEGV)
def test_exits(): os._exit(0)
def test_exits_with_code(): os._exit(3)
@pytest.mark.timeout(1)
def test_hangs():
    for signum in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    time.sleep(60)
def test_leaves():
    subprocess.Popen(["sleep", "3917"], start_new_session=True)
def test_fails(): assert 0
def test_after(): pass
"""
LIKE_PYTEST = """
import random, warnings, pytest
random.seed(5)
DRAWN = random.random()
def test_passes(record_property): record_property("key", object())
@pytest.mark.skip(reason="of no use")
def test_skips(): pass
@pytest.mark.xfail
def test_xfails(): assert 0
@pytest.mark.xfail(strict=False)
def test_xpasses(): pass
@pytest.fixture
def broken(): yield; raise ValueError("in teardown")
def test_has_an_error(broken): pass
def test_warns(): warnings.warn("careful")
@pytest.mark.parametrize("value", [1, 2])
def test_parameters(value): assert value == 1
class TestClass:
    def test_method(self): pass
def test_has_subtests(subtests):
    for number in range(3):
        with subtests.test(number=number): assert number != 1
def test_seeded(): assert random.random() != DRAWN
"""


def unit_of(done: Done) -> dict[str, Any]:
    """The one unit of a run."""
    (unit,) = json.loads(done.stdout)["units"]
    return dict(unit)


@pytest.mark.full
def test_no_test_sees_what_another_has_done(tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "suite", {"test_a.py": SHARING})
    assert unit_of(run(suite, *WHOLE, "test"))["outcome"] == "passed"
    assert unit_of(run(suite, *WHOLE, "file"))["outcome"] == "failed"


@pytest.fixture(scope="module")
def misbehaved(tmp_path_factory: pytest.TempPathFactory) -> Done:
    directory = tmp_path_factory.mktemp("misbehaved")
    return run(
        write_suite(directory / "suite", {"test_a.py": MISBEHAVING}),
        *WHOLE,
        "test",
        env={"XDG_CACHE_HOME": str(directory)},
    )


@pytest.mark.full
def test_each_test_has_one_outcome_whatever_others_do(misbehaved: Done) -> None:
    unit = unit_of(misbehaved)
    assert misbehaved.code == 1
    assert unit["outcome"] == "crashed"
    assert unit["tests"] == {"passed": 3, "failed": 1, "unfinished": 4}
    assert unit["attempts"] == []
    named = {failure["id"].rpartition("::")[2]: failure["outcome"] for failure in unit["failures"]}
    lost = ("test_crashes", "test_exits", "test_exits_with_code", "test_hangs")
    assert named == {**dict.fromkeys(lost, "unfinished"), "test_fails": "failed"}
    assert "SIGSEGV in test_a.py::test_crashes, and 3 more" in unit["reason"]


def test_what_a_crashed_test_printed_is_kept_and_the_stacks_of_one_that_hung(misbehaved: Done) -> None:
    directory = Path(unit_of(misbehaved)["directory"])
    output = (directory / "output.log").read_text()
    assert re.search(r"_ test_crashes _.*SIGSEGV.*printed before", output, re.DOTALL)
    assert "test_hangs" in (directory / "stacks.txt").read_text()


def test_what_a_test_leaves_behind_is_killed_and_charged_to_it(misbehaved: Done) -> None:
    (left,) = unit_of(misbehaved)["left_behind"]
    assert left.startswith("test_a.py::test_leaves: ") and left.endswith("sleep 3917")
    assert not [process for process in process_tree.all_processes() if "3917" in process_tree.command_line(process.pid)]


@pytest.mark.full
@pytest.mark.parametrize("isolate", ["test", pytest.param("interpreter", marks=pytest.mark.full)])
def test_outcomes_are_those_of_pytest(tmp_path: Path, isolate: str) -> None:
    suite = write_suite(tmp_path / "suite", {"test_a.py": LIKE_PYTEST})
    reference = run(suite, *WHOLE, "file")
    forked = run(suite, *WHOLE, isolate)
    assert unit_of(forked)["tests"] == unit_of(reference)["tests"]
    assert unit_of(forked)["outcome"] == unit_of(reference)["outcome"] == "failed"
    closing = [
        re.sub(r" in [\d.]+s.*", "", Path(unit_of(done)["directory"], "output.log").read_text().splitlines()[-1])
        for done in (forked, reference)
    ]
    assert closing[0] == closing[1]
    assert "1 warning" in closing[0]


@pytest.mark.full
def test_a_file_that_cannot_be_forked_says_so(tmp_path: Path) -> None:
    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(20,), daemon=True).start()\n" + SHARING
    done = run(write_suite(tmp_path / "suite", {"test_a.py": text}), *WHOLE, "test")
    assert unit_of(done)["outcome"] == "failed"
    assert "ran in one process: the file starts threads when it is imported" in done.stdout + done.stderr


def test_the_supervisor_leaves_the_limit_of_a_forked_test_to_its_parent_for_a_while() -> None:
    deadlines = Deadlines(0.0, 100.0, 100.0)
    deadlines.observe({"k": "forked", "grace_s": 5.0}, 0.0)
    deadlines.observe({"k": "start", "timeout_s": 2.0}, 1.0)
    assert deadlines.next_s() == 1.0 + 2.0 + TEST_SLACK_S + FORK_SLACK_S + 5.0


THREADED_PLUGIN = """
import socket, threading
def pytest_configure(config): threading.Thread(target={name}, daemon=True).start()
def {name}():
    with socket.create_server(("127.0.0.1", 0)) as server: server.accept()
"""


def with_plugin(directory: Path, plugin: str, function: str) -> Path:
    """A suite of two files whose plugin starts a thread at its configuration."""
    files = {"test_a.py": SHARING, "test_b.py": SHARING, f"{plugin}.py": THREADED_PLUGIN.format(name=function)}
    files["pyproject.toml"] = f'[tool.pytest.ini_options]\naddopts = "-p {plugin}"\n'
    return write_suite(directory / "suite", files)


@pytest.mark.full
def test_one_note_names_the_plugin_whose_threads_keep_tests_together(tmp_path: Path) -> None:
    done = run(with_plugin(tmp_path, "threaded", "watch"), *WHOLE, "test")
    assert done.outcomes == {"test_a.py": "failed", "test_b.py": "failed"}
    (note,) = (each for each in done.of("run_finished")[0]["isolation"] if each["code"] == "tests_not_forked")
    assert (note["reason"], note["detail"]) == ("plugin_threads", "threaded")
    assert (note["path"], note["num_processes"]) == ("", 2)
    assert "rlharness run -- -p no:threaded" in json.loads(done.stdout)["notes"][0]
    suite = done.directory
    (suite / "pyproject.toml").write_text("")  # what the note advises: without the plugin
    assert set(run(suite, *WHOLE, "test").outcomes.values()) == {"passed"}


@pytest.mark.full
def test_threads_of_the_suite_are_no_fault_of_its_files(tmp_path: Path) -> None:
    files = {"test_a.py": SHARING, "test_b.py": SHARING, "conftest.py": THREADED_PLUGIN.format(name="watch")}
    done = run(write_suite(tmp_path / "suite", files), *WHOLE, "test")
    (note,) = (each for each in done.of("run_finished")[0]["isolation"] if each["code"] == "tests_not_forked")
    assert (note["reason"], note["path"], note["num_processes"]) == ("suite_threads", "", 2)
    assert "watch" in note["detail"]


@pytest.mark.full
def test_a_test_that_kills_the_process_of_its_file_is_named_and_the_rest_runs_elsewhere(tmp_path: Path) -> None:
    """Even before pytest, in the fork, has said that the test begins."""
    conftest = (
        "import os, pytest, signal, time\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_runtest_protocol(item):\n"
        "    if item.name == 'test_a': os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)\n"
    )
    files = {"conftest.py": conftest, "test_a.py": "def test_a(): pass\ndef test_b(): pass\n"}
    unit = unit_of(run(write_suite(tmp_path / "suite", files), *WHOLE, "test"))
    assert (unit["outcome"], unit["tests"]) == ("crashed", {"unfinished": 1, "passed": 1})
    assert [failure["id"] for failure in unit["failures"]] == ["test_a.py::test_a"]
    assert len(unit["attempts"]) == 1


@pytest.mark.full
def test_a_thread_that_keeps_its_process_from_exiting_keeps_no_other_test_from_running(tmp_path: Path) -> None:
    """The limit of the file is minutes away, and the test has none."""
    text = (
        "import threading\n"
        "def test_a(): threading.Thread(target=threading.Event().wait).start()\n"
        "def test_b(): pass\n"
        "def test_c(): threading.Thread(target=threading.Event().wait, args=(0.1,)).start()\n"
    )
    unit = unit_of(run(write_suite(tmp_path / "suite", {"test_a.py": text}), *WHOLE, "test"))
    assert (unit["outcome"], unit["tests"]) == ("timed_out", {"passed": 3})
    assert "exit in test_a.py::test_a" in unit["reason"] and "more" not in unit["reason"]
    assert "Event.wait" in Path(unit["directory"], "stacks.txt").read_text()


@pytest.mark.full
def test_a_test_begins_once_and_again_where_a_plugin_repeats_it(tmp_path: Path) -> None:
    """The process of the file says that a test begins before it forks; the fork says so too."""
    conftest = (
        "def pytest_runtest_protocol(item, nextitem):\n"
        "    from _pytest.runner import runtestprotocol\n"
        "    for number in range(2):\n"
        "        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)\n"
        "        runtestprotocol(item, nextitem=nextitem)\n"
        "        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)\n"
        "    return True\n"
    )
    files = {"conftest.py": conftest, "test_a.py": "def test_a(): pass\ndef test_b(): pass\n"}
    done = run(write_suite(tmp_path / "suite", files), *WHOLE, "test")
    begun = [event["nodeid"] for event in done.of("test_started")]
    assert begun == ["test_a.py::test_a"] * 2 + ["test_a.py::test_b"] * 2
    assert unit_of(done)["outcome"] == "passed"
