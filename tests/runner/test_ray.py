"""`rlharness run --ray` on a real Ray: two nodes of this machine, with two simulated GPUs each."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.process.supervisor.process_tree import all_processes
from harness.runner.ray.node import differing, digest_of
from tests.support.suite_runs import Done, ended, environment, run, started, until, write_suite

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 0, "include_dashboard": False})
nodes = []
for _ in range(2):
    nodes.append(cluster.add_node(num_cpus=4, num_gpus=2))
print(cluster.address, flush=True)
for line in sys.stdin:
    if line == "add\\n":
        nodes.append(cluster.add_node(num_cpus=4, num_gpus=2))
    else:
        cluster.remove_node(nodes.pop(), allow_graceful=False)
    print("done", flush=True)
"""
FILE = """
import os, subprocess, sys, time, pytest
pytestmark = pytest.mark.gpus({width})
def test_gpus(): assert len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) == {width}
def test_orphan(): subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "{mark}"])
def test_sleeps():
    try: time.sleep({seconds})
    finally: open("torn-down", "w").close()
def test_last(): assert {passes}
"""

KILLS = """
import os, signal
from pathlib import Path
def test_kills():
    pid = os.getpid()
    while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    signal.pause()
"""


class Nodes:
    """A cluster in a process of its own, whose last node can be killed."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.address = self._answer()

    def order(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    pytest.importorskip("ray")
    pipe, env = subprocess.PIPE, environment(RAY_worker_niceness="0")
    command = [sys.executable, "-c", CLUSTER]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env, text=True) as process:
        yield Nodes(process)
        assert process.stdin is not None
        process.stdin.close()


def suite(directory: Path, number: int, mark: str, seconds: float = 0.0) -> dict[str, str]:
    """Write files of one and two GPUs, every fifth of which fails; their outcomes."""
    for each in range(number):
        text = FILE.format(width=1 + each % 2, mark=mark, seconds=seconds, passes=bool(each % 5))
        write_suite(directory, {f"test_{each}.py": text})
    return {f"test_{each}.py": "passed" if each % 5 else "failed" for each in range(number)}


def living(mark: str) -> list[int]:
    """Processes of the tests, by a word in their command lines."""
    found = []
    for process in all_processes():
        with suppress(OSError):  # gone meanwhile
            line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            if mark.encode() in line and not process.is_zombie:
                found.append(process.pid)
    return found


def assert_none_lives(mark: str) -> None:
    until_s = time.monotonic() + 20
    while living(mark):
        assert time.monotonic() < until_s, living(mark)
        time.sleep(0.1)


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex


@pytest.mark.full
def test_outcomes_on_two_nodes(nodes: Nodes, tmp_path: Path, mark: str) -> None:
    expected = suite(tmp_path, 3, mark)
    wide = "import pytest\n@pytest.mark.gpus(3)\ndef test_wide(): pass\n"
    write_suite(tmp_path, {"test_wide.py": wide, "test_cpu.py": "def test_cpu(): pass\n"})
    done = run(tmp_path, "run", "--ray", nodes.address, "--plain")
    assert done.outcomes == expected | {"test_wide.py": "not_run", "test_cpu.py": "passed"}
    assert "a test are those of one node, and no node has 3" in done.results["test_wide.py"]["reason"]
    assert [len(end["gpu_ids"]) for path, end in sorted(done.results.items()) if path in expected] == [1, 2, 1]
    assert done.results["test_0.py"]["tests"]["counts"] == {"passed": 3, "failed": 1}
    assert "assert False" in Path(done.results["test_0.py"]["directory"], "output.log").read_text()
    assert done.code == ExitCode.TESTS_FAILED
    assert_none_lives(mark)


@pytest.mark.full
def test_a_node_is_killed_meanwhile(nodes: Nodes, tmp_path: Path, mark: str) -> None:
    expected = suite(tmp_path, 10, mark, seconds=2)
    with started(tmp_path, "run", "--ray", nodes.address, "--plain") as process:
        until(lambda: len(living(mark)) >= 2, process)
        nodes.order("remove")
        done = ended(process, tmp_path, 240)
    try:
        assert done.outcomes == expected
        assert [event["path"] for event in done.of("lease_refused") if event["lost"]]
        assert all(sum(end["tests"]["counts"].values()) == 4 for end in done.results.values())
        assert "raylet" not in done.stdout + done.stderr
    finally:
        nodes.order("add")
    assert_none_lives(mark)


@pytest.mark.full
def test_a_file_that_kills_its_worker_and_one_that_hangs(nodes: Nodes, tmp_path: Path) -> None:
    hangs = "import time\ndef test_hangs(): time.sleep(600)\n"
    write_suite(tmp_path, {"test_kills.py": KILLS, "test_hangs.py": hangs})
    limits = ("--timeout", "6", "--containment", "subreaper")
    done = run(tmp_path, "run", "--ray", nodes.address, "--plain", *limits)
    assert done.outcomes == {"test_kills.py": "supervisor_lost", "test_hangs.py": "timed_out"}
    assert [event["path"] for event in done.of("lease_refused")] == ["test_kills.py"] * 2
    assert done.results["test_kills.py"]["reason"].startswith("lost 3 times: node ")
    assert "test_hangs" in Path(done.results["test_hangs.py"]["directory"], "stacks.txt").read_text()


@pytest.mark.full
@pytest.mark.parametrize("signals", [(signal.SIGKILL,), (signal.SIGTERM,), (signal.SIGTERM, signal.SIGTERM)])
def test_nothing_is_left_of_a_run_that_is_ended(
    nodes: Nodes, tmp_path: Path, mark: str, signals: tuple[int, ...]
) -> None:
    suite(tmp_path, 4, mark, seconds=600)
    with started(tmp_path, "run", "--ray", nodes.address, "--plain") as process:
        until(lambda: len(living(mark)) >= 2, process)
        for number in signals:
            process.send_signal(number)
            time.sleep(0.5)
        done = ended(process, tmp_path)
    assert signals != (signal.SIGTERM,) or (tmp_path / "torn-down").exists()
    if signal.SIGKILL not in signals:
        assert set(done.outcomes.values()) <= {"interrupted", "not_run"}
        assert len(done.outcomes) == 4
        assert "SIGTERM received" not in done.stderr
        assert done.code == ExitCode.INTERRUPTED
    assert_none_lives(mark)


def test_a_node_needs_the_same_checkout(tmp_path: Path) -> None:
    file = tmp_path / "test_a.py"
    gone = differing({str(file): "0"})
    assert gone == f"No such file or directory: {file}. Every node needs the checkout at the same path"
    file.write_text("")
    assert "differs from the file that was collected" in differing({str(file): "0"})
    assert differing({str(file): digest_of(str(file))}) == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--ray", "127.0.0.1:9"), "--ray 127.0.0.1:9: [Errno 111] Connection refused"),
        (("--ray", "ray://127.0.0.1:9"), "--ray ray://127.0.0.1:9: a client of Ray cannot carry a run"),
        (("--ray", "x:1", "--gpus", "0,1"), "--ray with --gpus 0,1"),
    ],
)
def test_clusters_that_cannot_be_joined(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    pytest.importorskip("ray")
    done: Done = run(write_suite(tmp_path, {"test_a.py": "def test_a(): pass\n"}), "run", *arguments)
    assert (done.code, done.stderr.splitlines()[0]) == (ExitCode.USAGE_ERROR, f"error: {sentence}")
    assert "remedy" in done.stderr


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("raise ImportError('no Ray here')", "--ray: Ray cannot be imported (no Ray here)"),
        ("__version__ = '2.40.0'", "--ray: Ray 2.40.0"),
    ],
)
def test_versions_of_ray(tmp_path: Path, code: str, sentence: str) -> None:
    write_suite(tmp_path, {"test_a.py": "def test_a(): pass\n", "fake/ray/__init__.py": code})
    paths = os.pathsep.join((str(tmp_path / "fake"), environment()["PYTHONPATH"]))
    done = run(tmp_path, "run", "--ray", "auto", env={"PYTHONPATH": paths})
    assert (done.code, done.stderr.splitlines()[0]) == (ExitCode.USAGE_ERROR, f"error: {sentence}")
    assert "pip install" in done.stderr
