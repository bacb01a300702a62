"""Everything that one process tree may do to its supervisor, by each means of holding it. All at once: the supervisors
are many, and what one tree does must not reach another."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.process.supervisor.process_tree import Process
from harness.process.supervisor_client import ProcessEnd, ProcessSpec, Supervisors

LIMIT_S = 1.0  # of those that hang


@dataclass(frozen=True)
class Case:
    """A program, and how its attempt must end."""

    program: str
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    num_left_behind: int = 0
    limits: dict[str, Any] = field(default_factory=lambda: {"timeout_s": 20.0})


def hangs(program: str, signal: int = 9) -> Case:
    return Case(program, signal=signal, reason="timeout", limits={"timeout_s": LIMIT_S})


CASES = {
    "hangs in C, signals blocked": hangs(
        "import ctypes, signal; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals());"
        "ctypes.CDLL(None).pause()"
    ),
    "ignores SIGINT and SIGTERM": hangs(
        "import signal, time\nfor s in (2, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: time.sleep(9)"
    ),
    "is stopped": hangs("import os, signal; os.fork(); os.kill(os.getpid(), signal.SIGSTOP)"),
    "its first thread is gone": hangs(  # shows as a zombie, and lives
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start();"
        "ctypes.CDLL(None).pthread_exit(None)",
        signal=15,
    ),
    "forks anew on SIGTERM": hangs(
        "import os, signal, time\n"
        "def again(number, frame):\n"
        "    for _ in range(2):\n"
        "        if os.fork() == 0: break\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGTERM, again)\n"
        "for _ in range(40):\n"
        "    if os.fork() == 0: break\n"
        "until_s = time.monotonic() + 20\n"
        "while time.monotonic() < until_s: time.sleep(0.5)"
    ),
    "forks a child that outlives it": Case(
        "import os, time\nif os.fork() == 0: time.sleep(60)", exit_code=0, num_left_behind=1
    ),
    "a daemon with an empty environment": Case(
        "import os\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: os.execve('/bin/sleep', ['sleep', '60'], {})\n"
        "    os._exit(0)\n"
        "os.wait()",
        exit_code=0,
        num_left_behind=1,
    ),
    "a grandchild keeps its output open": Case(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    if os.fork() == 0:\n"
        "        while True: print('still here', flush=True); time.sleep(0.1)\n"
        "    os._exit(0)\n"
        "os.wait(); time.sleep(0.2)",
        exit_code=0,
        num_left_behind=1,
    ),
    "is killed by its child": Case("import os\nif os.fork() == 0: os.kill(os.getppid(), 9)\nos.wait()", signal=9),
    "kills its own group": Case("import os; os.kill(0, 9)", signal=9),
    "deletes its working directory": Case(
        "import os; os.mkdir('d'); os.chdir('d'); os.rmdir('../d'); os.fork()", exit_code=0
    ),
    "closes all its files": Case("import os; os.closerange(0, 256)", exit_code=0),
    "leaves zombies": Case(
        "import os, time\nfor _ in range(9):\n    if os.fork() == 0: os._exit(0)\ntime.sleep(0.1)", exit_code=0
    ),
}


@pytest.fixture(scope="module")
def specs(module_spec: Callable[..., ProcessSpec], backend: str) -> dict[str, ProcessSpec]:
    """An attempt for each case."""
    return {name: module_spec(case.program, **case.limits) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def ends(specs: dict[str, ProcessSpec], supervisors: Supervisors) -> dict[str, ProcessEnd]:
    """How they ended, having run at the same time."""

    async def together() -> list[ProcessEnd]:
        return await asyncio.gather(*map(supervisors.run, specs.values()))

    return dict(zip(specs, asyncio.run(together()), strict=True))


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_it_ends_as_it_must(
    name: str, ends: dict[str, ProcessEnd], specs: dict[str, ProcessSpec], living: Callable[..., list[Process]]
) -> None:
    case, end = CASES[name], ends[name]
    assert (end.exit_code, end.signal, end.reason) == (case.exit_code, case.signal, case.reason)
    assert len(end.left_behind) == case.num_left_behind
    assert end.unkillable == ()
    assert living(specs[name].marker) == []


def test_those_left_behind_are_named(ends: dict[str, ProcessEnd]) -> None:
    pid, state, command = ends["a daemon with an empty environment"].left_behind[0].split(" ", 2)
    assert pid.isdigit()
    assert state == "S"
    assert command == "sleep 60"


def test_output_is_kept_while_a_grandchild_writes(specs: dict[str, ProcessSpec], ends: dict[str, ProcessEnd]) -> None:
    assert ends["a grandchild keeps its output open"].exit_code == 0
    assert Path(specs["a grandchild keeps its output open"].directory, "output.log").read_bytes().count(b"still") > 5
