"""What may go wrong around an attempt: its supervisor killed, its runner killed, a process that SIGKILL does not end,
and orders at random moments. Afterwards nobody lives."""

import asyncio
import os
import random
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.process import supervisor_client
from harness.process.supervisor import process_tree, rescue
from harness.process.supervisor.process_tree import Process
from harness.process.supervisor_client import ProcessEnd, ProcessSpec, Supervisors

MakeSpec = Callable[..., ProcessSpec]
Living = Callable[..., list[Process]]
Eventually = Callable[[Callable[[], object], str], Awaitable[None]]
WholeTree = Callable[[ProcessSpec], Awaitable[None]]

FREEZER = Path("/sys/fs/cgroup/freezer")
TREE = """
import os, sys, time
def become(env):  # the marker stays in the arguments alone
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)", sys.argv[1]], env)
if os.fork() == 0:  # a child, as multiprocessing makes it
    become(os.environ)
if os.fork() == 0:  # a daemon that nothing leads back to
    os.setsid()
    if os.fork() == 0:
        become({})
    os._exit(0)
time.sleep(60)
"""
TREE_SIZE = 3


def supervisor_pids(*specs: ProcessSpec) -> list[int]:
    """Living supervisors of these attempts: our children whose complaints go to their supervisor.log."""
    logs = {os.path.join(spec.directory, "supervisor.log") for spec in specs}
    found = []
    for process in process_tree.children(os.getpid()):
        with suppress(OSError):  # it has ended
            if os.readlink(f"/proc/{process.pid}/fd/2") in logs:
                found.append(process.pid)
    return found


def daemons(living: Living, spec: ProcessSpec) -> list[int]:
    """Those of an attempt's processes that have not its environment."""
    bearing = {process.pid for process in process_tree.bearing(spec.marker)}
    return [process.pid for process in living(spec.marker) if process.pid not in bearing]


@pytest.fixture
def whole_tree(living: Living, eventually: Eventually) -> Callable[[ProcessSpec], Awaitable[None]]:
    """Waits until all of an attempt's tree runs."""

    def runs(spec: ProcessSpec) -> bool:
        return len(daemons(living, spec)) == 1 and len(living(spec.marker)) == TREE_SIZE

    return lambda spec: eventually(lambda: runs(spec), "the whole tree runs")


@pytest.fixture(autouse=True)
def everybody_is_reaped(supervisors: Supervisors, new_children: Callable[[], list[Process]]) -> Iterator[None]:
    """No orphan stays, not even as a zombie, and no supervisor but those that wait for an attempt."""
    yield
    waiting = {each.pid for each in supervisors._idle}
    assert [child for child in new_children() if child.pid not in waiting] == []


STOPS_ITS_SUPERVISOR = "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(60)\n"


@pytest.mark.full
def test_the_limits_of_an_attempt_hold_where_it_stops_its_supervisor(
    supervisors: Supervisors, spec: MakeSpec, living: Living
) -> None:
    stopping = spec(STOPS_ITS_SUPERVISOR, timeout_s=2.0, grace_s=0.2)
    end = asyncio.run(supervisors.run(stopping))
    assert (end.reason, end.unkillable) == ("timeout", ())
    assert living(stopping.marker) == []


@pytest.mark.full
def test_a_supervisor_that_stays_stopped_is_lost_once_it_is_overdue(
    supervisors: Supervisors, spec: MakeSpec, living: Living, whole_tree: WholeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue, "STOPPED", "none")  # as of one that is stopped again and again
    monkeypatch.setattr(supervisor_client, "OVERDUE_S", 0.5)
    stopped = spec(TREE, timeout_s=3.0, grace_s=0.2, unkillable_after_s=0.2)

    async def scenario() -> ProcessEnd:
        attempt = asyncio.ensure_future(supervisors.run(stopped))
        await whole_tree(stopped)
        [pid] = supervisor_pids(stopped)
        os.kill(pid, signal.SIGSTOP)
        return await attempt

    end = asyncio.run(scenario())
    assert (end.reason, end.unkillable) == ("supervisor_lost", ())
    assert living(stopped.marker) == []


def test_the_loss_of_one_supervisor_touches_nobody_else(
    supervisors: Supervisors, spec: MakeSpec, living: Living, whole_tree: WholeTree
) -> None:
    bystander, lost = spec(TREE), spec(TREE)
    with subprocess.Popen(["/bin/sleep", "60"]) as inherited:  # a child that the runner had before

        async def scenario() -> ProcessEnd:
            attempts = [asyncio.ensure_future(supervisors.run(bystander))]
            await whole_tree(bystander)
            attempts.append(asyncio.ensure_future(supervisors.run(lost)))
            await whole_tree(lost)
            [pid] = supervisor_pids(lost)
            os.kill(pid, signal.SIGKILL)
            assert (await attempts[1]).reason == "supervisor_lost"
            assert len(living(bystander.marker)) == TREE_SIZE
            supervisors.kill(bystander.marker)
            return await attempts[0]

        assert asyncio.run(scenario()).reason == "killed"
        assert inherited.poll() is None
        inherited.kill()


