"""A straight run beside one that is interrupted and resumed: `rlharness replay --resume-at K --resume-command C`.

    copy 1 of the working directory:  run 1, straight
    copy 2:                           run 2, killed in step K before its update ─▶ run 3, resumed

Each side runs in a copy of the working directory of its own: the resumed run must not find checkpoints of the straight
one, and nothing that the user has there changes. Both copies are removed at the end.
"""

import json
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.files import MALFORMED, read_text
from harness.bits.text import path_text
from harness.lab.experiments.launcher import Launcher
from harness.lab.experiments.run import Run
from harness.lab.experiments.run_spec import RunSpec
from harness.lab.replay.options import ReplayOptions
from harness.lab.replay.plan import ReplayPlan, find_program
from harness.lab.replay.resume_losses import Record, Resumption, compare_resumed, first_unequal, some
from harness.process.invocation import Invocation
from harness.process.program_output import output_tail
from harness.process.run_directory import HOME
from harness.process.scratch import remove_tree

RECORDER = "harness.recording.resumption_recorder:ResumptionRecorder"
MAX_COPY_BYTES = 2**31
LEFT_OUT = {".git", HOME, "__pycache__", "node_modules"}
"""Directories that are not copied, beside virtual environments."""


class ResumeKind(Enum):
    """What a resume is found to be; the value is what the user reads."""

    EQUAL = "EQUAL"
    LOST = "LOST"
    NOTHING_TO_RESUME = "NOTHING TO RESUME"
    CANNOT_TELL = "CANNOT TELL"


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """After which steps a run is ended, and the command that resumes it."""

    steps: tuple[int, ...]
    """After so many optimizer steps of the whole run each."""
    run_spec: RunSpec
    program: str


@dataclass(frozen=True, slots=True)
class ResumeVerdict:
    """What a resume has lost."""

    kind: ResumeKind
    reason: str = ""
    """Why nothing can be said; empty for a comparison."""
    output: tuple[str, ...] = ()
    """The end of what the run printed that failed."""
    resumption: Resumption | None = None
    runs: tuple[Run, ...] = ()
    num_repeated: int = 0
    """Steps that the resumed run took again."""
    interrupted_by: str = ""

    @property
    def exit_code(self) -> ExitCode:
        """OK where nothing was lost, DIVERGED where something was; NOT_COMPARABLE where nothing can be said."""
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        codes = {ResumeKind.EQUAL: ExitCode.OK, ResumeKind.LOST: ExitCode.DIVERGED}
        return codes.get(self.kind, ExitCode.NOT_COMPARABLE)


def parse_resume_steps(text: str) -> tuple[int, ...]:
    """Steps from "4" or "4,9"; UsageError for any other text."""
    steps = tuple(int(part) if part.strip().isdecimal() else 0 for part in text.split(","))
    if not all(steps) or list(steps) != sorted({*steps}):
        raise UsageError(
            f"--resume-at {text}",
            legal="a number of optimizer steps, at least 1; or several that rise: 4,9",
            remedy="choose a step after a checkpoint, in the second epoch",
        )
    return steps


def refuse_unusable(options: ReplayOptions) -> None:
    """UsageError for options of a resume that lack each other, or that do not go with one."""
    if not (options.resume_at and options.resume_command):
        raise UsageError(
            "--resume-at and --resume-command need each other",
            legal="--resume-at K --resume-command 'python train.py --resume DIR' -- python train.py",
        )
    given = {
        "SCENARIO": options.scenario is not None,
        "--runs": options.num_runs is not None,
        "--against": options.against is not None,
        "--step": options.step is not None,
        "--trace-ops": options.has_operations,
        "--break-on, --until": options.has_condition,
    }
    if unused := [name for name, is_given in given.items() if is_given]:
        raise UsageError(
            f"{', '.join(unused)} with --resume-at",
            legal="a command after --, which runs once, and once more to be interrupted and resumed",
            remedy="omit it; rlharness chaos crashes and resumes scenarios",
        )


def make_resume_plan(plan: ReplayPlan, options: ReplayOptions, path: str | None) -> ResumePlan:
    """Return what a command line asks for; UsageError where its command cannot be read or started."""
    try:
        argv = tuple(shlex.split(options.resume_command or ""))
    except ValueError as error:
        raise UsageError(
            f"--resume-command {options.resume_command}: {error}",
            legal="a command line as a shell reads it",
            remedy="check its quotes",
        ) from None
    spec = replace(plan.run_spec, argv=argv)
    return ResumePlan(parse_resume_steps(options.resume_at or ""), spec, find_program(argv[0], path))


async def record_resumed(
    plan: ReplayPlan, resume: ResumePlan, launcher: Launcher, *, invocation: Invocation, ended: Callable[[Run], None]
) -> ResumeVerdict:
    """Carry out the runs, until one is of no use, and say what was lost."""
    runs: list[Run] = []
    cwd = invocation.cwd.resolve()
    sides = [plan.directory / name for name in ("straight", "resumed")]

    async def record(side: Path, end_at: int | None = None, resumes: bool = False) -> tuple[Run, Record]:
        number = len(runs) + 1
        spec, program = (resume.run_spec, resume.program) if resumes else (plan.run_spec, plan.program)
        lines = plan.directory / f"steps-{number}"
        spec = replace(spec, callbacks={RECORDER: {"directory": str(lines), "end_at": end_at}})
        place = {**invocation.environ, "PWD": str(side)}
        if not (side / program).exists():  # a virtual environment is not copied
            program = str(cwd / program)
        run = await launcher.record(spec, plan.directory, number, environ=place, cwd=side, program=program)
        ended(run)
        runs.append(run)
        if launcher.interrupted_by:
            raise _NoVerdict(ResumeKind.CANNOT_TELL, f"interrupted by {launcher.interrupted_by}")
        return run, read_record(lines, run)

    try:
        for side in sides:
            copy_directory(cwd, side, plan.directory)
        run, straight = await record(sides[0])
        if run.recording.exit_code or not straight.steps:
            raise _failed("the straight run", run)
        verdict = await _resume(resume, straight, lambda **how: record(sides[1], **how))
    except _NoVerdict as found:
        verdict = found.verdict
    finally:
        for side in sides:
            remove_tree(str(side))
    return replace(verdict, runs=tuple(runs), interrupted_by=launcher.interrupted_by)


