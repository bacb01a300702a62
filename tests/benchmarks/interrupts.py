"""Disturb real runs at random moments: afterwards no process of the run lives, no temporary directory or control group
is left, and every unit has one outcome.

    python tests/benchmarks/interrupts.py --interrupts 1000 --kills 200 --full-disks 100 --isolate file --seed 1

Each trial starts `rlharness run` on files that sleep, fork, leave daemons running and ignore signals. It waits for a
random moment from the first import to past the end. Then it does one of these:

- an interrupt: SIGINT, SIGINT twice, SIGTERM or SIGHUP to the runner;
- a kill: SIGKILL to the runner, a supervisor or what forks them, the session that collects, or the leader of a unit;
- a full disk: it fills the file system of the run's directory, of its temporary directories, or of both and the suite.

After a SIGKILL of the runner, another run in the same directory must pass and remove what the first one left. Exit
status 0 if every trial held. Full disks need the permission to mount.
"""

import argparse
import collections
import contextlib
import datetime
import glob
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness.process.child_env import ATTEMPT_MARKER
from harness.process.supervisor.containment import BACKENDS, cgroup_home

ROOT = Path(__file__).resolve().parents[2]
GONE_S = 15.0
ENDED_S = 90.0
VICTIM_S = 30.0
SPAN_S = 4.0
"""Duration of an undisturbed run, unless it is measured."""
DISK_SIZE = "4m"

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
INTERRUPTS = ("SIGINT", "SIGINT twice", "SIGTERM", "SIGHUP")
KILLS = ("SIGKILL", "SIGKILL a supervisor", "SIGKILL the session", "SIGKILL a leader")
FULL_DISKS = ("full disk: run directory", "full disk: temporary directories", "full disk: both and the suite")
KINDS = (*INTERRUPTS, *KILLS)
DEFAULT_SIGNALS = ("env", "--default-signal=INT,HUP,TERM")
"""Started in the background or by nohup, this process ignores some of them, and so would the runs that it starts."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all trials of one command have in common."""

    seed: int
    containment: str = "auto"
    isolate: str = "file"
    span_s: float = SPAN_S
    """The moment of a disturbance is drawn from the first 1.1 of it."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What one trial did and what was wrong after it; `wrong` is empty if everything held."""

    number: int
    kind: str
    delay_s: float
    exit_code: int
    hit: bool
    """Whether there was something to disturb: the run had not ended, and the process to kill existed."""
    wrong: str


@dataclass(frozen=True, slots=True)
class Places:
    """Directories of one trial."""

    suite: Path
    temporary: Path
    events: Path
    """File of `--events`, which is never on the full disk."""


def write_suite(directory: Path, draw: random.Random, token: str) -> None:
    """Write six files, half of them with a GPU need."""
    texts = [QUICK, SLEEPS, DAEMON, DEAF, SLEEPS, DAEMON]
    (directory / "pytest.ini").write_text("[pytest]\n")
    for number, text in enumerate(texts):
        mark = "import pytest\npytestmark = pytest.mark.gpus(1)\n" if number % 2 else ""
        body = text if text is QUICK else text.format(s=round(draw.uniform(0.05, 1.5), 2), token=token)
        (directory / f"test_{number}.py").write_text(mark + body)


