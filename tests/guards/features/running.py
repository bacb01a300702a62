"""Features of `rlharness run`: each option, seen in runs of small suites on simulated GPUs."""

import re
import sys
from typing import Any

from tests.guards.features.feature import Feature, Run, Seen, plain_pytest

_HANGS = """\
import signal, time

def test_hangs():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(60)
"""
_FAILS = """\
import os, subprocess, sys
from pathlib import Path

SLEEPS = "import time; time.sleep(60)"

def test_fails():
    Path("kept.txt").write_text(os.environ["TMPDIR"])
    subprocess.Popen([sys.executable, "-c", SLEEPS, "--password=hunter2"], start_new_session=True)
    assert False
"""
_STATE = """\
import importlib.util, json, os, sys
from pathlib import Path

def test_state():
    found = {"pid": os.getpid(), "env": dict(os.environ), "at_root": importlib.util.find_spec("beside") is not None}
    Path("state.json").write_text(json.dumps(found))

def test_second():
    Path("second.txt").write_text(str(os.getpid()))
"""
_SELECTED = """\
import pytest

def test_kept(): pass
def test_unwanted(): pass
def test_deselected(): pass

@pytest.mark.slow
def test_marked(): pass
"""
_FLAKY = """\
from pathlib import Path

def test_second_time():
    seen = Path("seen-once")
    was_there = seen.exists()
    seen.touch()
    assert was_there
"""
_GPU = "import pytest\n@pytest.mark.gpus({})\ndef test_on_gpus(): pass\n"
_COUNTS = """\
import time
from pathlib import Path

def test_counts():
    with Path("{0}.count").open("a") as file:
        file.write("x")
    time.sleep({2})
    assert {1}
"""
SUITE = {
    "beside.py": "",
    "tests/test_hangs.py": _HANGS,
    "tests/test_fails.py": _FAILS,
    "tests/test_state.py": _STATE,
    "tests/test_selected.py": _SELECTED,
    "tests/test_late.py": "import time, pytest\nmark = pytest.mark.gpus\ntime.sleep(30)\ndef test_late(): pass\n",
    "tests/test_mixed.py": _GPU.format(4),
    "tests/test_table.py": "def test_table(): pass\n",
    "pytest.ini": "[pytest]\nmarkers = slow: slow\n",
}
MANY = "import pytest\n@pytest.mark.parametrize('number', range(16))\ndef test_many(number): pass\n"
LEANING = {
    "tests/test_a.py": "import os\ndef test_a(): os.environ['SET_BY_A'] = '1'\n",
    "tests/test_b.py": "import os\ndef test_b(): assert 'SET_BY_A' in os.environ\n",
}


def counted(first: str, second: str, third: str) -> dict[str, str]:
    """Files a, b and z that count their runs; each passes if its condition holds, and a and b take longer."""
    conditions = {"a": (first, 1.5), "b": (second, 1.0), "z": (third, 0)}
    return {f"tests/test_{name}.py": _COUNTS.format(name, *each) for name, each in conditions.items()}


STUBBORN = Run(
    name="run-grace",
    command=("run", "tests", "--gpus=none", "--json", "--timeout=2", "--grace=1"),
    files={
        "tests/test_stubborn.py": """
import signal, time

def test_stubborn():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for _ in range(60):
        time.sleep(1)
"""
    },
)


def unit(seen: Seen, name: str) -> Any:
    """Result of the file tests/test_NAME.py in `--json`."""
    (found,) = [each for each in seen.json["units"] if each["path"] == f"tests/test_{name}.py"]
    return found


def started(seen: Seen) -> list[str]:
    """Files in the order in which they started."""
    events = seen.lines("**/runs/2*/events.jsonl") if not seen.has("events.jsonl") else seen.lines("events.jsonl")
    return [each["path"] for each in events if each["event"] == "attempt_started"]


def tests_of(seen: Seen) -> set[str]:
    """Names of all tests in the JUnit report."""
    return set(re.findall(r'<testcase name="([^"]+)"', seen.read("out/junit.xml")))


SESSION = ".rlharness/runs/latest/session.log"


def outputs(seen: Seen) -> list[str]:
    """What the files of the latest run printed."""
    return [path.read_text("utf-8") for path in seen.at.glob(".rlharness/runs/latest/units/*/output.log")]


