"""Finishes and checks the recording of a program: its logs, its manifest, the reports of its processes."""

import json
import os
import select
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from signal import Signals

from harness.bits.errors import TraceError
from harness.bits.files import MALFORMED, read_text, write_replacing
from harness.bits.redaction import redact_argv
from harness.bits.text import count, ranges
from harness.lab.experiment.recorded_run import recorded_steps_of
from harness.process.clock import Clock
from harness.process.exhaustion import shortage_at
from harness.process.supervisor.process_tree import read_process
from harness.recording.metrics import parse_pattern
from harness.recording.run_spec import PROCESSES, Report, RunSpec
from harness.trace.manifest import with_gpus
from harness.trace.ops import recorded_steps
from harness.trace.reader import RankLog, Trace, read_trace
from harness.trace.writer import close_log, write_manifest


def unanswered(run_spec: RunSpec, trace: Trace, reports: Sequence[Report]) -> Iterator[str]:
    """A note on each: steps to keep, the step of operations, metrics."""
    has = f"this trace has {count(len(trace.steps), 'step')}, numbered from 0"
    if absent := [str(step) for step in run_spec.keep if step not in recorded_steps_of(trace)]:
        yield f"no tensors of step {ranges(absent)} were kept: {has}"
    step = run_spec.op_step
    if step is not None and all(recorded != step for _, recorded in recorded_steps(trace.directory)):
        yield f"no operations of step {step} were recorded: {has}"
    found = {name for report in reports if report.rank == 0 for name in report.metrics}
    for metric in run_spec.metrics:
        if absent := [name for name in parse_pattern(metric).curve_names if name not in found]:
            yield (
                f"--metric {metric}: nothing for {', '.join(absent)}: no line of rank 0 has matched with a number,"
                " or the name is that of a timing, and timings are left out"
            )


RESULT = "recording.json"
"""In the directory of a trace: a Recording, for programs."""
SETTLE_S = 10.0
"""How long recorders may outlive the program that started them: Ray's actors end after their driver."""
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a recording is not whole."""

    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording that has ended."""

    directory: Path
    exit_code: int
    """Of the program; 128 and the signal's number where one ended it."""
    num_steps: int
    """Which every rank has recorded whole."""
    ranks: tuple[int, ...]
    size_bytes: int
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    reports: tuple[Report, ...] = ()
    """Of every process that had torch, in the order of their numbers."""

    @property
    def is_complete(self) -> bool:
        """Whether everything that there was to record has been."""
        return not self.problems


def finish(
    directory: Path,
    run_spec: RunSpec,
    exit_code: int,
    *,
    leader_pid: int | None = None,
    problems: Sequence[Problem] = (),
    notes: Sequence[str] = (),
) -> Recording:
    """Finish the recording of a program that has ended; also keep the result beside it, as RESULT.

    `exit_code` is that of the process `leader_pid`. `problems` are the known ones of its end: with them,
    or another exit code than 0, it did not end in order. The manifest is given its world size and whether the program
    ended in order. Where it did, those logs that are open are closed of whose processes it is known that they were
    through: workers that their cluster has ended, and the leader, which left by os._exit with 0.
    """
    reports = read_reports(directory)
    if exit_code and not problems:
        lack = shortage_at(directory)
        problems = [Problem(f"the program ended with {how_it_ended(exit_code)}" + (f"; {lack}" if lack else ""))]
    trace, unreadable = _read(directory)
    if not problems and run_spec.call is not None and not any(report.has_returned for report in reports):
        after = f"after {count(len(trace.steps), 'step')}" if trace and trace.steps else "before it had recorded a step"
        what = f"{run_spec.call.entry} ended too early, {after}: its process exited with 0 before it returned"
        problems = [Problem(f"{what} (sys.exit, os._exit or exec)", "have it, and what it calls, return")]
    if trace is not None:
        if not problems:
            notes = [*notes, *_close_logs(trace, reports, leader_pid)]
        problems = [*problems, *_replace_manifest(trace, reports, is_in_order=not problems)]
        trace, unreadable = _read(directory)
    if trace is not None:
        notes = [*notes, *unanswered(run_spec, trace, reports)]
    recording = Recording(
        directory=directory,
        exit_code=exit_code,
        num_steps=len(trace.steps) if trace else 0,
        ranks=tuple(trace.ranks) if trace else (),
        size_bytes=_size_bytes(directory),
        problems=tuple(_problems(trace, reports, run_spec, [*problems, *unreadable])),
        notes=(*notes, *_skipped(reports)),
        reports=reports,
    )
    text = json.dumps(recording_json(recording), indent=1) + "\n"
    with suppress(OSError):  # a full disk: what is in it is said anyway
        write_replacing(directory / RESULT, text)
    return recording


