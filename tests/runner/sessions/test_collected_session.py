"""The one session of a run: what files do to it when they are imported, what forks share, what pytest hears of them."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from textwrap import indent

import pytest

from harness.bits.exit_codes import ExitCode
from tests.support.collected import collect_in
from tests.support.suite_runs import QUICK, Done, run, write_suite

pytestmark = pytest.mark.timeout(120)

NOTES_SESSIONS = """
import os
def note(name): open(f"{name}_{os.getpid()}", "w").close()
def pytest_sessionstart(): note("start")
def pytest_sessionfinish(): note("finish")
def pytest_runtest_logreport(report):
    if report.when == "call": open("calls", "a").write(f"{os.getpid()} {report.nodeid} {report.outcome}\\n")
"""
ENDS = {
    "test_1.py": "import os; os._exit(3)\n",
    "test_2.py": "import ctypes; ctypes.string_at(0)\n",
    "test_3.py": "raise SystemExit(0)\n",
    "test_4.py": "import time; time.sleep(600)\n",
    "test_5.py": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n",
}


def names(directory: Path, pattern: str) -> list[str]:
    return sorted(path.name.partition("_")[2] for path in directory.glob(pattern))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A run of files that end or stall the session in a row, between two that do not."""
    files = {"conftest.py": NOTES_SESSIONS, "test_0.py": QUICK, **ENDS, "test_6.py": QUICK}
    directory = write_suite(tmp_path_factory.mktemp("ended"), files)
    return run(directory, "run", "--gpus", "none", "--collect-timeout", "3")


def test_each_file_that_ends_the_session_is_named_and_the_others_run(ended: Done) -> None:
    ended.assert_sound()
    errors = dict.fromkeys(ENDS, "collect_error") | {"test_4.py": "collect_timeout"}
    assert ended.outcomes == {"test_0.py": "passed", "test_6.py": "passed", **errors}
    texts = {path: ended.results[path]["unit"]["collect_error"] for path in ENDS}
    assert "exited with 3" in texts["test_1.py"]
    assert "SIGSEGV" in texts["test_2.py"]
    assert "SystemExit" in texts["test_3.py"]
    assert "<module> (test_4.py:1)" in texts["test_4.py"], "the stacks of the import that hangs"
    assert "of pytest and rlharness" in texts["test_4.py"] and "pluggy" not in texts["test_4.py"]
    assert "SIGKILL" in texts["test_5.py"]


def test_the_suite_sees_one_session(ended: Done) -> None:
    assert len(names(ended.directory, "start_*")) == len(names(ended.directory, "finish_*")) == 1
    calls = [line.split() for line in (ended.directory / "calls").read_text().splitlines()]
    passed = {f"test_{n}.py::test_quick": "passed" for n in (0, 6)}
    ended_early = {f"test_{n}.py": "failed" for n in range(1, 6)}
    assert {nodeid: outcome for _, nodeid, outcome in calls} == passed | ended_early
    assert {pid for pid, _, _ in calls} == set(names(ended.directory, "finish_*")), "hooks that report run there"