OPTIONS = Run(
    name="run-options",
    is_quick=True,
    command=(
        *("run", "tests", "--gpus=sim:2xA,2xB", "--mix-models", "--cpu-units=3", "-knot unwanted", "-mnot slow"),
        *("--deselect=tests/test_selected.py::test_deselected", "--isolate=test", "--needs=needs.toml"),
        *("--collect-timeout=15", "--containment=subreaper", "--safe-path", "--color=always", "--json", "--timeout=12"),
        *("--grace=0", "--slow=2", "--events=out/events.jsonl", "--junit=out/junit.xml"),
        *("--results-dir=kept", "--keep-tmp", "--no-redact"),
    ),
    files={**SUITE, "needs.toml": '"test_table.py" = 2\n', "out/.keep": ""},
    env={"TMPDIR": "{at}"},
)
AGAIN = Run(
    name="run-again",
    is_quick=True,
    command=("run", "tests", "--gpus=none", "--retries=1", "-v", "--json"),
    files={"tests/test_flaky.py": _FLAKY, "tests/test_fine.py": "def test_fine(): pass\n"},
)
FIRST = Run(
    name="run-failed-first",
    command=("run", "tests", "--gpus=none", "--cpu-units=1", "--failed-first", "-x", "--events=events.jsonl"),
    files=counted("True", "True", "False"),
    before=(("rlharness", "run", "tests", "--gpus=none"),),
)
LAST = Run(
    name="run-last-failed",
    command=("run", "tests", "--gpus=none", "--last-failed", "--plain"),
    files=counted("True", "False", "True"),
    before=(("rlharness", "run", "tests", "--gpus=none"),),
    has_terminal=True,
)
RESUMED = Run(
    name="run-resumed",
    command=("run", "tests", "--gpus=none", "--cpu-units=1", "--resume=latest", "--maxfail=1"),
    files=counted("True", "False", "False"),
    before=(("rlharness", "run", "tests", "--gpus=none"),),
)
SHARD = Run(
    name="run-shard",
    command=("run", "tests", "--gpus=sim:4", "--shard=1/2", "--workers-per-gpu=2", "-s", "--json"),
    files={f"tests/test_{name}.py": "def test_it(): print('heard')\n" for name in "abcd"},
)
LEANS = Run(
    name="run-leaning",
    command=("run", "tests", "--gpus=sim:1", "--check-leaning", "--allow-missing-gpus", "-q", "--json"),
    files={**LEANING, "tests/test_wide.py": _GPU.format(8)},
    config={"leaning": '"report"'},
)
WHOLE = Run(
    name="run-no-split",
    command=("run", "tests", "--gpus=sim:2xA,2xB", "--no-split", "--no-mix-models", "--no-check-leaning", "--json"),
    files={
        **LEANING,
        "tests/test_many.py": MANY.replace("@pytest", "pytestmark = pytest.mark.gpus(1)\n@pytest"),
        "tests/test_mixed.py": _GPU.format(4),
    },
    config={"mix-models": "true", "check-leaning": "true", "allow-missing-gpus": "true"},
)
PARTS = Run(
    name="run-split",
    command=("run", "tests", "--gpus=sim:4", "--split", "--no-allow-missing-gpus", "--json"),
    files={"tests/test_many.py": MANY, "tests/test_wide.py": _GPU.format(8)},
    config={"split": "false", "allow-missing-gpus": "true"},
)

_ON_RAY = """
import os, subprocess, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1, "include_dashboard": False})
env = {**os.environ, "RAY_ADDRESS": cluster.address}
code = subprocess.run([sys.executable, "-m", "harness", *sys.argv[1:]], env=env).returncode
cluster.remove_node(cluster.head_node)
sys.exit(code)
"""
RAY = Run(
    name="run-ray",
    command=("run", "tests", "--gpus=auto", "--ray=auto", "--json"),
    files={"tests/test_gpu.py": _GPU.format(1)},
    program=(sys.executable, "-c", _ON_RAY),
    package="ray",
)


def _option(name: str, sees: str, holds: Any, run: Run = OPTIONS) -> Feature:
    return Feature(f"run {name}", run, sees, holds)


