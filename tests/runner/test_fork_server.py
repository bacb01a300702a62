"""The process that supervisors are forked from: whose children they are, what its loss costs, what it leaves behind."""

import asyncio
import errno
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.process.supervisor import fork_server, process_tree, syscalls
from harness.process.supervisor.fork_server import Forked, ForkServer, ask_for_fork
from harness.process.supervisor.process_tree import Process
from harness.process.supervisor_client import ProcessEnd, ProcessSpec, Supervisors

Eventually = Callable[[Callable[[], object], str], Awaitable[None]]
NUM_FILES = 5
"""Of a supervisor: its three, and a pipe by which signals wake it."""
QUICK_S = 2.0
"""Long enough for another Python to start and answer, also on a busy machine."""


@pytest.fixture(autouse=True)
def nothing_stays(new_children: Callable[[], list[Process]]) -> Iterator[None]:
    """No child of a test, not even as a zombie, and no open file."""
    num_files = len(os.listdir("/proc/self/fd"))
    yield
    assert new_children() == []
    assert len(os.listdir("/proc/self/fd")) == num_files


@pytest.fixture
def server(nothing_stays: None) -> Iterator[ForkServer]:
    syscalls.become_subreaper()
    with closing(ForkServer(answer_s=QUICK_S)) as server:
        yield server


@pytest.fixture
def fork(server: ForkServer, tmp_path: Path) -> Callable[[], Forked]:
    """Forks a supervisor whose complaints go to a file `log`."""

    def one() -> Forked:
        with (tmp_path / "log").open("wb") as log:
            return server.fork(log.fileno())

    return one


def end(supervisor: Forked) -> int:
    """Close its pipes, which ends it; its exit status."""
    os.close(supervisor.stdin)
    os.close(supervisor.stdout)
    return os.waitstatus_to_exitcode(os.waitpid(supervisor.pid, 0)[1])


def test_a_supervisor_is_our_own_child_in_a_session_of_its_own(
    server: ForkServer, fork: Callable[[], Forked], tmp_path: Path, eventually: Eventually
) -> None:
    supervisors = [fork() for _ in range(3)]
    for supervisor in supervisors:
        found = process_tree.read_process(supervisor.pid)
        assert found is not None
        assert found.parent_pid == os.getpid()
        assert os.getsid(supervisor.pid) == supervisor.pid
        assert os.readlink(f"/proc/{supervisor.pid}/fd/2") == str(tmp_path / "log")

    async def have_let_go() -> None:
        names = [f"/proc/{supervisor.pid}/fd" for supervisor in supervisors]
        await eventually(lambda: {len(os.listdir(name)) for name in names} == {NUM_FILES}, "they let go of all others")

    asyncio.run(have_let_go())
    assert process_tree.children(server.pid) == []
    assert [end(supervisor) for supervisor in supervisors] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.parametrize("signum", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.full)])
def test_a_lost_fork_server_is_replaced(server: ForkServer, fork: Callable[[], Forked], signum: signal.Signals) -> None:
    before, lost_pid = fork(), server.pid
    os.kill(lost_pid, signum)
    after = fork()
    assert server.pid != lost_pid
    assert process_tree.read_process(lost_pid) is None, "it has been reaped"
    assert (end(before), end(after)) == (0, 0)


@pytest.mark.parametrize("max_files", [4, 6, 7])
def test_no_room_for_another_is_an_error_and_no_loss(
    server: ForkServer, fork: Callable[[], Forked], max_files: int
) -> None:
    end(fork())  # it has started, with three files open
    pid, limits = server.pid, resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (max_files, limits[1]))
    with pytest.raises(OSError, match="cannot be forked") as raised:
        fork()
    assert raised.value.errno == errno.EMFILE
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert end(fork()) == 0
    assert server.pid == pid


def test_a_fork_that_was_killed_before_it_could_answer_is_asked_for_again(
    server: ForkServer, fork: Callable[[], Forked], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, asked = server.pid, []

    def ask(socket_: socket.socket, stderr: int) -> Forked:
        asked.append(stderr)
        if len(asked) == 1:
            raise BlockingIOError(errno.EAGAIN, "a supervisor cannot be forked")
        return ask_for_fork(socket_, stderr)

    monkeypatch.setattr(fork_server, "ask_for_fork", ask)
    assert end(fork()) == 0
    assert (len(asked), server.pid) == (2, pid)


def test_attempts_do_not_notice_its_loss(
    backend: str,
    run_id: str,
    spec: Callable[..., ProcessSpec],
    eventually: Eventually,
    new_children: Callable[[], list[Process]],
) -> None:
    running = spec("import os, sys, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nsys.exit(6)")
    later = spec("import sys; sys.exit(7)")

    async def scenario(supervisors: Supervisors) -> list[ProcessEnd]:
        [fork_server] = new_children()
        first = asyncio.ensure_future(supervisors.run(running))
        await eventually(lambda: process_tree.bearing(running.marker), "the first one runs")
        process_tree.send_signal(fork_server, signal.SIGKILL)
        second = await supervisors.run(later)
        Path(running.directory, "go").touch()
        return [await first, second]

    with closing(Supervisors(backend, run_id)) as supervisors:
        ends = asyncio.run(scenario(supervisors))
    assert [(e.exit_code, e.reason) for e in ends] == [(6, ""), (7, "")]
