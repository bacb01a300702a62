"""A program in the terminal of another process: its status, its signals, its files, what it inherits."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.bits.errors import UsageError
from harness.process.supervisor.foreground import run_in_foreground
from harness.process.supervisor.process_tree import Process, read_process
from tests.support.suite_runs import PATIENCE_S, environment, until

RUN = """
import os, sys
from harness.process.supervisor.foreground import run_in_foreground
status = run_in_foreground(sys.argv[1:], dict(os.environ))
print("status", status, flush=True)
"""
WAITS = """
import signal, sys, time
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append("INT"))
signal.signal(signal.SIGUSR1, lambda *_: heard.append("USR1"))
def end(*_):
    print("heard", *heard, flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
open("ready", "w").close()
while True:
    time.sleep(0.01)
    if heard:
        open("heard-" + heard[-1], "w").close()
"""
SHOWS = """
import json, os, signal
blocked = [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, ())]
with open("/proc/self/status") as file:
    ignored = next(line.split()[1] for line in file if line.startswith("SigIgn"))
print(json.dumps({"blocked": blocked, "ignored": int(ignored, 16), "files": sorted(os.listdir("/proc/self/fd"))}))
"""


@contextmanager
def started(directory: Path, *program: str) -> Iterator["subprocess.Popen[str]"]:
    """A program in the foreground of a process; both are ended at the end, where they have not."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, *program],
        cwd=directory,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def is_alive(process: Process) -> bool:
    now = read_process(process.pid)
    return now is not None and not now.is_zombie and now.start_ticks == process.start_ticks


@pytest.mark.parametrize(
    ("code", "status"),
    [("pass", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_the_status_is_the_programs(tmp_path: Path, code: str, status: int) -> None:
    with started(tmp_path, sys.executable, "-c", code) as process:
        assert process.communicate(timeout=PATIENCE_S)[0] == f"status {status}\n"


def test_signals_that_somebody_sends_are_passed_on(tmp_path: Path) -> None:
    with started(tmp_path, sys.executable, "-c", WAITS) as process:
        until((tmp_path / "ready").exists, process)
        for name in ("USR1", "INT"):
            process.send_signal(getattr(signal, f"SIG{name}"))
            until((tmp_path / f"heard-{name}").exists, process)
        process.terminate()
        assert process.communicate(timeout=PATIENCE_S)[0] == "heard USR1 INT\nstatus 7\n"


def test_a_program_does_not_outlive_who_watches_over_it(tmp_path: Path) -> None:
    """What it has started itself does: of that nobody here is told."""
    code = (
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "open('pids.new', 'w').write(f'{os.getpid()} {child.pid}')\n"
        "os.rename('pids.new', 'pids')\n"
        "time.sleep(600)"
    )
    with started(tmp_path, sys.executable, "-c", code) as process:
        until((tmp_path / "pids").exists, process)
        program, child = (read_process(int(pid)) for pid in (tmp_path / "pids").read_text("utf-8").split())
        assert program is not None
        assert child is not None
        process.kill()
        process.wait(timeout=PATIENCE_S)
        until_s = time.monotonic() + 10.0
        while is_alive(program) and time.monotonic() < until_s:
            time.sleep(0.01)
        found = is_alive(program), is_alive(child)
        for left in filter(is_alive, (program, child)):
            os.kill(left.pid, signal.SIGKILL)
    assert found == (False, True)


def test_the_program_inherits_what_it_would_without_us(tmp_path: Path) -> None:
    def shown(*command: str) -> dict[str, object]:
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
        told: dict[str, object] = json.loads(done.stdout.splitlines()[0])
        return told

    alone = shown(sys.executable, "-c", SHOWS)
    assert shown(sys.executable, "-c", RUN, sys.executable, "-c", SHOWS) == alone
    assert alone["blocked"] == []


def test_signals_that_came_with_the_programs_end_end_nothing_else(tmp_path: Path) -> None:
    code = (
        "import os, signal; open('pid', 'w').write(str(os.getpid()))\n"
        "for name in ('STOP', 'INT', 'TERM'): os.kill(os.getppid(), getattr(signal, 'SIG' + name))"
    )

    def is_zombie() -> bool:
        path = tmp_path / "pid"
        found = read_process(int(path.read_text() or 0)) if path.exists() else None
        return found is not None and found.is_zombie

    with started(tmp_path, sys.executable, "-c", code) as process:
        until(is_zombie, process)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=PATIENCE_S)[0] == "status 0\n"


def test_what_cannot_be_started_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^frobnicate cannot be started: No such file") as nowhere:
        run_in_foreground(["frobnicate"], {})
    assert "spelling" in nowhere.value.remedy
    script = tmp_path / "script"
    script.write_text("echo 3\n", encoding="utf-8")
    script.chmod(0o755)
    with pytest.raises(UsageError, match="script cannot be started") as no_program:
        run_in_foreground([str(script)], {})
    assert "#!" in no_program.value.remedy
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