def contents(pid: int, name: str) -> bytes:
    """Return a file of a process; empty if there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def state_and_parent(pid: int) -> tuple[str, int]:
    """Return the state of a process and its parent; a dead process has the state X."""
    fields = contents(pid, "stat").rpartition(b")")[2].split()
    return (fields[0].decode(), int(fields[1])) if fields else ("X", 0)


def living(token: str) -> list[int]:
    """Return the processes of one trial: those with its token in their environment or arguments."""
    needle = token.encode()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    carriers = [pid for pid in pids if needle in contents(pid, "environ") or needle in contents(pid, "cmdline")]
    return [pid for pid in carriers if state_and_parent(pid)[0] not in "ZX"]


def is_of_attempt(pid: int) -> bool:
    """Whether a process carries the marker of an attempt, other than that of the test that makes this trial."""
    marks = [each for each in contents(pid, "environ").split(b"\0") if each.startswith(f"{ATTEMPT_MARKER}=".encode())]
    return bool(marks) and marks[0].decode() != f"{ATTEMPT_MARKER}={os.environ.get(ATTEMPT_MARKER)}"


def victims(runner_pid: int, token: str, kind: str) -> list[int]:
    """Return the processes that `kind` may kill. Only tests and the session carry the marker of an attempt."""
    found = []
    for pid in living(token):
        is_child = state_and_parent(pid)[1] == runner_pid
        is_marked = is_of_attempt(pid)
        wanted = {
            "SIGKILL a supervisor": not is_marked and pid != runner_pid,
            "SIGKILL the session": is_marked and is_child,
            "SIGKILL a leader": is_marked and not is_child,
        }
        if wanted[kind]:
            found.append(pid)
    return found


def kill_one(runner: "subprocess.Popen[bytes]", token: str, kind: str, draw: random.Random) -> bool:
    """Wait until there is a process of this kind, and kill it; whether there was one."""
    until = time.monotonic() + VICTIM_S
    while runner.poll() is None and time.monotonic() < until:
        if found := victims(runner.pid, token, kind):
            with contextlib.suppress(ProcessLookupError):
                os.kill(draw.choice(found), signal.SIGKILL)
                return True
        time.sleep(0.02)
    return False


def fill(directory: Path) -> None:
    """Write to the file system of `directory` until it takes no byte."""
    with contextlib.suppress(OSError), (directory / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


def disturb(runner: "subprocess.Popen[bytes]", kind: str, places: Places, token: str, draw: random.Random) -> bool:
    """Do to the runner what `kind` says; whether there was something to disturb."""
    if runner.poll() is not None:
        return False
    if kind in FULL_DISKS:
        fill(disk_of(kind, places))
    elif kind.startswith("SIGKILL "):
        return kill_one(runner, token, kind, draw)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.kill(runner.pid, signal.Signals[kind.partition(" ")[0]])
            if kind == "SIGINT twice":
                time.sleep(draw.uniform(0, 0.3))
                os.kill(runner.pid, signal.SIGINT)
    return True


def disk_of(kind: str, places: Places) -> Path:
    """Return the directory on which a small file system is mounted."""
    run_directory, temporary, both = FULL_DISKS
    return {run_directory: places.suite / ".rlharness", temporary: places.temporary, both: places.suite}[kind]


@contextlib.contextmanager
def mounted(kind: str, places: Places) -> Iterator[None]:
    """Mount the small file system of a full disk, if `kind` is one."""
    if kind not in FULL_DISKS:
        yield
        return
    directory = disk_of(kind, places)
    directory.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE},mode=0700", "none", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def wrong_in_events(text: str, *, was_killed: bool = False) -> str:
    """Return what is wrong with the events of a run; empty if nothing is, or if nothing was collected.

    The events of a runner that was killed end anywhere, but with a whole line, and no unit has two outcomes.
    """
    if text and not text.endswith("\n"):
        return f"the last line is not complete: {text[-80:]!r}"
    events = [json.loads(line) for line in text.splitlines()]
    planned = [unit["path"] for e in events if e["event"] == "collection_finished" for unit in e["units"]]
    ended = collections.Counter(e["result"]["unit"]["path"] for e in events if e["event"] == "unit_finished")
    if was_killed:
        twice = [path for path, count in ended.items() if count > 1]
        return f"units with two outcomes: {twice}" if twice else ""
    if events and events[-1]["event"] != "run_finished":
        return f"the events end with {events[-1]['event']}"
    if sorted(ended.elements()) != sorted(planned):
        return f"{len(planned)} units were planned, outcomes were {dict(ended)}"
    return ""


def wrong_exit(text: str, exit_code: int) -> str:
    """Return why the exit code does not match the outcomes; empty if it does."""
    outcomes = [e["result"]["outcome"] for line in text.splitlines() if (e := json.loads(line)).get("result")]
    if exit_code == 0 and any(outcome not in ("passed", "no_tests") for outcome in outcomes):
        return f"exit code 0 with outcomes {outcomes}"
    return ""


def left_in(places: Places) -> str:
    """Return the temporary directories and control groups that are left; empty if there are none."""
    left = [path.name for path in places.temporary.glob("rlh-*")]
    with contextlib.suppress(OSError):  # no control groups here
        for run in (places.suite / ".rlharness" / "runs").glob("2*"):
            left += glob.glob(f"{glob.escape(cgroup_home())}/rlharness-{run.name}*")
    return f"left: {left}" if left else ""


def start(setting: Setting, places: Places, token: str, *paths: str) -> "subprocess.Popen[bytes]":
    """Start a run of the suite, or of `paths` in it."""
    options = ["--gpus", "sim:2", "--cpu-units", "2", "--grace", "1", "--events", str(places.events)]
    modes = ["--containment", setting.containment, "--isolate", setting.isolate]
    own = {"PYTHONPATH": str(ROOT), "RLH_TRIAL": token, "XDG_CACHE_HOME": str(places.events.parent)}
    return subprocess.Popen(
        [*DEFAULT_SIGNALS, sys.executable, "-m", "harness", "run", *options, *modes, *paths],
        cwd=places.suite,
        env={**os.environ, **own, "TMPDIR": str(places.temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def wrong_next_run(setting: Setting, places: Places, token: str) -> str:
    """Run one file after the runner was killed; return what is wrong with that run, or left after it."""
    runner = start(setting, places, token, "test_0.py")
    _, stderr = runner.communicate(timeout=ENDED_S)
    if runner.returncode:
        return f"the next run exits with {runner.returncode}: {stderr.decode(errors='replace')[-1000:]}"
    return wrong_in_events(places.events.read_text()) or left_in(places)


def wrong_after(kind: str, setting: Setting, places: Places, token: str, exit_code: int) -> str:
    """Return what is wrong after a trial: living processes, the record and events, what is left behind."""
    until = time.monotonic() + GONE_S
    while (alive := living(token)) and time.monotonic() < until:
        time.sleep(0.05)
    if alive:
        return f"still alive: {alive}"
    record = places.suite / ".rlharness" / "runs" / "latest" / "events.jsonl"
    was_killed = kind == "SIGKILL"
    for path in [places.events] if kind in FULL_DISKS else [places.events, record]:
        text = path.read_text() if path.exists() else ""
        if wrong := wrong_in_events(text, was_killed=was_killed) or wrong_exit(text, exit_code):
            return f"{path.name}: {wrong}"
    return wrong_next_run(setting, places, token) if was_killed else left_in(places)


def trial(number: int, kind: str, setting: Setting) -> Trial:
    """Run one trial; everything random in it follows from the seed and `number`."""
    draw = random.Random(f"{setting.seed}/{number}")
    token = f"98765{setting.seed:04d}{number:06d}"
    delay_s = draw.uniform(0.01, 1.1) * setting.span_s
    # The path is short: the runner makes its own temporary directories in it.
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp", ignore_cleanup_errors=True) as name:
        suite = Path(name) / "s"
        own = suite if kind == FULL_DISKS[2] else Path(name)
        places = Places(suite, own / "t", Path(name) / "events.jsonl")
        suite.mkdir()
        with mounted(kind, places):
            places.temporary.mkdir(exist_ok=True)
            write_suite(suite, draw, token)
            runner = start(setting, places, token)
            with contextlib.suppress(subprocess.TimeoutExpired):
                runner.wait(timeout=delay_s)
            hit = disturb(runner, kind, places, token, draw)
            try:
                _, stderr = runner.communicate(timeout=ENDED_S)
            except subprocess.TimeoutExpired:
                runner.kill()
                runner.communicate()
                return Trial(number, kind, delay_s, -99, hit, f"the runner did not end within {ENDED_S:g} s")
            wrong = wrong_after(kind, setting, places, token, runner.returncode)
        if not wrong and b"Traceback" in stderr and b"KeyboardInterrupt" not in stderr:
            wrong = stderr.decode(errors="replace")[-2000:]
        return Trial(number, kind, delay_s, runner.returncode, hit, wrong)


def undisturbed_s(setting: Setting) -> float:
    """Measure a run that nothing disturbs. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as name:
        places = Places(Path(name), Path(name), Path(name) / "events.jsonl")
        write_suite(Path(name), random.Random(setting.seed), f"98765{setting.seed:04d}999999")
        began = time.monotonic()
        runner = start(setting, places, "undisturbed")
        _, stderr = runner.communicate(timeout=10 * ENDED_S)
        if runner.returncode:
            raise RuntimeError(f"an undisturbed run exits with {runner.returncode}: {stderr.decode()[-2000:]}")
        return time.monotonic() - began


