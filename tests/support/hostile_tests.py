"""Test files that try to stall the run they belong to: drawn from ways to harm and ways to end, by a seed.

A file harms once, before or within its test, and then hangs, passes, fails or exits. Whatever it does, the run must
come to its end, and the other files must have the outcomes that they have without it.
"""

import itertools
import random
from dataclasses import dataclass

HEAD = """
import atexit, faulthandler, os, resource, shutil, signal, socket, sys, threading, time
from pathlib import Path
def report():
    return Path(next(word.partition("=")[2] for word in sys.argv if word.startswith("--rlharness-report=")))
def replace(path, make):
    path.unlink(missing_ok=True)
    make(path)
"""

HARMS = {
    "report_fifo": "replace(report(), os.mkfifo)",
    "report_fifo_with_a_writer": "replace(report(), os.mkfifo); kept = os.open(report(), os.O_RDWR)",
    "all_fifos": "[replace(report().with_name(n), os.mkfifo) for n in ('report.jsonl', 'output.log', 'stacks.txt')]",
    "report_device": "replace(report(), lambda path: path.symlink_to('/dev/zero'))",
    "log_device": "replace(report().with_name('output.log'), lambda path: path.symlink_to('/dev/zero'))",
    "report_directory": "replace(report(), Path.mkdir)",
    "report_sparse": "os.truncate(report(), 6 << 30)",
    "report_garbage": "report().write_bytes(os.urandom(1 << 20) + b'[' * (1 << 20) + b'\\n')",
    "report_closed": "os.closerange(3, 4096)",
    "output_closed": "os.closerange(0, 4096)",
    "directory_deleted": "shutil.rmtree(report().parent, ignore_errors=True)",
    "tmpdir_deleted": "shutil.rmtree(os.environ['TMPDIR'], ignore_errors=True)",
    "cwd_deleted": "d = Path(os.environ['TMPDIR'], 'gone'); d.mkdir(); os.chdir(d); d.rmdir()",
    "directory_unreadable": "os.chmod(report().parent, 0)",
    "signals_ignored": "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 10, 12, 13, 14, 15)]",
    "signals_blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))",
    "no_more_files": "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    "no_file_sizes": "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
    "no_memory": "resource.setrlimit(resource.RLIMIT_AS, (1 << 26, 1 << 26))",
    "no_processes": "resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))",
    "little_time": "resource.setrlimit(resource.RLIMIT_CPU, (1, 2))",
    "supervisor_killed": "os.kill(os.getppid(), signal.SIGKILL)",
    "supervisor_stopped": "os.kill(os.getppid(), signal.SIGSTOP)",
    "supervisor_told_to_end": "os.kill(os.getppid(), signal.SIGTERM)",
    "itself_stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "group_killed": "os.killpg(0, signal.SIGTERM)",
    "forks": "[os.fork() or (time.sleep(60), os._exit(0)) for _ in range(40)]",
    "forks_in_turn": "[os.fork() and (time.sleep(60), os._exit(0)) for _ in range(40)]",
    "forks_that_ignore_signals": (
        "[os.fork() or ([signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)], time.sleep(60), os._exit(0))"
        " for _ in range(20)]"
    ),
    "sessions_of_their_own": "[os.fork() or (os.setsid(), os.fork(), time.sleep(60), os._exit(0)) for _ in range(5)]",
    "daemon_with_the_output": "os.fork() or (os.setsid(), [os.write(1, b'still here') for _ in iter(int, 1)])",
    "output_filled": "[os.write(1, b'x' * (1 << 20)) for _ in range(40)]",
    "output_without_line_ends": "sys.stdout.write('y' * (40 << 20))",
    "output_of_escapes": "os.write(1, (b'\\x1b[2J\\x1b]0;P\\x07::error::forged\\r' * 20000))",
    "threads": "[threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(40)]",
    "endless_exit": "atexit.register(lambda: [None for _ in iter(int, 1)])",
    "files_by_thousands": "[Path(os.environ['TMPDIR'], str(n)).touch() for n in range(20000)]",
    "a_deep_directory": (
        "d = os.environ['TMPDIR']; os.chdir(d); [(os.mkdir('d' * 200), os.chdir('d' * 200)) for _ in range(200)]"
    ),
    "environment_cleared": "os.environ.clear(); os.umask(0o777)",
    "root_as_directory": "os.chdir('/'); sys.path.clear()",
    "modules_broken": "sys.modules.update({name: None for name in ('json', 'time', '_pytest.runner')})",
    "clock_broken": "time.time = time.monotonic = time.perf_counter = lambda: float('nan')",
    "descriptors_shuffled": "[os.dup2(1, n) for n in range(3, 64)]",
    "stdin_read": "sys.stdin = open(0); sys.stdin.read()",
    "trace_function": "sys.settrace(lambda *a: time.sleep(0.001)); threading.settrace(lambda *a: None)",
    "recursion": "sys.setrecursionlimit(10**6)",
    "sockets": "kept = [socket.socketpair() for _ in range(300)]",
}
"""Name of a way to harm -> statements on one line, after HEAD."""

ENDS = {
    "hangs": "time.sleep(600)",
    "spins": "[None for _ in iter(int, 1)]",
    "passes": "pass",
    "fails": "assert False",
    "exits": "os._exit(0)",
    "dies": "os.kill(os.getpid(), signal.SIGKILL)",
    "leaves": "raise SystemExit(0)",
}
PLACES = {
    "in_the_test": "def test_first(): pass\ndef test_it():\n    {harm}\n    {end}\ndef test_last(): pass\n",
    "later": "def test_it():\n    time.sleep(0.5)\n    {harm}\n    {end}\n",
    "at_exit": "def test_it():\n    atexit.register(lambda: exec({harm!r}, globals()))\n    {end}\n",
    "in_a_thread": (
        "def harm():\n    {harm}\ndef test_it():\n"
        "    thread = threading.Thread(target=harm, daemon=True); thread.start(); thread.join(1)\n    {end}\n"
    ),
}
HONEST = "import time\ndef test_passes(): time.sleep(0.05)\ndef test_fails(): assert {number} < 0\n"


@dataclass(frozen=True, slots=True)
class Hostile:
    """One hostile file."""

    harm: str
    place: str
    end: str

    @property
    def name(self) -> str:
        return f"test_{self.harm}_{self.place}_then_{self.end}.py"

    @property
    def text(self) -> str:
        harm = HARMS[self.harm]
        # A signal is for the thread of signals alone, and a fork of a thread is none of the runner's affair.
        return HEAD + PLACES[self.place].format(harm=harm, end=ENDS[self.end])


def draw(num_files: int, seed: int) -> list[Hostile]:
    """Draw different files, every harm before one comes again; ValueError for more than there are."""
    chosen = random.Random(seed)
    ways = [*itertools.product(PLACES, ENDS)]
    if num_files > len(HARMS) * len(ways):
        raise ValueError(f"{num_files} files: there are {len(HARMS) * len(ways)}")
    for_each = {harm: chosen.sample(ways, len(ways)) for harm in HARMS}
    in_turn = (
        Hostile(harm, *for_each[harm][turn])
        for turn in range(len(ways))
        for harm in chosen.sample([*HARMS], len(HARMS))
    )
    return list(itertools.islice(in_turn, num_files))
