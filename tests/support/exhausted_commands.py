"""Every command of rlharness on machines that have run out of something, and the rules that each trial must keep."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.bits.exit_codes import ExitCode
from tests.support.cli_commands import PRETENDER
from tests.support.exhausted_machine import AREAS, UNENDED, UNPREPARED, Exhaustion, Trial
from tests.support.projects import IDENTITY, Project
from tests.support.suite_runs import HARNESS, environment

BANDIT = """\
about: A bandit
entry: tests.lab.bandit_entry:run
determinism: deterministic
sizes: {smoke: {}}
runtime_sections: [runtime]
config: {seed: 1, num_steps: 3, runtime: {num_parts: 1}}
"""
SUITE = {
    "pytest.ini": "[pytest]\n",
    "test_a.py": "def test_one(): pass\ndef test_two(): pass\n",
    "test_b.py": "def test_three(tmp_path): (tmp_path / 'f').write_text('x')\n",
    "test_c.py": "def test_four(): assert 0, 'planted'\n",
}
FILES = tuple(name for name in SUITE if name.endswith(".py"))


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, after `rlharness`; {new} is a path that nothing has yet."""

    name: str
    words: tuple[str, ...]
    code: int = 0
    """Exit code on a machine that lacks nothing."""
    imports_torch: bool = False

    def line(self, new: str) -> list[str]:
        """The command line, with `new` in the place of {new}."""
        return [*HARNESS, *(word.replace("{new}", new) for word in self.words)]


RUN = ("run", "--cpu-units", "2", "--gpus", "none", "suite")
STEP = ("reproduce", "runs/a", "--step", "1")
COMMANDS = (
    Command("run", RUN, 1),
    Command("run, json", (*RUN, "--json"), 1),
    Command("run, files", (*RUN, "--junit", "j.xml", "--events", "e.jsonl"), 1),
    Command("run, each test", (*RUN, "--isolate", "test"), 1),
    Command("run, interpreters", (*RUN, "--isolate", "interpreter"), 1),
    Command("run, last failed", (*RUN, "--last-failed"), 1),
    Command("run, GPUs", ("run", "--gpus", "sim:2", "suite"), 1),
    Command("plan", ("plan", "--gpus", "none", "suite")),
    Command("history", ("history",)),
    Command("merge", ("merge", ".rlharness/runs/latest", "--junit", "m.xml"), 1),
    Command("doctor", ("doctor",)),
    Command("scenarios", ("scenarios",)),
    Command("schema", ("schema", "pyproject")),
    Command("diff", ("diff", "runs/p", "runs/q"), 11),
    Command("report", ("report", "runs/p", "runs/q", "--out", "r.html")),
    Command("trace", ("trace", "--out", "{new}", "--", *PRETENDER)),
    Command("replay, program", ("replay", "--", *PRETENDER)),
    Command("chaos, program", ("chaos", "--count", "2", "--", *PRETENDER)),
    Command("schema, an entry", ("schema", "rlcore.entrypoint:run"), imports_torch=True),
    Command("train", ("train", "bandit", "--size", "smoke", "--out", "{new}"), imports_torch=True),
    Command("replay", ("replay", "bandit"), imports_torch=True),
    Command("reproduce", ("reproduce", "runs/a"), imports_torch=True),
    Command("reproduce, step", STEP, imports_torch=True),
    Command("reproduce, debugger", (*STEP, "--interactive", "--commands", "commands.txt"), imports_torch=True),
    Command("gate", ("gate", "sums", "--runs", "1", "--base", "HEAD~1"), 10, imports_torch=True),
    Command("gate, goldens", ("gate", "sums", "--golden", "goldens"), imports_torch=True),
    Command("gate, accept", ("gate", "sums", "--golden", "goldens", "--accept", "--reason", "x"), imports_torch=True),
    Command("chaos", ("chaos", "bandit", "--count", "1"), imports_torch=True),
    Command("bisect", ("bisect", "sums", "--good", "HEAD~1", "--bad", "HEAD"), imports_torch=True),
    Command("demo", ("demo", "--out", "{new}"), imports_torch=True),
)


def exhaustions() -> Iterator[Exhaustion]:
    """Every machine of the matrix, the whole one first."""
    yield Exhaustion("nothing", areas=())
    for areas in (AREAS, *((area,) for area in AREAS)):
        label = "all" if areas == AREAS else areas[0]
        yield Exhaustion(f"read-only: {label}", areas, is_read_only=True)
        yield Exhaustion(f"disk full: {label}", areas, free_bytes=0)
        yield Exhaustion(f"no inodes: {label}", areas, free_inodes=0)
    yield from (Exhaustion(f"disk: {kib} KiB", free_bytes=kib << 10) for kib in (4, 16, 40, 100, 300))
    yield from (Exhaustion(f"inodes: {count}", free_inodes=count) for count in (1, 4, 10, 25, 60))
    yield from (_limited("file size", "fsize", size) for size in (0, 1_000, 10_000, 100_000))
    yield from (_limited("descriptors", "nofile", count) for count in (8, 10, 12, 14, 16, 20, 24, 32, 48, 64))
    for count in (1, 2, 3, 4, 6, 8, 12, 20, 30):
        yield Exhaustion(f"processes: {count}", areas=(), num_processes=count)
    yield from (_limited("addresses, MiB", "as", mib, 1 << 20) for mib in (40, 80, 150, 300, 600, 1_200, 2_500))
    yield from (_limited("data, MiB", "data", mib, 1 << 20) for mib in (10, 30, 60, 150, 400))


