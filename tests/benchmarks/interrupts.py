"""Interrupt real runs at random moments: afterwards no process of the run lives, no temporary directory is left, and
the outcomes add up.

    python tests/benchmarks/interrupts.py --count 1000 --seed 1

Each trial starts `rlharness run` on files that sleep, fork, leave daemons behind and ignore signals, waits for a
random moment from the first import to past the end, and sends one of: SIGINT, SIGINT twice, SIGTERM, SIGHUP, SIGKILL to
the runner, SIGKILL to a supervisor or to what forks them. Exit status 0 when every trial held.
"""

import argparse
import collections
import contextlib
import datetime
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GONE_S = 15.0
ENDED_S = 60.0

QUICK = "def test_quick(): pass\n"
SLEEPS = "import time\ndef test_one(): time.sleep({s})\ndef test_two(): time.sleep({s})\n"
DAEMON = """
import os, time
def test_daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve('/bin/sleep', ['sleep', '{token}'], {{}})
        os._exit(0)
    time.sleep({s})
"""
DEAF = """
import signal, time
def test_deaf():
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    time.sleep({s})
"""
KINDS = ("SIGINT", "SIGINT twice", "SIGTERM", "SIGHUP", "SIGKILL", "SIGKILL a supervisor")


@dataclass(frozen=True)
class Trial:
    """What one trial did and what was wrong after it; `wrong` is empty where everything held."""

    number: int
    kind: str
    delay_s: float
    exit_code: int
    wrong: str


def write_suite(directory: Path, draw: random.Random, token: str) -> None:
    """Six files, half of them with a GPU need."""
    texts = [QUICK, SLEEPS, DAEMON, DEAF, SLEEPS, DAEMON]
    (directory / "pytest.ini").write_text("[pytest]\n")
    for number, text in enumerate(texts):
        mark = "import pytest\npytestmark = pytest.mark.gpus(1)\n" if number % 2 else ""
        body = text if text is QUICK else text.format(s=round(draw.uniform(0.05, 1.5), 2), token=token)
        (directory / f"test_{number}.py").write_text(mark + body)


def belongs(pid: int, token: str) -> bool:
    """Whether a living process carries the trial's token, in its environment or among its arguments."""
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            return False
        needle = token.encode()
        return (
            needle in Path(f"/proc/{pid}/environ").read_bytes() or needle in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
    return False


def living(token: str) -> list[int]:
    """Processes of one trial."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and belongs(int(name), token)]


def supervisors_of(pid: int) -> list[int]:
    """Direct children of the runner: supervisors, and the process they are forked from."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(name))
    return found


def send(runner: "subprocess.Popen[bytes]", kind: str, draw: random.Random) -> None:
    """Do to the runner what `kind` says."""
    with contextlib.suppress(ProcessLookupError):
        if kind == "SIGKILL a supervisor":
            if children := supervisors_of(runner.pid):
                os.kill(draw.choice(children), signal.SIGKILL)
        elif kind == "SIGINT twice":
            os.kill(runner.pid, signal.SIGINT)
            time.sleep(draw.uniform(0, 0.3))
            os.kill(runner.pid, signal.SIGINT)
        else:
            os.kill(runner.pid, signal.Signals[kind])


def wrong_in_record(directory: Path) -> str:
    """What does not add up in the run's record; empty where it does, or where nothing was collected."""
    record = directory / ".rlharness" / "runs" / "latest" / "events.jsonl"
    events = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    planned = [unit["path"] for e in events if e["event"] == "collection_finished" for unit in e["units"]]
    ended = collections.Counter(e["result"]["unit"]["path"] for e in events if e["event"] == "unit_finished")
    if events and events[-1]["event"] != "run_finished":
        return f"the record ends with {events[-1]['event']}"
    if sorted(ended.elements()) != sorted(planned):
        return f"{len(planned)} units were planned, outcomes were {dict(ended)}"
    return ""


def left_in(scratch: Path) -> str:
    """What is left of temporary directories; empty where nothing is."""
    left = [path.name for path in scratch.iterdir() if path.name.startswith("rlh-")]
    return f"temporary directories are left: {left}" if left else ""


def kind_of(number: int, seed: int) -> str:
    """What trial `number` will send."""
    return random.Random(f"{seed}/{number}").choice(KINDS)


def trial(number: int, seed: int, containment: str) -> Trial:
    """Run one trial; everything random in it follows from `seed` and `number`."""
    draw = random.Random(f"{seed}/{number}")
    token = f"98765{seed:04d}{number:06d}"
    kind, delay_s = draw.choice(KINDS), draw.uniform(0.05, 4.0)
    # The path is short: the runner makes its own temporary directories in it.
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        write_suite(directory, draw, token)
        command = [sys.executable, "-m", "harness", "run", "--gpus", "sim:2", "--cpu-units", "2", "--grace", "1"]
        runner = subprocess.Popen(
            [*command, "--containment", containment],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT), "RLH_TRIAL": token, "TMPDIR": name, "XDG_CACHE_HOME": name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            runner.wait(timeout=delay_s)
        send(runner, kind, draw)
        try:
            _, stderr = runner.communicate(timeout=ENDED_S)
        except subprocess.TimeoutExpired:
            runner.kill()
            runner.communicate()
            return Trial(number, kind, delay_s, -99, f"the runner did not end within {ENDED_S:g} s")
        until = time.monotonic() + GONE_S
        while (left := living(token)) and time.monotonic() < until:
            time.sleep(0.05)
        wrong = f"still alive: {left}" if left else ""
        if not wrong and kind != "SIGKILL":
            wrong = wrong_in_record(directory) or left_in(directory)
        if not wrong and b"Traceback" in stderr and b"KeyboardInterrupt" not in stderr:
            wrong = stderr.decode(errors="replace")[-2000:]
        return Trial(number, kind, delay_s, runner.returncode, wrong)


def main() -> int:
    """Run the trials, print what they showed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial, to repeat one")
    parser.add_argument("--containment", default="auto", choices=["auto", "cgroup", "pidns", "subreaper"])
    arguments = parser.parse_args()
    began = time.monotonic()
    numbers = range(arguments.first, arguments.first + arguments.count)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        trials = list(pool.map(lambda number: trial(number, arguments.seed, arguments.containment), numbers))
    bad = [t for t in trials if t.wrong]
    for t in bad:
        print(f"trial {t.number}: {t.kind} after {t.delay_s:.2f} s, exit {t.exit_code}: {t.wrong}")
    kinds = collections.Counter(t.kind for t in trials)
    codes = collections.Counter(t.exit_code for t in trials)
    today = datetime.datetime.now(datetime.UTC).date()
    print(
        f"{today}, Python {platform.python_version()}, {platform.system()} {platform.release()}, {os.cpu_count()} cores"
    )
    print(f"containment {arguments.containment}, seed {arguments.seed}, {time.monotonic() - began:.0f} s")
    print("sent: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    print("exit codes: " + ", ".join(f"{code}: {count}" for code, count in sorted(codes.items())))
    print(f"{len(trials) - len(bad)} of {len(trials)} trials held")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
