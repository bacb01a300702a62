"""Stacks of a hung tree, seen from outside."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.process.clock import SystemClock
from harness.process.supervisor import process_tree, stacks
from harness.process.supervisor.process_tree import Process
from harness.process.supervisor_client import ProcessSpec, Supervisors
from tests.support.fake_clock import FakeClock

PY_SPY = Path(sys.executable).with_name("py-spy")
HANGS = """
import ctypes, os, time
def at_the_bottom():
    print("ready", flush=True)
    time.sleep(60)
def in_the_child():
    ctypes.CDLL(None).sleep(60)
if os.fork() == 0:
    in_the_child()
at_the_bottom()
"""


@pytest.fixture
def tree() -> Iterator[list[Process]]:
    """A Python process and its child that is none."""
    program = "import os, subprocess, time; subprocess.Popen(['/bin/sleep', '60']); os.write(1, b'x'); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE) as top:

        def both() -> list[Process]:
            found = [
                process_tree.read_process(pid) for pid in (top.pid, *(p.pid for p in process_tree.children(top.pid)))
            ]
            return [process for process in found if process]

        try:
            assert top.stdout is not None
            top.stdout.read(1)
            while [process.state for process in both()] != ["S", "S"]:
                signal.sigtimedwait([], 0.01)
            yield both()
        finally:
            for process in reversed(both()):
                process_tree.send_signal(process, signal.SIGKILL)


def dump(processes: list[Process], path: Path, py_spy: str = "") -> tuple[int, str]:
    num_python = stacks.dump_stacks(processes, str(path), py_spy, SystemClock())
    return num_python, path.read_text()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """A program in py-spy's place."""

    def write(text: str) -> str:
        path = tmp_path / "py-spy"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return write


@pytest.mark.full
def test_stacks_of_a_hung_tree_are_python_stacks(backend: str, run_id: str, spec: Callable[..., ProcessSpec]) -> None:
    if not PY_SPY.exists():
        pytest.skip(f"no {PY_SPY}")
    one = spec(HANGS, timeout_s=0.6)
    with closing(Supervisors(backend, run_id, str(PY_SPY))) as supervisors:
        end = asyncio.run(supervisors.run(one))
    text = Path(one.directory, "stacks.txt").read_text()
    if "Permission Denied" in text or "Operation not permitted" in text:
        pytest.skip("this machine does not let a process look at its sibling")
    assert end.reason == "timeout"
    assert text.count("== process") == 2
    assert "at_the_bottom (<string>:5)" in text
    assert "in_the_child (<string>:7)" in text


def test_without_py_spy_there_is_what_the_kernel_says(tree: list[Process], tmp_path: Path) -> None:
    num_python, text = dump(tree, tmp_path / "stacks.txt")
    assert num_python == 0
    assert f"== process {tree[0].pid}, parent {os.getpid()}: {sys.executable} -I -S -c" in text
    assert "no Python stack: py-spy is not installed" in text
    assert "no Python stack: sleep is not Python" in text
    assert f"  thread {tree[1].pid} sleep: S (sleeping), waits in " in text
    assert "signals blocked 0000000000000000" in text


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("echo 'Permission denied' >&2; exit 1", "Permission denied"),
        ("exit 3", "py-spy exited with 3"),
        ("exec sleep 60", "py-spy gave no answer in 0.2 s"),
    ],
)
def test_why_there_is_no_stack_is_told(
    answer: str, reason: str, tree: list[Process], script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "PER_BATCH_S", 0.2)
    py_spy = script(answer)
    num_python, text = dump(tree[:1], Path(py_spy).with_name("stacks.txt"), py_spy)
    assert num_python == 0
    assert reason in text
    assert "waits in" in text, "and then what the kernel says"


def test_many_processes_and_gone_ones_are_counted(
    tree: list[Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "MAX_PROCESSES", 2)
    gone = tree[0]._replace(pid=2**22 + 1)
    _, text = dump([tree[0], gone, tree[1]], tmp_path / "stacks.txt")
    assert text.count("== process") == 2
    assert "== process 4194305" in text
    assert "no Python stack: No such file or directory\n  gone\n" in text
    assert text.endswith("... and 1 more processes\n")


def test_the_tree_is_not_looked_at_for_ever(tree: list[Process], tmp_path: Path, script: Callable[[str], str]) -> None:
    class Hurrying(FakeClock):
        """A clock on which whole minutes pass between two looks."""

        def monotonic_s(self) -> float:
            self.advance(60)
            return super().monotonic_s()

    path = tmp_path / "stacks.txt"
    stacks.dump_stacks(tree, str(path), script("exit 0"), Hurrying())
    assert "no Python stack: no time was left" in path.read_text()