async def _resume(resume: ResumePlan, straight: Record, record: Callable[..., object]) -> ResumeVerdict:
    at, *others = resume.steps
    run, ended = await record(end_at=at)
    if (step := first_unequal(straight, ended)) is not None:
        raise _NoVerdict(
            ResumeKind.CANNOT_TELL,
            f"the program does not repeat itself: before step {step}, weights of two straight runs differ"
            " (rlharness replay -- COMMAND finds the cause)",
        )
    if ended.tail is None or "is_ended" not in ended.tail:
        raise _failed(
            f"the run that was to end after step {at}", run, f"came to its own end after {len(ended.steps)} steps"
        )
    written = ended.saves[-1] if ended.saves else None
    for step in others:
        _, again = await record(end_at=step - (written or 0), resumes=True)
        written = (written or 0) + again.saves[-1] if again.saves else written
    run, resumed = await record(resumes=True)
    is_fresh = bool(resumed.steps) and resumed.steps[0]["weights"] == straight.steps[0]["weights"]
    if written is None and (not resumed.steps or is_fresh):
        steps = some(
            [str(straight.label(each)) if each < len(straight.steps) else str(each) for each in straight.saves]
        )
        reason = f"no checkpoint was written before step {at} ended; the straight run writes after {f'steps {steps}' if steps else 'no step'}"
        raise _NoVerdict(ResumeKind.NOTHING_TO_RESUME, reason, output_tail(run.output))
    if run.recording.exit_code or not resumed.steps:
        raise _failed("the resumed run", run)
    found = compare_resumed(straight, resumed, written)
    if found is None:
        raise _NoVerdict(
            ResumeKind.CANNOT_TELL,
            "the resumed run has weights, optimizer state and batches of no step of the straight run",
        )
    kind = ResumeKind.LOST if found.losses else ResumeKind.EQUAL
    return ResumeVerdict(kind, resumption=found, num_repeated=max(0, resume.steps[-1] - found.step))


class _NoVerdict(Exception):
    """Nothing can be said of the resume."""

    def __init__(self, kind: ResumeKind, reason: str, output: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.verdict = ResumeVerdict(kind, reason, tuple(output))


def _failed(name: str, run: Run, how: str = "") -> _NoVerdict:
    code = run.recording.exit_code
    how = how or (f"failed with exit code {code}" if code else "took no optimizer step")
    return _NoVerdict(ResumeKind.CANNOT_TELL, f"{name} {how}", output_tail(run.output))


def read_record(directory: Path, run: Run) -> Record:
    """Return the lines that one run has left; without any, an empty record.

    Raises _NoVerdict if several processes took steps, or a recorder failed.
    """
    paths = sorted(directory.glob("steps-*.jsonl"))
    if len(paths) > 1:
        raise _NoVerdict(
            ResumeKind.CANNOT_TELL,
            f"{len(paths)} processes of {run.name} took optimizer steps; only programs that train in one are compared",
        )
    if not paths:
        return Record((), None)
    try:
        lines = [json.loads(line) for line in read_text(paths[0]).splitlines()]
    except (OSError, *MALFORMED) as error:
        raise _NoVerdict(ResumeKind.CANNOT_TELL, f"{paths[0]} cannot be read: {error!r:.100}") from None
    if "problem" in lines[-1]:
        raise _NoVerdict(ResumeKind.CANNOT_TELL, f"the recorder of {run.name} failed: {lines[-1]['problem']}")
    has_tail = "is_tail" in lines[-1] or "is_ended" in lines[-1]
    return Record(lines[: len(lines) - has_tail], lines[-1] if has_tail else None)


def copy_directory(source: Path, target: Path, out: Path) -> None:
    """Copy a working directory without what no program trains with; UsageError if it is too large.

    A link into it becomes one into the copy; one that leads elsewhere, to data say, leads there still.
    """
    size_bytes = 0
    for parent, directories, names in os.walk(source):
        here = target / Path(parent).relative_to(source)
        here.mkdir()
        links = [name for name in directories if os.path.islink(os.path.join(parent, name))]
        directories[:] = [
            each for each in directories if each not in links and not _is_left_out(Path(parent, each), out)
        ]
        for path in [Path(parent, name) for name in [*names, *links]]:
            if path.is_symlink():
                aim = path.resolve()
                is_inside = aim.is_relative_to(source)
                (here / path.name).symlink_to(target / aim.relative_to(source) if is_inside else aim)
            elif path.is_file():  # no FIFO, no socket
                size_bytes += path.stat().st_size
                if size_bytes > MAX_COPY_BYTES:
                    raise UsageError(
                        f"{path_text(source)} holds more than {MAX_COPY_BYTES >> 30} GiB",
                        legal="a working directory of less: each side of a resume runs in a copy of it",
                        remedy="run in a directory of the program's files, with links to its data",
                    )
                shutil.copy2(path, here / path.name)


def _is_left_out(path: Path, out: Path) -> bool:
    return path.name in LEFT_OUT or path == out or (path / "pyvenv.cfg").exists()
