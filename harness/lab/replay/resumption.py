"""A straight run beside one that is interrupted and resumed: `rlharness replay --resume-at K --resume-command C`.

    copy 1 of the working directory:  run 1, straight
    copy 2:                           run 2, killed after K steps, before the next update ─▶ run 3, resumed

Each side runs in a copy of the working directory of its own: the resumed run must not find checkpoints of the straight
one, and nothing that the user has there changes. Both copies are removed at the end. (A placeholder for an output
directory in the command would need no copy, but programs that name their checkpoints would overwrite the user's.)
A program that saves outside of its copy is ended before it does. If the killed run has saved nothing, it is run once
more in a fresh copy and ended by SIGTERM.
"""

import json
import os
import shlex
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.files import MALFORMED, read_text
from harness.bits.text import path_text
from harness.lab.experiments.launcher import Launcher, Run, check_program
from harness.lab.replay.replay import ReplayOptions, ReplayPlan
from harness.lab.replay.resume_losses import Record, Resumption, compare_resumed, first_unequal, some, unrepeated
from harness.process.invocation import Invocation
from harness.process.program_output import output_tail
from harness.process.run_directory import HOME
from harness.process.scratch import remove_tree
from harness.recording.run_spec import RunSpec

RECORDER = "harness.recording.resumption_recorder:ResumptionRecorder"
MAX_COPY_BYTES = 2**31
LEFT_OUT = {".git", HOME, "__pycache__", "node_modules"}
"""Directories that are not copied, beside virtual environments."""


class ResumeKind(Enum):
    """What a resume is found to be, as the user reads it."""

    EQUAL = "EQUAL"
    LOST = "LOST"
    NOTHING_TO_RESUME = "NOTHING TO RESUME"
    CANNOT_TELL = "CANNOT TELL"


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """After which steps a run is ended, and the command that resumes it."""

    steps: tuple[int, ...]
    """Numbers of optimizer steps of the whole run."""
    argv: tuple[str, ...]
    """Words of the command; none where the scenario of the run has them."""


@dataclass(frozen=True, slots=True)
class ResumeVerdict:
    """What a resume has lost."""

    kind: ResumeKind
    reason: str = ""
    """Why there is no comparison."""
    output: tuple[str, ...] = ()
    """The end of what the last run printed, if that says more."""
    resumption: Resumption | None = None
    runs: tuple[Run, ...] = ()
    num_repeated: int = 0
    """Steps that the resumed run took again."""
    interrupted_by: str = ""

    @property
    def exit_code(self) -> ExitCode:
        """OK if nothing was lost, DIVERGED if something was, NOT_COMPARABLE if there is no comparison."""
        codes = {ResumeKind.EQUAL: ExitCode.OK, ResumeKind.LOST: ExitCode.DIVERGED}
        return ExitCode.INTERRUPTED if self.interrupted_by else codes.get(self.kind, ExitCode.NOT_COMPARABLE)


class _NoComparison(Exception):
    """There is nothing to compare; `args` are the reason and the end of an output."""


def make_resume_plan(options: ReplayOptions, invocation: Invocation) -> ResumePlan:
    """Return what a command line asks for; UsageError where it cannot be carried out."""
    given = {
        "--runs": options.num_runs is not None,
        "--against": options.against is not None,
        "--step": options.step is not None,
        "--break-on or --until": options.has_condition,
    }
    unused = [name for name, is_given in given.items() if is_given]
    texts = (options.resume_at or "").split(",")
    steps = tuple(int(text) if text.strip().isdecimal() else 0 for text in texts)
    try:
        argv, problem = tuple(shlex.split(options.resume_command or "")), ""
    except ValueError as error:
        argv, problem = (), f" {error}"
    if unused or problem or not (argv or options.scenario) or not all(steps) or [*steps] != sorted({*steps}):
        raise UsageError(
            f"{', '.join(unused)} with --resume-at"
            if unused
            else f"--resume-at {options.resume_at} --resume-command {options.resume_command}:{problem} not usable",
            legal="--resume-at K, or K,L, in optimizer steps, with --resume-command 'python train.py --resume DIR'",
            remedy="rlharness replay --resume-at 7 --resume-command 'python train.py --resume DIR' -- python train.py",
        )
    if argv:
        check_program(RunSpec(argv), invocation.cwd, invocation.environ)
    return ResumePlan(steps, argv)


async def record_resumed(
    resume: ResumePlan,
    invocation: Invocation,
    plan: ReplayPlan,
    launcher: Launcher,
    *,
    ended: Callable[[Run, str], None],
) -> ResumeVerdict:
    """Carry out the runs, until one is of no use, and say what was lost. UsageError for too large a directory."""
    resume_argv = resume.argv or plan.run_spec.resume_argv
    if plan.run_spec.call is not None or not resume_argv:
        plan.out.give_back()
        raise UsageError(
            "--resume-at for a scenario without a resume_command",
            legal="a scenario of a command that has one, or --resume-command",
            remedy="add resume_command to the scenario",
        )
    runs: list[Run] = []
    cwd = invocation.cwd.resolve()
    sides = [plan.directory / name for name in ("straight", "resumed")]

    async def record(side: Path, end_at: int | None = None, *, resumes: bool = True, is_asked: bool = False) -> Record:
        if is_asked:  # what the killed run has written, perhaps unseen, it must not find
            remove_tree(str(side))
            copy_directory(cwd, side, plan.directory)
        argv = resume_argv if resumes else plan.run_spec.argv
        lines = plan.directory / f"steps-{len(runs) + 1}"
        told = {"directory": str(lines), "inside": str(side), "end_at": end_at, "is_asked": is_asked}
        spec = replace(plan.run_spec, argv=argv, callbacks={RECORDER: told})
        place = {**invocation.environ, "PWD": str(side)}
        run = await launcher.record(spec, plan.directory, len(runs) + 1, environ=place, cwd=side)
        runs.append(run)
        ended(run, "straight" if side is sides[0] else "resumed" if end_at is None else "interrupted")
        if launcher.interrupted_by:
            raise _NoComparison(f"interrupted by {launcher.interrupted_by}")
        return read_record(lines, run.name)

    try:
        for side in sides:
            copy_directory(cwd, side, plan.directory)
        straight = await record(sides[0], resumes=False)
        _require_steps("the straight run", straight, runs[-1])
        verdict = await _resume(resume, straight, runs, lambda *how, **word: record(sides[1], *how, **word))
    except _NoComparison as found:
        verdict = ResumeVerdict(ResumeKind.CANNOT_TELL, *found.args)
    except UsageError:
        plan.out.give_back()
        raise
    finally:
        for side in sides:
            remove_tree(str(side))
    return replace(verdict, runs=tuple(runs), interrupted_by=launcher.interrupted_by)


