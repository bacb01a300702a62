"""The process that supervisors are forked from: whose children they are, and what it says where it cannot fork."""

import errno
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.process.supervisor import process_tree, syscalls
from harness.process.supervisor.fork_server import Forked, ask_for_fork

SERVER = """
import os, socket, sys
from harness.process.supervisor.fork_server import serve
serve(socket.socket(fileno=int(sys.argv[1])), lambda: os.write(1, os.read(0, 9)), lambda request: request[::-1])
"""


@pytest.fixture
def server() -> Iterator[tuple[int, socket.socket]]:
    """A fork server whose supervisors write what they read: its number, and the runner's end of its socket."""
    syscalls.become_subreaper()
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line = [sys.executable, "-c", SERVER, str(its.fileno())]
    with its, subprocess.Popen(line, pass_fds=[its.fileno()]) as process, ours:
        its.close()
        yield process.pid, ours


def fork(server: socket.socket, directory: Path) -> Forked:
    with (directory / "log").open("wb") as log:
        return ask_for_fork(server, log.fileno())


def end(supervisor: Forked) -> int:
    """Close its pipes, which ends it; its exit status."""
    os.close(supervisor.stdin)
    os.close(supervisor.stdout)
    return os.waitstatus_to_exitcode(os.waitpid(supervisor.pid, 0)[1])


def test_a_supervisor_is_our_own_child_in_a_session_of_its_own(
    server: tuple[int, socket.socket], tmp_path: Path
) -> None:
    pid, asked = server
    first, second = fork(asked, tmp_path), fork(asked, tmp_path)
    for supervisor in (first, second):
        found = process_tree.read_process(supervisor.pid)
        assert found is not None
        assert found.parent_pid == os.getpid()
        assert os.getsid(supervisor.pid) == supervisor.pid
        assert os.readlink(f"/proc/{supervisor.pid}/fd/2") == str(tmp_path / "log")
    assert process_tree.children(pid) == []
    os.write(first.stdin, b"first")
    assert os.read(first.stdout, 9) == b"first"
    assert (end(second), end(first)) == (0, 0)
    asked.send(b"asked")
    assert asked.recv(9) == b"deksa"


@pytest.mark.parametrize("max_files", [4, 6, 7])
def test_no_room_for_another_is_an_error_and_no_loss(
    server: tuple[int, socket.socket], tmp_path: Path, max_files: int
) -> None:
    pid, asked = server
    end(fork(asked, tmp_path))  # it has started, with four files open
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (max_files, limits[1]))
    with pytest.raises(OSError, match="cannot be forked") as raised:
        fork(asked, tmp_path)
    assert raised.value.errno == errno.EMFILE
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert end(fork(asked, tmp_path)) == 0