def kinds_of(num_interrupts: int, num_kills: int, num_full_disks: int, seed: int) -> list[str]:
    """Draw what each trial does, in a mixed order."""
    draw = random.Random(seed)
    counts = ((INTERRUPTS, num_interrupts), (KILLS, num_kills), (FULL_DISKS, num_full_disks))
    kinds = [draw.choice(group) for group, count in counts for _ in range(count)]
    draw.shuffle(kinds)
    return kinds


def summary(trials: Sequence[Trial], setting: Setting, wall_s: float) -> str:
    """Return the lines that the benchmark prints."""
    kinds = collections.Counter(t.kind for t in trials)
    hits = collections.Counter(t.kind for t in trials if t.hit)
    codes = collections.Counter(t.exit_code for t in trials)
    held = sum(not t.wrong for t in trials)
    today = datetime.datetime.now(datetime.UTC).date()
    machine = f"{platform.system()} {platform.release()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    return "\n".join(
        [
            f"{today}, Python {platform.python_version()}, {machine}",
            f"--isolate {setting.isolate}, containment {setting.containment}, seed {setting.seed}, {wall_s:.0f} s;"
            f" an undisturbed run takes {setting.span_s:.1f} s",
            "made: " + ", ".join(f"{kind} {count} ({hits[kind]} in time)" for kind, count in sorted(kinds.items())),
            "exit codes: " + ", ".join(f"{code}: {count}" for code, count in sorted(codes.items())),
            f"{held} of {len(trials)} trials held",
        ]
    )


def main() -> int:
    """Run the trials, print their results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interrupts", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--full-disks", type=int, default=100)
    parser.add_argument("--isolate", default="file", help="isolation mode of rlharness run")
    parser.add_argument("--containment", default="auto", choices=["auto", *BACKENDS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--only", type=int, help="number of one trial, to repeat it")
    arguments = parser.parse_args()
    began = time.monotonic()
    setting = Setting(arguments.seed, arguments.containment, arguments.isolate)
    setting = Setting(setting.seed, setting.containment, setting.isolate, undisturbed_s(setting))
    kinds = kinds_of(arguments.interrupts, arguments.kills, arguments.full_disks, arguments.seed)
    numbered = [(n, kind) for n, kind in enumerate(kinds) if arguments.only in (None, n)]
    trials = []
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for t in pool.map(lambda one: trial(one[0], one[1], setting), numbered):
            trials.append(t)
            if t.wrong:
                print(f"trial {t.number}: {t.kind} after {t.delay_s:.2f} s, exit {t.exit_code}: {t.wrong}", flush=True)
    print(summary(trials, setting, time.monotonic() - began))
    return 1 if any(t.wrong for t in trials) else 0


if __name__ == "__main__":
    sys.exit(main())
