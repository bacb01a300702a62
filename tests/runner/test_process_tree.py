"""Reading /proc, and signalling exactly the process that was meant."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import harness
from harness.process.supervisor import process_tree
from harness.process.supervisor.process_tree import Process

READY = "import sys, time; print('ready', flush=True); time.sleep(60)"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that has begun to sleep."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", READY, "argument"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while known(process.pid).state != "S":
            signal.sigtimedwait([], 0.01)
        yield process
        process.kill()


def known(pid: int) -> Process:
    process = process_tree.read_process(pid)
    assert process is not None
    return process


@settings(max_examples=50)
@given(st.binary(min_size=1, max_size=15).filter(lambda name: b"\0" not in name and name.strip() != b""))
def test_any_name_can_be_read(name: bytes) -> None:
    """The kernel prints a name as it is, brackets, blanks and line ends included."""
    comm = Path("/proc/self/comm")
    before, process_before = comm.read_bytes(), known(os.getpid())
    try:
        comm.write_bytes(name)
        process = known(os.getpid())
    finally:
        comm.write_bytes(before.rstrip(b"\n"))
    assert process.start_ticks == process_before.start_ticks
    assert process.parent_pid == process_before.parent_pid
    assert process.name.replace("\r", "\n") == name.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")


def test_a_recycled_number_is_never_hit(child: subprocess.Popen[bytes]) -> None:
    process = known(child.pid)
    assert process_tree.send_signal(process._replace(start_ticks=process.start_ticks - 1), signal.SIGKILL) == ""
    assert known(child.pid).state == "S"
    assert process_tree.send_signal(process, signal.SIGKILL) == ""
    assert child.wait() == -signal.SIGKILL
    assert process_tree.send_signal(process, signal.SIGKILL) == "", "gone is as good as sent"


def test_without_pidfds_it_signals_all_the_same(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    process = known(child.pid)
    assert process_tree.send_signal(process._replace(start_ticks=0), signal.SIGKILL) == ""
    assert known(child.pid).state == "S"
    assert process_tree.send_signal(process, signal.SIGTERM) == ""
    assert child.wait() == -signal.SIGTERM
    assert process_tree.send_signal(process, signal.SIGTERM) == ""


def test_why_a_signal_could_not_be_sent_is_told(child: subprocess.Popen[bytes], give_up_root: str) -> None:
    program = (
        "from harness.process.supervisor import process_tree\n"
        f"{give_up_root}\n"
        f"print(process_tree.send_signal(process_tree.read_process({child.pid}), 0))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(harness.__file__).parents[1])}
    assert subprocess.check_output([sys.executable, "-c", program], env=env) == b"Operation not permitted\n"


def test_a_marker_is_found_as_a_whole_value_only() -> None:
    def bearing(value: str) -> list[int]:
        return [process.pid for process in process_tree.bearing(value)]

    mark = f"run{os.getpid()}-0001"  # tests that run beside this one have markers too
    with subprocess.Popen(["/bin/sleep", "60"], env={"A": "1", "MARK": mark, "Z": f"{mark}2"}) as process:
        assert bearing(mark) == [process.pid]
        assert bearing(f"{mark}2") == [process.pid]
        assert bearing(mark[:-1]) == []
        assert bearing(mark[1:]) == []
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert bearing(mark) == [], "a zombie has ended"


def test_a_process_that_is_exiting_is_given_longer_than_one_that_does_not_end(child: subprocess.Popen[bytes]) -> None:
    living = known(child.pid)
    assert not process_tree.is_exiting(child.pid)
    assert not process_tree.is_unkillable(9.9, 10.0, lambda: [living])
    assert process_tree.is_unkillable(10.0, 10.0, lambda: [living])
    child.kill()
    while not known(child.pid).is_zombie:  # which is as far as an exit can go without being reaped
        signal.sigtimedwait([], 0.01)
    assert process_tree.is_exiting(child.pid)
    assert not process_tree.is_unkillable(10.0, 10.0, lambda: [living])
    assert process_tree.is_unkillable(process_tree.EXITING_S, 10.0, lambda: [living])
    assert not process_tree.is_exiting(2**22 + 1)