def test_a_supervisor_lost_between_two_attempts_costs_none(
    supervisors: Supervisors, spec: MakeSpec, living: Living
) -> None:
    before, after = spec("import sys; sys.exit(3)"), spec("import sys; sys.exit(4)")
    assert asyncio.run(supervisors.run(before)).exit_code == 3
    pid = supervisors._idle[-1].pid
    os.kill(pid, signal.SIGTERM)  # not meant for the next attempt
    assert asyncio.run(supervisors.run(spec("import sys; sys.exit(2)"))).exit_code == 2
    os.kill(pid, signal.SIGKILL)
    end = asyncio.run(supervisors.run(after))
    assert (end.exit_code, end.reason) == (4, "")
    assert process_tree.read_process(pid) is None, "it has been reaped"


def test_a_parent_that_cannot_fork_costs_one_supervisor_and_not_one_an_attempt(
    supervisors: Supervisors, spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost:
        pid = 0

        async def fork(self, stderr: int) -> None:
            return None

    monkeypatch.setattr(supervisors, "parent", Lost())
    ends = [asyncio.run(supervisors.run(spec("import sys; sys.exit(5)", session={}))) for _ in range(3)]
    assert [end.exit_code for end in ends] == [5, 5, 5]
    assert len(supervisors._idle) == 1


def test_a_supervisor_that_gets_sigterm_ends_its_tree_and_carries_out_the_next_attempt(
    supervisors: Supervisors, spec: MakeSpec, whole_tree: WholeTree
) -> None:
    ended = spec(TREE)

    async def scenario() -> ProcessEnd:
        attempt = asyncio.ensure_future(supervisors.run(ended))
        await whole_tree(ended)
        [pid] = supervisor_pids(ended)
        os.kill(pid, signal.SIGTERM)
        return await attempt

    assert asyncio.run(scenario()).reason == "supervisor_lost"
    assert asyncio.run(supervisors.run(spec("import sys; sys.exit(4)"))).exit_code == 4


@contextmanager
def frozen(pid: int, name: str) -> Iterator[None]:
    """Put a process beyond the reach of SIGKILL, as a driver call that never returns does."""
    group = FREEZER / name
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        while (group / "cgroup.procs").read_text():
            signal.sigtimedwait([], 0.01)
        group.rmdir()


@pytest.mark.full
def test_an_unkillable_process_is_an_outcome_and_keeps_its_supervisor(
    *,
    supervisors: Supervisors,
    spec: MakeSpec,
    living: Living,
    eventually: Eventually,
    whole_tree: WholeTree,
) -> None:
    older, stuck = spec(TREE), spec(TREE, unkillable_after_s=0.3)
    try:
        (FREEZER / stuck.marker).mkdir()
        (FREEZER / stuck.marker).rmdir()
    except OSError as error:
        pytest.skip(f"nothing can be made unkillable here, which takes cgroup v1's freezer and root: {error}")

    async def scenario() -> ProcessEnd:
        lost = asyncio.ensure_future(supervisors.run(older))
        await whole_tree(older)
        attempt = asyncio.ensure_future(supervisors.run(stuck))
        await whole_tree(stuck)
        [staying] = supervisor_pids(stuck)
        [daemon] = daemons(living, stuck)
        with frozen(daemon, stuck.marker):
            supervisors.kill(stuck.marker)
            end = await attempt
            assert [p.pid for p in living(stuck.marker)] == [daemon], "all others have been killed"

            [pid] = supervisor_pids(older)
            os.kill(pid, signal.SIGKILL)
            assert (await lost).reason == "supervisor_lost"
            assert supervisor_pids(stuck) == [staying], "it stays, even while the orphans of another are ended"
        await eventually(lambda: not living(stuck.marker), "it goes once it can")
        await eventually(lambda: not supervisor_pids(stuck), "its supervisor goes with it, and is reaped")
        return end

    end = asyncio.run(scenario())
    assert end.reason == "killed"
    assert len(end.unkillable) == 1
    assert stuck.marker in end.unkillable[0]


@pytest.mark.full
def test_orders_and_losses_at_random_moments(supervisors: Supervisors, spec: MakeSpec, living: Living) -> None:
    """Whatever is done to an attempt, and whenever: exactly one end, one word of terminating at most, nobody alive."""
    num_attempts, at_once = 34, 6  # a hundred with all three tiers
    moments = random.Random(20260301)

    async def one_attempt() -> tuple[str, str]:
        one, reasons = spec(TREE), list[str]()
        attempt = asyncio.ensure_future(supervisors.run(one, reasons.append))
        act = moments.choice(["cancel", "kill", "task", "task twice", "supervisor"])
        await asyncio.sleep(moments.random() * 0.15)
        match act:
            case "cancel":
                supervisors.cancel(one.marker)
            case "kill":
                supervisors.kill(one.marker)
            case "supervisor":
                [pid] = supervisor_pids(one)
                os.kill(pid, signal.SIGKILL)
            case _:
                attempt.cancel()
        if act == "task twice":
            await asyncio.sleep(moments.random() * 0.05)
            attempt.cancel()
        try:
            reason = (await attempt).reason
        except asyncio.CancelledError:
            reason = "task"
        assert living(one.marker) == []
        assert len(reasons) <= 1
        return act, reason

    async def scenario() -> set[tuple[str, str]]:
        seen: set[tuple[str, str]] = set()
        for _ in range(0, num_attempts, at_once):
            seen |= set(await asyncio.gather(*(one_attempt() for _ in range(at_once))))
        return seen

    expected = {"cancel": "cancelled", "kill": "killed", "supervisor": "supervisor_lost"}
    assert {(act, expected.get(act, "task")) for act in [*expected, "task", "task twice"]} == asyncio.run(scenario())