FEATURES = (
    Feature("command run", AGAIN, "the outcome of both files", lambda s: len(s.json["units"]) == 2),
    _option("--gpus", "two simulated models", lambda s: "2 x A" in s.err or "2 B 80 GB SIM-2" in s.err),
    _option("--mix-models", "a file on all four GPUs", lambda s: len(unit(s, "mixed")["gpu_ids"]) == 4),
    _option("--cpu-units", "3 slots", lambda s: s.load("state.json")["env"]["PYTEST_XDIST_WORKER_COUNT"] == "7"),
    _option("-k", "no test_unwanted", lambda s: "test_kept" in tests_of(s) and "test_unwanted" not in tests_of(s)),
    _option("-m", "no test_marked", lambda s: "test_kept" in tests_of(s) and "test_marked" not in tests_of(s)),
    _option(
        "--deselect",
        "no test_deselected",
        lambda s: "test_kept" in tests_of(s) and "test_deselected" not in tests_of(s),
    ),
    _option(
        "--isolate", "two tests in two processes", lambda s: str(s.load("state.json")["pid"]) != s.read("second.txt")
    ),
    _option("--needs", "two GPUs for a file of the table", lambda s: len(unit(s, "table")["gpu_ids"]) == 2),
    _option("--collect-timeout", "an import that is ended", lambda s: unit(s, "late")["outcome"] == "collect_timeout"),
    _option("--containment", "the containment in the first line", lambda s: "containment subreaper" in s.err),
    _option("--safe-path", "no import from the directory", lambda s: s.load("state.json")["at_root"] is False),
    _option("--color", "escape sequences", lambda s: "\x1b[3" in s.err),
    _option("--json", "one JSON document", lambda s: s.json["exit_code"] == 1 and s.json["units"]),
    _option("--timeout", "an end after 12 s", lambda s: unit(s, "hangs")["outcome"] == "timed_out"),
    _option("--slow", "a line for the slow file", lambda s: re.search(r"s\S*\s+slow\s.*test_hangs", s.err)),
    _option("--events", "events to the end", lambda s: s.lines("out/events.jsonl")[-1]["event"] == "run_finished"),
    _option("--junit", "the failed test", lambda s: "<failure" in s.read("out/junit.xml")),
    _option("--results-dir", "results there", lambda s: s.has("kept/.rlharness/runs/latest/events.jsonl")),
    _option("--keep-tmp", "the directory of the failed file", lambda s: (s.at / s.read("kept.txt")).is_dir()),
    _option("--no-redact", "the password of a process left behind", lambda s: "hunter2" in s.err + s.out),
    Feature(
        "variable RLHARNESS_PREFLIGHT",
        OPTIONS,
        "that the network was checked",
        lambda s: s.load("state.json")["env"]["RLHARNESS_PREFLIGHT"] == "done",
        plain_pytest("tests/test_state.py"),
    ),
    _option("--ray", "a GPU of the cluster", lambda s: unit(s, "gpu")["outcome"] == "passed", RAY),
    _option("--retries", "a flaky file", lambda s: unit(s, "flaky")["outcome"] == "flaky", AGAIN),
    _option("-v", "a line for each test", lambda s: "test_fine.py::test_fine PASSED" in s.read(SESSION), AGAIN),
    _option("-s", "what a passing test prints", lambda s: any("heard" in each for each in outputs(s)), SHARD),
    _option("-q", "no head", lambda s: "passed" in s.read(SESSION) and "platform" not in s.read(SESSION), LEANS),
    _option("--failed-first", "the failed file first", lambda s: started(s)[0] == "tests/test_z.py", FIRST),
    _option("-x", "a file that did not start", lambda s: s.code == 1 and len(started(s)) < 3, FIRST),
    _option(
        "--last-failed", "one file again", lambda s: [s.read(f"{n}.count") for n in "abz"] == ["x", "xx", "x"], LAST
    ),
    _option(
        "--plain",
        "lines on a terminal, nothing live",
        lambda s: "test_b.py" in s.out and "\x1b[2K" not in s.out and "\x1b[1A" not in s.out,
        LAST,
    ),
    _option("--resume", "the passed file not again", lambda s: s.read("a.count") == "x", RESUMED),
    _option(
        "--maxfail", "one of two failing files", lambda s: len(s.read("b.count") + s.read("z.count")) == 3, RESUMED
    ),
    _option("--shard", "half of the files", lambda s: len(s.json["units"]) == 2, SHARD),
    _option(
        "--workers-per-gpu", "a GPU for each", lambda s: all(len(u["gpu_ids"]) == 1 for u in s.json["units"]), SHARD
    ),
    _option("--check-leaning", "a file that leans", lambda s: unit(s, "b")["outcome"] == "leaning", LEANS),
    _option(
        "--allow-missing-gpus", "exit code 0", lambda s: s.code == 0 and unit(s, "wide")["outcome"] == "not_run", LEANS
    ),
    _option("--no-split", "a file as one unit", lambda s: unit(s, "many")["tests"] == {"passed": 16}, WHOLE),
    _option(
        "--no-mix-models", "no GPUs for four of a model", lambda s: unit(s, "mixed")["outcome"] == "not_run", WHOLE
    ),
    _option("--no-check-leaning", "a failed file", lambda s: unit(s, "b")["outcome"] == "failed", WHOLE),
    _option("--split", "a file in parts", lambda s: len(s.json["units"]) > 2, PARTS),
    _option("--no-allow-missing-gpus", "exit code 14", lambda s: s.code == 14, PARTS),
    _option("--grace", "a kill 1 s after the limit", lambda s: unit(s, "stubborn")["duration_s"] < 8, STUBBORN),
)
