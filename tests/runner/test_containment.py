"""What each means of holding a tree catches, and what goes free where it is missing."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import harness
from harness.process.supervisor import process_tree
from harness.process.supervisor.containment import BACKENDS, cgroup_home, make_containment
from harness.process.supervisor.process_tree import Process
from harness.process.supervisor_client import ProcessSpec, Supervisors

MakeSpec = Callable[..., ProcessSpec]
Living = Callable[..., list[Process]]
Eventually = Callable[[Callable[[], object], str], Awaitable[None]]

ROOT = Path(harness.__file__).parents[1]
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)", sys.argv[1]], {})
    os._exit(0)
time.sleep(60)
"""
HOLD_AND_KILL = """
import os, select, signal, sys
from harness.process.supervisor.containment import make_containment

class KillGroup:
    "What a process group and killpg can do: the usual way, and no more."
    is_gone = False
    def spawn(self, start):
        self.pid = os.fork()
        if self.pid == 0:
            start()
    def kill(self):
        os.killpg(self.pid, signal.SIGKILL)
    def reap(self):
        self.is_gone = os.waitpid(self.pid, os.WNOHANG) != (0, 0)
    def close(self):
        pass

def start():
    os.setsid()
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", program, marker])

means, group, program, marker = sys.argv[1:]
held = KillGroup() if means == "killpg" else make_containment(means, group)
held.spawn(start)
sys.stdin.readline()
while not held.is_gone:
    held.kill()
    select.select([], [], [], 0.005)
    held.reap()
held.close()
"""


def control_group(name: str) -> str:
    try:
        return f"{cgroup_home()}/rlharness-{name}"
    except OSError:
        return ""


@pytest.mark.full
@pytest.mark.parametrize(("means", "num_survivors"), [("killpg", 1), ("cgroup", 0), ("pidns", 0), ("subreaper", 0)])
def test_a_daemon_escapes_killpg_and_nothing_else(
    means: str, num_survivors: int, refusals: dict[str, str], living: Living, eventually: Eventually
) -> None:
    if refusals.get(means):
        pytest.skip(refusals[means])
    marker = f"{means}-{uuid.uuid4().hex}"
    command = [sys.executable, "-c", HOLD_AND_KILL, means, control_group(marker), DAEMON, marker]

    async def scenario() -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=env) as holder:
            daemon = ["-I", "-S", "-c", "import time; time.sleep(60)", marker]
            shown = " ".join(daemon)
            await eventually(
                lambda: any(shown in process_tree.command_line(p.pid, 9999) for p in living(marker)), "the daemon runs"
            )
            holder.communicate(b"\n")
        assert holder.returncode == 0
        survivors = living(marker)
        for process in survivors:
            process_tree.send_signal(process, signal.SIGKILL)
        await eventually(lambda: not living(marker), "the survivors of the test end with it")
        assert len(survivors) == num_survivors

    asyncio.run(scenario())


ENDLESS_CHAIN = """
import os, time
until_s = time.monotonic() + 5
while time.monotonic() < until_s:  # a process is never there for long, its child always is
    if os.fork():
        os._exit(0)
"""


@pytest.mark.full
def test_a_chain_of_forks_is_cut(backend: str, supervisors: Supervisors, spec: MakeSpec) -> None:
    end = asyncio.run(supervisors.run(spec(ENDLESS_CHAIN)))
    assert (end.exit_code, end.reason, end.unkillable) == (0, "", ())
    assert end.left_behind, "named, although nobody is there for long"
    assert end.duration_s < 4 or backend == "subreaper", "signalling one after the other, it catches up by luck"


