"""`rlharness run --cluster` as a user has it: agents that are processes, on this machine, started in every way."""

import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harness.core.exit_codes import ExitCode
from harness.process.supervisor import process_tree
from tests.support.suite_runs import HARNESS, Done, environment, started, write_suite

LIMIT_S = 300.0
pytestmark = [pytest.mark.timeout(600), pytest.mark.full]

MIXED = {
    "test_passes.py": "import os\ndef test_a(): assert 'RLHARNESS_CLUSTER_KEY' not in os.environ\n",
    "test_fails.py": "def test_a(): pass\ndef test_b():\n    print('said by b')\n    assert 0\n",
    "test_dies.py": (
        "import os, pytest\n@pytest.mark.gpus(2)\ndef test_a(): os.kill(os.getpid(), 11)\ndef test_b(): pass\n"
    ),
    "test_hangs.py": "import time, pytest\n@pytest.mark.timeout(2)\ndef test_a(): time.sleep(600)\n",
    "test_gpus.py": (
        "import os, pytest\n@pytest.mark.gpus(2)\ndef test_a(gpu_ids):\n"
        "    assert len(gpu_ids) == 2 and len({each.partition('-')[0] for each in gpu_ids}) == 1\n"
    ),
    "test_too_wide.py": "import pytest\n@pytest.mark.gpus(3)\ndef test_a(): pass\n",
    "test_two_nodes.py": (
        "import json, os, pytest\n@pytest.mark.gpus(4, nodes=2)\ndef test_a(gpu_ids):\n"
        "    hosts = json.loads(os.environ['RLHARNESS_HOSTS'])\n"
        "    assert [len(host['gpu_ids']) for host in hosts] == [2, 2] and len(gpu_ids) == 2\n"
        "    lines = open(os.environ['RLHARNESS_HOSTFILE']).read().splitlines()\n"
        "    assert lines == [host['address'] + ' slots=2' for host in hosts]\n"
        "    assert os.environ['MASTER_ADDR'] == hosts[0]['address'] and os.environ['NNODES'] == '2'\n"
    ),
}
OUTCOMES = {
    "test_passes.py": "passed",
    "test_fails.py": "failed",
    "test_dies.py": "crashed",
    "test_hangs.py": "timed_out",
    "test_gpus.py": "passed",
    "test_too_wide.py": "not_run",
    "test_two_nodes.py": "passed",
}


def finished(process: "subprocess.Popen[str]", directory: Path) -> Done:
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    return Done(directory, process.returncode, stdout, stderr)


def assert_right(done: Done) -> None:
    """Every outcome of MIXED is right, and the report and output of each attempt have come back."""
    assert done.code == ExitCode.TESTS_FAILED, done.stdout + done.stderr
    done.assert_sound()
    assert done.outcomes == OUTCOMES
    assert done.results["test_dies.py"]["tests"]["counts"] == {"passed": 1, "unfinished": 1}
    for path, result in done.results.items():
        if OUTCOMES[path] != "not_run":
            assert Path(result["directory"], "report.jsonl").read_text("utf-8").startswith('{"k":"hello"')
    assert "said by b" in Path(done.results["test_fails.py"]["directory"], "output.log").read_text("utf-8")
    assert "a file stays on one node" in done.results["test_too_wide.py"]["reason"]