def _size_bytes(directory: Path) -> int:
    """Of all files below a directory that can be looked at."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                status = os.stat(os.path.join(parent, name))
                total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def recording_json(recording: Recording) -> dict[str, object]:
    """A recording in plain values only, without secrets."""
    reports = [replace(report, argv=redact_argv(report.argv)) for report in recording.reports]
    told = asdict(replace(recording, reports=tuple(reports)))
    return {"version": 1, **told, "directory": str(recording.directory), "is_whole": recording.is_complete}


def read_reports(directory: Path) -> tuple[Report, ...]:
    """What the processes of a program report; those that were cut off while writing are left out."""
    found = []
    for path in (directory / PROCESSES).glob("*.json"):
        try:
            found.append(Report.parse(read_text(path)))
        except (OSError, *MALFORMED):  # cut, or not ours
            continue
    return tuple(sorted(found, key=lambda report: report.pid))


def await_recorders(directory: Path, clock: Clock, limit_s: float = SETTLE_S) -> tuple[int, ...]:
    """Wait until no process records any more; the pids of those that still do when the limit has passed."""
    until_s = clock.monotonic_s() + limit_s
    while (living := _living(read_reports(directory))) and clock.monotonic_s() < until_s:
        select.select([], [], [], POLL_S)
    return living


def _living(reports: Iterable[Report]) -> tuple[int, ...]:
    open_ones = [report.pid for report in reports if report.rank is not None and not report.is_closed]
    found = [process for pid in open_ones if (process := read_process(pid)) is not None]
    return tuple(process.pid for process in found if not process.is_zombie)


def _read(directory: Path) -> tuple[Trace | None, list[Problem]]:
    """The trace in a directory, and why it cannot be read; neither where there is none."""
    try:
        return read_trace(directory), []
    except TraceError as error:
        return None, [Problem(error.what, error.remedy)] if any(directory.glob("rank-*.log")) else []


def _replace_manifest(trace: Trace, reports: Sequence[Report], *, is_in_order: bool) -> list[Problem]:
    """Write what is known now: how many ranks there were, which are none, how the program ended."""
    if trace.manifest is None:
        return []
    arrived = sorted(report.rank for report in reports if report.rank is not None and not report.has_rank)
    manifest = replace(
        with_gpus(trace.manifest, (model for report in reports for model in report.gpus)),
        world_size=max(trace.ranks, default=0) + 1,
        unranked=tuple(arrived) if len(arrived) > 1 else (),
        complete=is_in_order,
    )
    try:
        write_manifest(trace.directory, manifest)
    except OSError as error:
        return [Problem(f"the manifest cannot be written: {error.strerror}")]
    return []


def _close_logs(trace: Trace, reports: Sequence[Report], leader_pid: int | None) -> list[str]:
    """Close the logs whose processes were through and did not get round to it; a note on each."""
    by_rank = {report.rank: report for report in reports if report.rank is not None}
    living = _living(reports)
    notes = []
    for rank, log in trace.ranks.items():
        report = by_rank.get(rank)
        if not _may_be_closed(log) or report is None or report.problem or report.pid in living:
            continue
        if not report.cluster and report.pid != leader_pid:  # os._exit, exec and SIGKILL cannot be told apart
            continue
        try:
            num_steps = close_log(log.path)
        except TraceError as error:  # a full disk, say: the log is told as one that is not closed
            notes.append(error.what)
            continue
        how = f"was ended by {report.cluster}" if report.cluster else "left by os._exit with 0"
        notes.append(f"rank {rank} {how} after {count(num_steps, 'step')}; its log was closed")
    return notes


def _skipped(reports: Iterable[Report]) -> Iterator[str]:
    """A note on each rank whose GradScaler has left out steps: nothing moves in them."""
    for report in reports:
        steps = count(report.num_steps, "step")
        if report.num_skipped and report.num_skipped == report.num_steps:
            yield f"rank {report.rank}: GradScaler skipped all {steps}: no gradient was finite, and no weight has moved"
        elif report.num_skipped:
            skipped = (
                f"rank {report.rank}: GradScaler skipped {report.num_skipped} of {steps}: gradients were not finite"
            )
            yield f"{skipped}; these steps have a value named skipped"


def _may_be_closed(log: RankLog) -> bool:
    return not log.is_closed and not log.num_skipped_bytes and bool(log.heads)


def _problems(
    trace: Trace | None, reports: Sequence[Report], run_spec: RunSpec, of_its_end: Sequence[Problem]
) -> list[Problem]:
    """Why the recording is not whole; nothing where it is."""
    told = [Problem(f"{_name(report)}: {report.problem}") for report in reports if report.problem]
    told += [Problem(f"process {pid} still records", "let the program wait for it") for pid in _living(reports)]
    told += of_its_end
    if trace is None:
        return told or [_why_nothing(reports, run_spec)]
    if of_its_end and trace.manifest is not None:  # that it did not end in order is told
        trace = replace(trace, manifest=replace(trace.manifest, complete=True))
    if not of_its_end:
        silent = {report.rank for report in reports if report.problem or report.pid in _living(reports)}
        unproven = [rank for rank, log in trace.ranks.items() if _may_be_closed(log) and rank not in silent]
        for rank in unproven:
            steps = count(len(trace.ranks[rank].heads), "step")
            what = f"rank {rank}'s process ended without closing its log after {steps}: killed, os._exit or exec"
            told.append(Problem(what, "have the process return from its main program, and the program wait for it"))
        closed = {rank: replace(log, is_closed=True) for rank, log in trace.ranks.items() if rank in unproven}
        trace = replace(trace, ranks={**trace.ranks, **closed})  # that they are open is told
    told += [Problem(gap) for gap in trace.gaps]
    return told if told or trace.steps else [Problem("no step was recorded")]


def how_it_ended(exit_code: int) -> str:
    """exit code 1; signal SIGKILL, where the exit code is that of a shell for one."""
    try:
        return f"signal {Signals(exit_code - 128).name}"
    except ValueError:
        return f"exit code {exit_code}"


def _why_nothing(reports: Sequence[Report], run_spec: RunSpec) -> Problem:
    """Why a program left no log at all."""
    if run_spec.call is not None:
        what = f"{run_spec.call.entry} has returned and recorded no step"
        return Problem(what, "have it call the recorder that it is given: begin_step, record, end_step")
    if reports:
        processes = f"{len(reports)} processes" if len(reports) > 1 else "the one process"
        what = f"no optimizer's step was seen in {processes} with torch"
        return Problem(what, "without torch.optim, have it call the recorder itself (harness.recording.open_recorder)")
    remedy = "name a program that imports torch; leave out python -E, -I and -S, which ignore PYTHONPATH; put rlharness"
    remedy += " trace after sudo, env -i, ssh and containers, which do not pass on PYTHONPATH and RLHARNESS_TRACE"
    return Problem("no Python process with torch was seen", remedy)


def _name(report: Report) -> str:
    return f"process {report.pid}" if report.rank is None else f"rank {report.rank} (process {report.pid})"
