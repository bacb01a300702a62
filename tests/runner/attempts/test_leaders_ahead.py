"""Leaders that are forked before they have an order: each carries out one, and none outlives the runner."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping

import pytest

from harness.process.supervisor import process_tree
from harness.process.supervisor.containment import cgroup_home
from harness.process.supervisor.fork_server import Forked, ForkServer
from harness.process.supervisor.process_tree import Process
from harness.process.supervisor_client import ProcessEnd, ProcessSpec, Supervisors

MakeSpec = Callable[..., ProcessSpec]
Living = Callable[..., list[Process]]
Eventually = Callable[[Callable[[], object], str], Awaitable[None]]

SESSION: Mapping[str, object] = {"args": []}
WITH_CHILDREN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)", sys.argv[1]], {})
    os._exit(0)
time.sleep(60)
"""


class Parent:
    """A parent whose forks start programs: the fork server, which imports nothing."""

    def __init__(self) -> None:
        self._server = ForkServer()
        self.generation = 0
        self.num_forks = 0

    @property
    def pid(self) -> int:
        return self._server.pid

    def can_fork(self, env: Mapping[str, str]) -> bool:
        return True

    async def fork(self, stderr: int) -> Forked | None:
        self.num_forks += 1
        return self._server.fork(stderr)

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def parent() -> Iterator[Parent]:
    with contextlib.closing(Parent()) as parent:
        yield parent


@pytest.fixture
def ahead(backend: str, run_id: str, parent: Parent) -> Iterator[Supervisors]:
    """Supervisors with a parent; at the end they have left no control group and no child."""
    before = {process.pid for process in process_tree.children(os.getpid())}
    with contextlib.closing(Supervisors(backend, run_id)) as supervisors:
        supervisors.parent = parent
        before.add(supervisors._fork_server.pid)
        yield supervisors
        supervisors.close()
        assert {process.pid for process in process_tree.children(os.getpid())} <= before
    if backend == "cgroup":
        assert [name for name in os.listdir(cgroup_home()) if run_id in name] == []


async def has_run(supervisors: Supervisors, spec: ProcessSpec) -> tuple[ProcessEnd, int]:
    """The end of an attempt, and the supervisor that then waits for the next."""
    end = await supervisors.run(spec)
    await supervisors._ahead.settled()
    assert supervisors._ahead.waiting is not None
    return end, supervisors._ahead.waiting.forked.pid


def leader_below(pid: int) -> int:
    """The leader that a waiting supervisor has forked; in a PID namespace, the first process of it."""
    below = process_tree.descendants(pid)
    return max(below, key=lambda process: (process.start_ticks, process.pid)).pid if below else 0


def test_every_attempt_but_the_first_has_the_leader_that_waited(
    ahead: Supervisors, parent: Parent, spec: MakeSpec
) -> None:
    async def scenario() -> list[tuple[int | None, int]]:
        found = []
        for code in (0, 3, 0):
            supervisor_that_waits = ahead._ahead.waiting.forked.pid if ahead._ahead.waiting else 0
            end, _ = await has_run(ahead, spec(f"import sys; print('said'); sys.exit({code})", session=SESSION))
            found.append((end.exit_code, supervisor_that_waits))
        return found

    found = asyncio.run(scenario())
    assert [code for code, _ in found] == [0, 3, 0]
    assert [bool(pid) for _, pid in found] == [False, True, True]
    assert parent.num_forks == 4, "one for each attempt, and the one that still waits"


def test_an_order_reaches_the_leader_whole(ahead: Supervisors, spec: MakeSpec) -> None:
    """Larger than a pipe holds."""
    text = "x" * 60_000
    program = "import os, sys; sys.exit(len(os.environ['A']) + len(os.environ['B']) != 120_000)"

    async def scenario() -> ProcessEnd:
        await has_run(ahead, spec("pass", session=SESSION))
        one = spec(program, session=SESSION)
        one.env.update(A=text, B=text)
        return await ahead.run(one)

    assert asyncio.run(scenario()).exit_code == 0


@pytest.mark.full
@pytest.mark.parametrize("whom", ["leader", "supervisor"])
def test_one_that_was_killed_while_it_waited_costs_no_outcome(
    whom: str, ahead: Supervisors, spec: MakeSpec, eventually: Eventually
) -> None:
    async def scenario() -> ProcessEnd:
        _, supervisor = await has_run(ahead, spec("pass", session=SESSION))
        await eventually(lambda: leader_below(supervisor), "a leader waits")
        victim = leader_below(supervisor) if whom == "leader" else supervisor
        os.kill(victim, signal.SIGKILL)
        await eventually(lambda: not is_running(victim), "it has ended")
        return await ahead.run(spec("raise SystemExit(5)", session=SESSION))

    end = asyncio.run(scenario())
    assert (end.exit_code, end.reason) == (5, "")


def is_running(pid: int) -> bool:
    process = process_tree.read_process(pid)
    return process is not None and not process.is_zombie


@pytest.mark.full
@pytest.mark.parametrize("how", ["kill", "timeout", "lost"])
def test_the_tree_of_one_is_ended_whole(
    how: str, ahead: Supervisors, spec: MakeSpec, living: Living, eventually: Eventually
) -> None:
    async def scenario() -> ProcessEnd:
        _, supervisor = await has_run(ahead, spec("pass", session=SESSION))
        one = spec(WITH_CHILDREN, session=SESSION, timeout_s=1.0 if how == "timeout" else 60.0)
        attempt = asyncio.ensure_future(ahead.run(one))
        await eventually(lambda: len(living(one.marker)) >= 2, "the tree runs")
        if how == "kill":
            ahead.kill(one.marker)
        elif how == "lost":
            os.kill(supervisor, signal.SIGKILL)
        end = await attempt
        assert living(one.marker) == []
        return end

    expected = {"kill": "killed", "timeout": "timeout", "lost": "supervisor_lost"}
    assert asyncio.run(scenario()).reason == expected[how]


@pytest.mark.full
def test_a_stopped_one_does_not_hold_up_the_end(ahead: Supervisors, spec: MakeSpec) -> None:
    async def scenario() -> None:
        _, supervisor = await has_run(ahead, spec("pass", session=SESSION))
        os.kill(supervisor, signal.SIGSTOP)

    asyncio.run(scenario())
    ahead.close()