def _limited(name: str, limit: str, value: int, unit: int = 1) -> Exhaustion:
    return Exhaustion(f"{name}: {value}", areas=(), limits={limit: value * unit})


def prepare(base: Path, *, with_torch: bool) -> None:
    """Make the directories from which every trial begins; RuntimeError where one of their commands fails."""
    for area in (*AREAS, "prepared"):
        (base / area).mkdir()
    work = base / "work"
    project = Project(work)
    project.write(".gitignore", "__*\n.rlharness\nruns\n")
    project.write("scenarios/bandit.yaml", BANDIT)
    project.write("empty", "\n")
    project.write("commands.txt", "next\nquit\n")
    (work / "suite").mkdir()
    for name, text in SUITE.items():
        project.write(f"suite/{name}", text)
    project.commit("Everything")
    project.change("A little more", "SCALE = 1.0", "SCALE = 1.0000001")
    lines: list[tuple[int, tuple[str, ...]]] = [(1, RUN)]
    lines += [(0, ("trace", "--out", f"runs/{name}", "--", *PRETENDER, *more)) for name, more in _TRACES]
    if with_torch:
        lines += [(0, ("train", "bandit", "--size", "smoke", "--out", "runs/a"))]
        lines += [(0, ("gate", "sums", "--golden", "goldens", "--accept", "--reason", "first", "--out", "runs/g"))]
    own = {"TMPDIR": str(base / "tmp"), "HOME": str(base / "home"), "XDG_CACHE_HOME": str(base / "home" / ".cache")}
    for code, words in lines:
        done = subprocess.run(
            [*HARNESS, *words],
            cwd=work,
            env=environment(**IDENTITY, **own),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != code:
            raise RuntimeError(f"{words} exited with {done.returncode}: {done.stdout}{done.stderr}")
    for area in AREAS:
        (base / area).rename(base / "prepared" / area)
        (base / area).mkdir()


_TRACES: tuple[tuple[str, tuple[str, ...]], ...] = (("p", ()), ("q", ("--other", "1")))

_REASON = re.compile(
    r"No space left|Read-only file|Too many open|temporarily unavail|annot allocate|no memory|File too large"
    r"|signal SIGABRT|rlharness doctor|MemoryError|can't start new|cannot continue|ulimit|takes no file|is read-only"
    r"|failed to map"
)
"""Words for what has run out, of which any ending that a whole machine does not have must hold one."""
_WHOLE = ("work/r.html", "work/j.xml", "work/p.html", "work/m.xml")
_MIN_BYTES = 200


def faults(command: Command, exhaustion: Exhaustion, trial: Trial) -> list[str]:
    """Return the rules that a trial broke, in words; none for one that ended as it must."""
    return [*_faults_of_end(command, exhaustion, trial), *_faults_left(command, trial)]


def is_abort(exhaustion: Exhaustion, trial: Trial) -> bool:
    """Whether a library that was loaded into rlharness's own process ended it for lack of memory, as C++ does."""
    is_memory = bool(exhaustion.limits.keys() & {"as", "data"})
    return is_memory and trial.code >= 128 and "bad_alloc" in trial.stderr


def _faults_of_end(command: Command, exhaustion: Exhaustion, trial: Trial) -> Iterator[str]:
    both = trial.stdout + trial.stderr
    if trial.code == UNPREPARED:
        yield f"the machine could not be made: {trial.stderr[-300:]}"
    if trial.code == UNENDED:
        yield "it did not end"
    elif (trial.code < 0 or trial.code >= 128) and not is_abort(exhaustion, trial):
        yield f"a signal ended it: {trial.code}"
    if (trial.code == ExitCode.INTERNAL_ERROR and command.name != "demo") or "this is a bug in rlharness" in both:
        yield "it calls it a bug"
    elif "Traceback" in both and "pretender.py" not in both:  # the recorded program may show its own
        yield "a traceback"
    if trial.code != command.code and not _REASON.search(both) and not is_abort(exhaustion, trial):
        yield f"exit code {trial.code} without a reason"
    if trial.code == ExitCode.USAGE_ERROR and "remedy: " not in trial.stderr:
        yield "no remedy"
    ran = FILES[-1:] if "--last-failed" in command.words else FILES
    lost = [name for name in ran if name not in trial.stdout]
    if command.name.startswith("run") and "  collected  " in trial.stdout and lost:
        yield f"outcomes that were not printed: {lost}"
    if command.name == "merge" and exhaustion.areas and "FAILED test_c.py" not in trial.stdout:
        yield "outcomes that were not printed"


def _faults_left(command: Command, trial: Trial) -> Iterator[str]:
    if trial.left:
        yield f"processes left: {trial.left}"
    if trial.broken:
        yield f"half a file: {trial.broken}"
    for path, size in trial.found.items():
        if re.search(r"/\.rlharness-[0-9a-f]+\.new$", path):
            yield f"a file before its name: {path}"
        if path.startswith("tmp/") and "was not removed" not in trial.stderr:
            yield f"left in TMPDIR: {path}"
        if path in _WHOLE and size < _MIN_BYTES:
            yield f"half a file: {path}, {size} bytes"
    if trial.again is not None and trial.again[0] != command.code:
        yield f"the same command on the restored machine exits with {trial.again[0]}: {trial.again[1][-300:]}"