LATE = """
import os, threading, time
from pathlib import Path
Path(f"{Path(__file__).stem}_{os.getpid()}").touch()
"""
POISONS = {
    "test_thread.py": LATE + "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
    "test_socket.py": LATE + "import socket\nkept = socket.socket()\n",
    "test_file.py": LATE + "kept = open('written', 'w')\n",
    "test_cwd.py": LATE + "os.makedirs('below', exist_ok=True); os.chdir('below')\n",
    "test_child.py": LATE + "import subprocess\nkept = subprocess.Popen(['sleep', '60'])\n",
    "test_replaced.py": LATE + "os.fork = os.fork.__call__\n",
    "test_reads.py": LATE + "GPUS = os.environ.get('CUDA_VISIBLE_DEVICES', 'all')\n",
}
CHECK = "assert GPUS == 'SIM-0'"
PLAIN = "import os\ndef test_pid(): open(f'plain_{os.getppid()}', 'w').close()\n"


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A run of files whose imports must not be shared, on one GPU."""
    files = {name: f"{text}def test_it(): {CHECK if 'GPUS' in text else 'pass'}\n" for name, text in POISONS.items()}
    table = '[tool.rlharness.needs]\n"test_reads.py" = 1\n'
    directory = write_suite(
        tmp_path_factory.mktemp("poisoned"), {**files, "test_plain.py": PLAIN, "pyproject.toml": table}
    )
    return run(directory, "run", "--gpus", "sim:1")


def test_files_whose_import_must_not_be_shared_pass_in_forks_of_their_own(poisoned: Done) -> None:
    assert set(poisoned.outcomes.values()) == {"passed"}, poisoned.stdout
    assert poisoned.events[-1]["isolation"] == []
    for name in POISONS:
        stem = Path(name).stem
        assert len(list(poisoned.directory.glob(f"{stem}_*"))) == 2, "imported in the session once, and in its process"


def test_what_they_have_imported_is_imported_once(tmp_path: Path) -> None:
    """An installed module that each of them imports is in the session for all."""
    text = "import os, sys\nBEFORE = 'wave' in sys.modules\nimport wave\nos.environ.get('MASTER_PORT')\n"
    late = {f"test_{n}.py": f"{text}def test_it(): assert BEFORE\n" for n in range(3)}
    assert set(run(write_suite(tmp_path, late), "run", "--gpus", "none").outcomes.values()) == {"passed"}


def test_a_conftest_below_that_starts_a_thread_gives_files_interpreters(tmp_path: Path) -> None:
    serves = "import threading\nready, done = threading.Event(), threading.Event()\n"
    serves += "def serve():\n    while ready.wait(): done.set()\n"
    serves += "threading.Thread(target=serve, daemon=True).start()\n"
    asks = "from conftest import done, ready\ndef test_it():\n    ready.set()\n    assert done.wait(20)\n"
    done = run(write_suite(tmp_path, {"below/conftest.py": serves, "below/test_a.py": asks, "test_b.py": QUICK}), "run")
    assert set(done.outcomes.values()) == {"passed"}, done.stdout
    assert {note["reason"] for note in done.events[-1]["isolation"]} == {"suite_threads"}


def test_what_a_file_seeds_at_its_import_is_seeded_in_its_tests(tmp_path: Path) -> None:
    text = "import random, numpy\nrandom.seed({n}); numpy.random.seed({n})\n"
    text += "def test_it(): assert numpy.random.rand() == numpy.random.RandomState({n}).rand()\n"
    one = "def test_python(): assert random.random() == random.Random(0).random()\n"
    done = run(write_suite(tmp_path, {"test_a.py": text.format(n=0) + one}), "run", "--gpus", "none")
    assert set(done.outcomes.values()) == {"passed"}, done.stdout


def test_a_late_file_has_its_selected_tests_and_its_parts(tmp_path: Path) -> None:
    reads = "import os, pytest\nos.environ.get('CUDA_VISIBLE_DEVICES')\n"
    tests = "@pytest.mark.gpus(1)\ndef test_one(): pass\n@pytest.mark.gpus(2)\ndef test_two(): pass\n"
    tests += "def test_left(): pass\n"
    done = run(write_suite(tmp_path, {"test_a.py": reads + tests}), "run", "--gpus", "sim:2", "-k", "not left")
    assert {path: done.results[path]["tests"]["counts"] for path in done.outcomes} == {
        "test_a.py [1/2]": {"passed": 1},
        "test_a.py [2/2]": {"passed": 1},
    }


def test_a_node_id_that_names_nothing_costs_the_others_nothing(tmp_path: Path) -> None:
    files = {"test_a.py": QUICK, "test_b.py": QUICK}
    named = ("test_a.py::test_quick", "test_b.py::test_quack")
    collected = collect_in(write_suite(tmp_path, files), *named)
    assert {unit.path: unit.selection for unit in collected.units} == {
        each.partition("::")[0]: (each,) for each in named
    }
    assert list(collected.not_found) == ["test_b.py"]
    assert "test_quack" in collected.not_found["test_b.py"]


def test_a_named_file_brings_none_of_its_neighbours(tmp_path: Path) -> None:
    write_suite(tmp_path, {f"tests/test_{name}.py": QUICK for name in "abc"})
    assert [unit.path for unit in collect_in(tmp_path, "tests/test_b.py").units] == ["tests/test_b.py"]
    assert [unit.path for unit in collect_in(tmp_path, "tests").units] == [f"tests/test_{name}.py" for name in "abc"]


def test_x_ends_the_run_as_it_ends_pytest(tmp_path: Path) -> None:
    files = {"test_a.py": "def test_a(): assert 0\ndef test_b(): pass\n", "test_b.py": QUICK}
    done = run(write_suite(tmp_path, files), "run", "--gpus", "none", "--cpu-units", "1", "--", "-x")
    assert done.outcomes == {"test_a.py": "failed", "test_b.py": "not_run"}
    assert "stopping after 1 failures" in done.results["test_b.py"]["reason"]


def test_reports_that_pytest_writes_have_all_tests(tmp_path: Path) -> None:
    files = {
        "pytest.ini": "[pytest]\naddopts = -rs --junitxml=report.xml --durations=5 -W ignore::UserWarning\n",
        "test_a.py": "def test_a(record_property): record_property('k', 'v'); assert 0\n",
        "test_b.py": "import os\ndef test_b(): os._exit(7)\ndef test_c(): pass\n",
        "test_s.py": "import pytest\n@pytest.mark.skip(reason='why')\ndef test_s(): pass\n",
    }
    done = run(write_suite(tmp_path, files), "run", "--gpus", "none")
    found = {
        case.get("name"): [child.tag for child in case] for case in ET.parse(tmp_path / "report.xml").iter("testcase")
    }
    assert found == {"test_a": ["properties", "failure"], "test_b": ["failure"], "test_c": [], "test_s": ["skipped"]}
    assert json.loads((tmp_path / ".pytest_cache/v/cache/lastfailed").read_text()).keys() == {
        "test_a.py::test_a",
        "test_b.py::test_b",
    }
    log = (done.record / "session.log").read_text()
    assert "slowest 5 durations" in log and "2 failed, 1 passed, 1 skipped" in log
    assert done.events[-1]["session_failures"] == [] and "SKIPPED [1] test_s.py:2: why" in log


@pytest.mark.parametrize(
    ("hook", "reason"),
    [("raise ValueError('at the end')", "exited with 1"), ("import os; os._exit(9)", "exited with 9")],
)
def test_a_hook_that_fails_at_the_end_fails_the_run(tmp_path: Path, hook: str, reason: str) -> None:
    files = {"conftest.py": f"def pytest_sessionfinish(): {hook}\n", "test_a.py": QUICK}
    done = run(write_suite(tmp_path, files), "run", "--gpus", "none", "--junit", "j.xml")
    assert (done.code, done.outcomes) == (ExitCode.TESTS_FAILED, {"test_a.py": "passed"})
    (failure,) = done.events[-1]["session_failures"]
    assert reason in failure["reason"]
    assert "FAILED pytest's session, after its last test" in done.stdout
    assert ET.parse(tmp_path / "j.xml").getroot().find('.//testcase[@name="[pytest\'s session]"]/error') is not None


WAITS = "while not os.path.exists('{name}'): time.sleep(0.01)\n"


def test_a_session_that_is_killed_costs_no_outcome(tmp_path: Path) -> None:
    kills = f"def test_k():\n{indent(WAITS.format(name='runs'), '    ')}"
    kills = f"import os, time\n{kills}    os.kill(int(open('session').read()), 9)\n"
    conftest = "import os\ndef pytest_sessionstart(): open('session', 'w').write(str(os.getpid()))\n"
    runs = f"import os, time\ndef test_r():\n    open('runs', 'w')\n{indent(WAITS.format(name='later'), '    ')}"
    later = "def test_l(): open('later', 'w')\n"
    files = {"conftest.py": conftest, "test_a.py": runs, "test_b.py": kills, "test_c.py": later, "test_d.py": QUICK}
    done = run(write_suite(tmp_path, files), "run", "--gpus", "none", "--cpu-units", "2")
    assert set(done.outcomes.values()) == {"passed"}, done.stdout
    assert [note["reason"] for note in done.events[-1]["isolation"]] == ["lost"]


def test_a_short_limit_of_imports_does_not_limit_the_start_of_pytest(tmp_path: Path) -> None:
    files = {"slow.py": "import time\ntime.sleep(2.5)\n", "test_a.py": QUICK}
    done = run(write_suite(tmp_path, files), "run", "--gpus", "none", "--collect-timeout", "2", "--", "-p", "slow")
    assert done.outcomes == {"test_a.py": "passed"}


def test_skipped_subtests_are_in_the_junit_report_as_pytest_has_them(tmp_path: Path) -> None:
    subtests = "import pytest\ndef test_one(subtests):\n    with subtests.test('a'): pytest.skip('why')\n"
    subtests += "    with subtests.test('b'): assert 0\n"
    subtests += "def test_two(subtests):\n    with subtests.test('c'): pytest.skip('no')\n"
    write_suite(tmp_path, {"test_a.py": subtests})
    run(tmp_path, "run", "--gpus", "none", "--junit", "ours.xml", "--", "--junitxml=theirs.xml")
    found = [
        [(case.get("name"), each.tag, each.get("message")) for case in ET.parse(file).iter("testcase") for each in case]
        for file in (tmp_path / "ours.xml", tmp_path / "theirs.xml")
    ]
    assert [each for each in found[0] if each[1] != "system-out"] == found[1]


def test_benchmarks_run_once_and_their_plugin_costs_no_interpreter(tmp_path: Path) -> None:
    plugin = """