def until(ready: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    until_s = time.monotonic() + LIMIT_S
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until_s, "the moment never came"
        time.sleep(0.02)


@pytest.mark.full
def test_simulated_nodes_give_the_outcomes_of_one_machine(tmp_path: Path) -> None:
    write_suite(tmp_path, MIXED)
    with started(tmp_path, "run", "--cluster", "local:2x2", "--grace", "1", "--plain") as process:
        done = finished(process, tmp_path)
    assert_right(done)
    assert len(done.of("run_started")[0]["nodes"]) == 2
    assert re.search(r"^  node node1 .*2 x sim", done.stdout, re.MULTILINE)


@contextmanager
def listening(directory: Path, *options: str, **env: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A run that waits for two agents, and the command that it prints for them."""
    words = ("run", "--cluster", "listen:2@127.0.0.1:0", "--gpus", "sim:2", "--grace", "1", "--plain", *options)
    with started(directory, *words, env=env) as process:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if match := re.search(r"on each: (.*)$", line):
                yield process, match[1].strip()
                return
        raise AssertionError(f"it did not say how to join: {lines}")


@contextmanager
def agent(command: str, cwd: Path, shell: str = "") -> Iterator["subprocess.Popen[str]"]:
    """An agent, started as the printed command says, by `shell` if there is one."""
    words = command.replace("rlharness", shlex.join(HARNESS))
    process = subprocess.Popen(
        ["sh", "-c", f"{shell} {words}" if shell else f"exec env {words}"],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.full
def test_agents_that_are_started_by_hand_get_the_sources(tmp_path: Path) -> None:
    suite, elsewhere = write_suite(tmp_path / "suite", MIXED), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (suite / "conftest.py").write_text(f"def test_place(): pass\nassert __file__[:{len(str(suite))}] != ''\n")
    with listening(suite, "--sources", "ship") as (process, command), ExitStack() as stack:
        agents = [stack.enter_context(agent(command, elsewhere)) for _ in range(2)]
        done = finished(process, suite)
        assert [each.wait(LIMIT_S) for each in agents] == [0, 0]
    assert_right(done)
    said = Path(done.results["test_fails.py"]["directory"], "output.log").read_text("utf-8")
    assert f"rootdir: {suite}\n" not in said
    assert list(elsewhere.iterdir()) == []


SRUN = """#!/bin/sh
# Stands in for Slurm's: the tasks of a step, each with the variables that Slurm gives it.
shift 4
for task in 0 1; do SLURM_PROCID=$task SLURM_NODEID=$task SLURM_NNODES=2 "$@" & done
wait
"""
SSH = """#!/bin/sh
# Stands in for ssh: a login shell of its own for the words, without the environment of the caller.
shift
exec env -i HOME="$HOME" PATH="$PATH" PYTHONPATH="$PYTHONPATH" PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 sh -c "$*"
"""


@pytest.mark.full
def test_slurm_starts_the_agents(tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "suite", MIXED)
    srun = tmp_path / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    key = {"RLHARNESS_CLUSTER_KEY": "0123456789abcdef0123"}
    with listening(suite, **key) as (process, command):
        assert "0123456789abcdef" not in command, "a key of the user's is not printed"
        words = [str(srun), "--nodes", "2", "--ntasks-per-node", "1", *HARNESS, *command.split()[1:]]
        step = subprocess.run(
            words, env=environment(**key), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        done = finished(process, suite)
    assert step.returncode == 0, step.stderr
    assert_right(done)


@pytest.mark.full
def test_ssh_starts_the_agents(tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "suite", MIXED)
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    key = "0123456789abcdef0123"
    with listening(suite, RLHARNESS_CLUSTER_KEY=key) as (process, command), ExitStack() as stack:
        for node in ("gpu-a", "gpu-b"):
            words = f"{command.replace('rlharness', shlex.join(HARNESS))} --key-file -"
            remote = stack.enter_context(
                subprocess.Popen([str(ssh), node, words], env=environment(), stdin=subprocess.PIPE, text=True)
            )
            assert remote.stdin is not None
            remote.stdin.write(f"{key}\n")
            remote.stdin.close()
        done = finished(process, suite)
    assert_right(done)


SLOW = "import subprocess, sys, time\ndef test_a():\n    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', {mark!r}], start_new_session=True)\n    open({begun!r}, 'w').close()\n    time.sleep(600)\n"  # noqa: E501


def bearing(mark: str) -> list[int]:
    """Processes with a word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words:
            found.append(int(path.parent.name))
    return found


@pytest.mark.full
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=["ctrl_c", "killed"])
def test_the_end_of_a_run_ends_everything_on_all_nodes(tmp_path: Path, signum: signal.Signals) -> None:
    mark = f"mark-of-{tmp_path}-{signum.name}"
    begun = [tmp_path / f"begun_{number}" for number in range(2)]
    for number, path in enumerate(begun):
        write_suite(tmp_path, {f"test_{number}.py": SLOW.format(mark=mark, begun=str(path))})
    options = ("--cluster", "local:2x1", "--cpu-units", "1", "--grace", "1", "--plain")
    with started(tmp_path, "run", *options) as process:
        until(lambda: all(path.exists() for path in begun), process)
        agents = [child.pid for child in process_tree.children(process.pid) if is_agent(child.pid)]
        assert len(agents) == 2
        assert len(bearing(mark)) == 2
        process.send_signal(signum)
        done = finished(process, tmp_path)
    until_s = time.monotonic() + LIMIT_S
    while (left := [*bearing(mark), *filter(is_agent, agents)]) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert left == []
    if signum is signal.SIGINT:
        assert done.code == ExitCode.INTERRUPTED
        assert set(done.outcomes.values()) == {"interrupted"}


def is_agent(pid: int) -> bool:
    try:
        return b"agent" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cluster", "local:0x1"), "--cluster local:0x1"),
        (("--cluster", "local:2x1", "--gpus", "sim:2"), "--cluster local:2x1 with --gpus sim:2"),
        (("--cluster", "local:2x1", "--keep-tmp"), "--keep-tmp with --cluster"),
        (("--cluster", "local:2x1", "--isolate", "worker"), "--isolate worker with --cluster"),
        (("--sources", "ship"), "--sources without --cluster"),
    ],
    ids=lambda value: "" if isinstance(value, str) else value[-1],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    with started(tmp_path, "run", *options) as process:
        done = finished(process, tmp_path)
    assert done.code == ExitCode.USAGE_ERROR
    assert said in done.stderr
    assert not (tmp_path / ".rlharness").exists()


def test_an_agent_needs_a_key_and_an_address(tmp_path: Path) -> None:
    for words, said in ((("agent", "127.0.0.1:1"), "the key of the run is missing"), (("agent", "here"), "HOST:PORT")):
        env = {"RLHARNESS_CLUSTER_KEY": "k" * 20} if words[1] == "here" else {}
        with started(tmp_path, *words, env=env) as process:
            done = finished(process, tmp_path)
        assert done.code == ExitCode.USAGE_ERROR
        assert said in done.stderr


@pytest.mark.full
def test_a_plan_packs_the_files_onto_the_nodes(tmp_path: Path) -> None:
    write_suite(tmp_path, {name: MIXED[name] for name in ("test_gpus.py", "test_too_wide.py", "test_two_nodes.py")})
    with started(tmp_path, "plan", "--cluster", "local:2x2", "--width", "80") as process:
        done = finished(process, tmp_path)
    assert done.code == ExitCode.OK, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("gpu ")]
    assert len(rows) == 4
    assert all("two_nodes" in row for row in rows), "a unit on two nodes has GPUs of both"
    assert "a file stays on one node" in done.stdout