async def _resume(
    resume: ResumePlan, straight: Record, runs: list[Run], record: Callable[..., Awaitable[Record]]
) -> ResumeVerdict:
    first, *others = resume.steps
    ended = await record(first, resumes=False)
    if (step := first_unequal(straight, ended)) is not None:
        raise _NoComparison(
            f"the program does not repeat itself: weights of two straight runs differ before step {step}"
        )
    if not (ended.tail and "is_ended" in ended.tail):
        raise _NoComparison(f"the run ended by itself before it had taken {first} steps", _output(runs[-1]))
    if not ended.saves:  # perhaps it saves on SIGTERM alone
        ended = await record(first, resumes=False, is_asked=True)
    written = ended.saves[-1] if ended.saves else None
    for step in others:
        again = await record(step - straight.label(written or 0))
        written = (written or 0) + again.saves[-1] if again.saves else written
    resumed = await record()
    is_fresh = bool(resumed.steps) and resumed.steps[0]["weights"] == straight.steps[0]["weights"]
    if written is None and (is_fresh or not resumed.steps):
        steps = some(str(straight.label(at)) for at in straight.saves) or "no"
        reason = f"no checkpoint was seen within {first} steps; the straight run writes one after {steps} steps"
        return ResumeVerdict(ResumeKind.NOTHING_TO_RESUME, reason, _output(runs[-1]))
    _require_steps("the resumed run", resumed, runs[-1])
    found = compare_resumed(straight, resumed, written, unrepeated(straight, ended))
    if found is None:
        raise _NoComparison("the resumed run has weights, optimizer state and batches of no step of the straight run")
    kind = ResumeKind.LOST if found.losses else ResumeKind.EQUAL
    return ResumeVerdict(kind, resumption=found, num_repeated=max(0, resume.steps[-1] - found.step))


def _require_steps(name: str, record: Record, run: Run) -> None:
    """Raise _NoComparison if a run failed, or took no optimizer step."""
    if run.recording.exit_code or not record.steps:
        problems = run.recording.problems if run.recording.exit_code else ()
        what = problems[0].what if problems else "it took no optimizer step"
        raise _NoComparison(f"{name} failed: {what}", _output(run))


def _output(run: Run) -> tuple[str, ...]:
    return tuple(output_tail(run.output))


def read_record(directory: Path, name: str) -> Record:
    """Return the lines that one run has left; without any, an empty record.

    Raises _NoComparison if several processes took steps, or the recorder failed.
    """
    paths = sorted(directory.glob("steps-*.jsonl"))
    if len(paths) > 1:
        raise _NoComparison(
            f"{len(paths)} processes of {name} took optimizer steps; only runs that train in one can be compared"
        )
    try:
        lines = [json.loads(line) for path in paths for line in read_text(path).splitlines()]
    except (OSError, *MALFORMED) as error:
        raise _NoComparison(f"the lines of {name} cannot be read: {error!r:.100}") from None
    last = lines[-1] if lines else {}
    if "problem" in last:
        raise _NoComparison(f"{name}: {last['problem']}")
    has_tail = "is_tail" in last or "is_ended" in last
    return Record(lines[: len(lines) - has_tail], last if has_tail else None)


def copy_directory(source: Path, target: Path, out: Path) -> None:
    """Copy a working directory without what no program trains with; UsageError if it is too large.

    A link into it becomes one into the copy; one that leads elsewhere, to data say, leads there still.
    """
    num_bytes = 0
    for parent, directories, names in os.walk(source):
        here = target / Path(parent).relative_to(source)
        here.mkdir()
        below = {name: Path(parent, name) for name in directories}
        directories[:] = [name for name, path in below.items() if not path.is_symlink() and not _is_left_out(path, out)]
        for path in [*(Path(parent, name) for name in names), *(path for path in below.values() if path.is_symlink())]:
            if path.is_symlink():
                aim = path.resolve()
                (here / path.name).symlink_to(target / aim.relative_to(source) if aim.is_relative_to(source) else aim)
            elif path.is_file():  # no FIFO, no socket
                num_bytes += path.stat().st_size
                if num_bytes > MAX_COPY_BYTES:
                    raise UsageError(
                        f"{path_text(source)} holds more than {MAX_COPY_BYTES >> 30} GiB",
                        legal="a working directory of less: each side of a resume runs in a copy of it",
                        remedy="run in a directory of the program's files, with links to its data",
                    )
                shutil.copy2(path, here / path.name)


def _is_left_out(path: Path, out: Path) -> bool:
    return path.name in LEFT_OUT or path == out or (path / "pyvenv.cfg").exists()