import os, pytest
def pytest_addoption(parser):
    parser.addoption("--benchmark-disable", action="store_true")
    parser.addoption("--benchmark-enable", action="store_true")
@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    assert config.option.benchmark_disable or worker
"""
    files = {"pytest_benchmark/__init__.py": "", "pytest_benchmark/session.py": plugin, "test_a.py": QUICK}
    done = run(write_suite(tmp_path, files), "run", "--gpus", "none", "--", "-p", "pytest_benchmark.session")
    assert done.outcomes == {"test_a.py": "passed"}
    assert done.events[-1]["isolation"] == []


WHAT_A_TEST_DOES = {
    "json": "import json\ndef test_it(): json.dumps = json.loads = lambda *a, **k: 1 / 0\n",
    "write": "import os\ndef test_it(): os.write = lambda *a: 1 / 0\n",
    "open": "import builtins\ndef test_it(): builtins.open = lambda *a, **k: 1 / 0\n",
    "clock": "import time\ndef test_it(): time.time = time.perf_counter = time.monotonic = lambda: float('nan')\n",
    "streams": "import sys\ndef test_it(): sys.stdout = sys.stderr = None\n",
}


@pytest.mark.parametrize(
    "replaces",
    [
        "import json\njson.loads = lambda *a, **k: None\n",
        "import json\n_dumps = json.dumps\njson.dumps = lambda *a, **k: _dumps(*a, **k).encode()\n",
        "import os\nos.write = lambda fd, data: len(data)\n",
    ],
)
def test_what_a_file_replaces_at_its_import_costs_no_outcome(tmp_path: Path, replaces: str) -> None:
    files = {"test_a.py": f"{replaces}def test_a(): pass\ndef test_b(): assert 0\n", "test_b.py": QUICK}
    (tmp_path / "file").mkdir()
    (tmp_path / "conftest").mkdir()
    done = run(write_suite(tmp_path / "file", files), "run", "--gpus", "none")
    assert done.outcomes == {"test_a.py": "failed", "test_b.py": "passed"}, done.stdout
    assert done.results["test_a.py"]["tests"]["counts"] == {"passed": 1, "failed": 1}
    files = {"conftest.py": replaces, "test_b.py": QUICK}
    done = run(write_suite(tmp_path / "conftest", files), "run", "--gpus", "none")
    is_pytests = "encode" in replaces  # its own cache needs a text of json.dumps
    assert done.outcomes == {"test_b.py": "crashed" if is_pytests else "passed"}, done.stdout


@pytest.mark.parametrize("isolate", ["file", "test", pytest.param("interpreter", marks=pytest.mark.full)])
def test_outcomes_arrive_whatever_a_test_does_to_the_interpreter(tmp_path: Path, isolate: str) -> None:
    files = {f"test_{name}.py": f"{text}def test_after(): pass\n" for name, text in WHAT_A_TEST_DOES.items()}
    done = run(write_suite(tmp_path, files), "run", "--gpus", "none", "--isolate", isolate)
    crashed = {path for path, outcome in done.outcomes.items() if outcome != "passed"}
    # Without json, a pytest of its own ends with a traceback when it writes its cache, whoever runs it.
    assert crashed == ({"test_json.py"} if isolate == "interpreter" else set()), done.stdout
    assert {tuple(each["tests"]["counts"].items()) for each in done.results.values()} == {(("passed", 2),)}


def test_the_output_of_a_file_has_its_own_time(tmp_path: Path) -> None:
    done = run(
        write_suite(tmp_path, {"test_a.py": QUICK, "test_b.py": f"import time\ntime.sleep(1)\n{QUICK}"}),
        "run",
        "--gpus",
        "none",
    )
    for result in done.results.values():
        assert " 1 passed in 0." in Path(result["directory"], "output.log").read_text()


def test_the_junit_report_has_what_pytests_has(tmp_path: Path) -> None:
    text = """
import pytest
def test_says(record_property, record_testsuite_property):
    record_property("k", "v"); record_testsuite_property("suite", 1); print("to stdout"); assert 0
@pytest.fixture
def fails():
    yield
    assert 0, "in its teardown"
def test_both(fails): assert 0
"""
    run(write_suite(tmp_path, {"test_a.py": text}), "run", "--gpus", "none", "--junit", "j.xml")
    suite = ET.parse(tmp_path / "j.xml").getroot().find("testsuite[@name='test_a.py']")
    assert suite is not None
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert [each.attrib for each in suite.iterfind("properties/property")] == [{"name": "suite", "value": "1"}]
    assert [each.attrib for each in cases["test_says"].iter("property")] == [{"name": "k", "value": "v"}]
    assert "to stdout" in (cases["test_says"].findtext("system-out") or "")
    assert [child.tag for child in cases["test_both"]][:2] == ["failure", "error"]