@pytest.mark.parametrize("backend", ["cgroup"], indirect=True)
@pytest.mark.parametrize(
    "where",
    [
        pytest.param("below", marks=pytest.mark.full),
        pytest.param("threaded", marks=pytest.mark.full),
        "above, its own removed",
    ],
)
def test_moving_to_another_control_group_does_not_help(
    where: str, supervisors: Supervisors, spec: MakeSpec, tmp_path: Path
) -> None:
    program = f"""
import os, sys, time
home, own = {cgroup_home()!r}, None
for line in open("/proc/self/cgroup"):
    if line.startswith("0::"):
        own = os.path.join(home, os.path.basename(line.strip()))
if os.fork() == 0:
    os.setsid()
    if {where!r} == "above, its own removed":
        open(home + "/cgroup.procs", "w").write("0")
        while os.path.exists(own):
            try:
                os.rmdir(own)
            except OSError:  # the leader has not moved yet
                time.sleep(0.01)
    else:
        os.mkdir(own + "/below")
        if {where!r} == "threaded":
            open(own + "/below/cgroup.type", "w").write("threaded")
        open(own + "/below/cgroup.procs", "w").write("0")
    print("moved", flush=True)
    time.sleep(60)
if {where!r} == "above, its own removed":
    open(home + "/cgroup.procs", "w").write("0")
time.sleep(60)
"""
    one = spec(program, timeout_s=0.6)
    end = asyncio.run(supervisors.run(one))
    assert Path(one.directory, "output.log").read_text().startswith("moved\n")
    assert (end.reason, end.unkillable) == ("timeout", ())


@pytest.mark.parametrize(("backend", "num_survivors"), [("pidns", 0), ("subreaper", 1)], indirect=["backend"])
def test_only_a_namespace_outlasts_the_loss_of_runner_and_supervisor(
    num_survivors: int, backend: str, spec: MakeSpec, living: Living, eventually: Eventually
) -> None:
    runner_program = """
import asyncio, json, sys
from harness.process.supervisor_client import ProcessSpec, Supervisors
tier, fields = json.load(sys.stdin)
asyncio.run(Supervisors(tier, "lost").run(ProcessSpec(**fields)))
"""
    one = spec(DAEMON)
    fields = {name: getattr(one, name) for name in one.__slots__}

    async def scenario() -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen([sys.executable, "-c", runner_program], stdin=subprocess.PIPE, env=env) as runner:
            assert runner.stdin is not None
            runner.stdin.write(json.dumps([backend, fields]).encode())
            runner.stdin.close()
            await eventually(lambda: len(living(one.marker)) == 2, "leader and daemon run")
            [supervisor] = process_tree.children(runner.pid)
            runner.send_signal(signal.SIGSTOP)  # or it would come to the rescue
            process_tree.send_signal(supervisor, signal.SIGKILL)
            await eventually(
                lambda: process_tree.read_process(supervisor.pid) == supervisor._replace(state="Z"), "dead"
            )
            runner.kill()
        await eventually(lambda: len(living(one.marker)) <= 1, "the leader has died with its parent")
        if num_survivors == 0:
            await eventually(lambda: not living(one.marker), "all have died with their namespace")
        survivors = living(one.marker)
        for process in survivors:
            process_tree.send_signal(process, signal.SIGKILL)
        await eventually(lambda: not living(one.marker), "the survivors of the test end with it")
        assert len(survivors) == num_survivors

    asyncio.run(scenario())


def probed(home: str, before: str = "") -> dict[str, str]:
    """What the probe says of each tier, with control groups in `home`, after some code has run."""
    program = f"from harness.process.supervisor.main import probe; {before}\nprobe(lambda: {home!r})"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(answer["tier"] for answer in answers) == sorted(BACKENDS)
    return {answer["tier"]: answer["error"] for answer in answers}


def test_without_cgroup_v2_the_probe_says_so(refusals: dict[str, str]) -> None:
    answers = probed("/nonexistent")
    assert answers["subreaper"] == ""
    assert answers["cgroup"].startswith("[Errno 2] No such file or directory: '/nonexistent/rlharness-probe-")
    assert bool(answers["pidns"]) == bool(refusals["pidns"])


def test_without_rights_the_probe_says_so(give_up_root: str) -> None:
    answers = probed(os.path.dirname(control_group("x")) or "/nonexistent", give_up_root)
    assert answers["subreaper"] == ""
    assert "denied" in answers["cgroup"] or "No such file" in answers["cgroup"]
    assert "not permitted" in answers["pidns"]


def test_a_group_without_a_kill_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"no cgroup\.kill here"):
        make_containment("cgroup", str(tmp_path / "group"))
    assert os.listdir(tmp_path) == []
