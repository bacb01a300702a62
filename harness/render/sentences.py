"""Sentences about the events of a run, shared by the plain and the live display."""

from dataclasses import dataclass
from enum import Enum

from harness.bits.text import count, one_line
from harness.render.outcomes import estimated, facts, gpus, label
from harness.render.splits import split_line
from harness.runner.events import (
    AttemptFailed,
    AttemptSlow,
    AttemptTerminating,
    CancelRequested,
    CollectionFinished,
    Event,
    GpuQuarantined,
    GpuReadmitted,
    LeaseRefused,
    RunStarted,
    UnitFinished,
)
from harness.runner.records.stats import Running, RunState
from harness.runner.schedule.sharding import ShardPlan
from harness.runner.units import Outcome, UnitResult, file_of


class Tone(Enum):
    """Importance of a sentence."""

    GOOD = "good"
    QUIET = "quiet"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Sentence:
    """A word or two on what kind of thing happened, and what it was; both safe to print."""

    tone: Tone
    label: str
    text: str


def head_lines(event: RunStarted) -> list[str]:
    """The run's first lines: its name, the GPUs it may use and those it may not, and where its output is kept."""
    first = (
        f"rlharness run {one_line(event.run_id)}: {count(len(event.gpus), 'GPU')}, "
        f"{count(event.cpu_units, 'CPU slot')}, containment {one_line(event.containment)}"
    )
    shard = [f"  shard {one_line(event.shard)}"] if event.shard else []
    gpus = [f"  gpu {one_line(gpu)}" for gpu in event.gpus]
    left_out = [f"  not used: {one_line(gpu)}" for gpu in event.left_out]
    notes = [f"  note: {one_line(note)}" for note in event.notes]
    return [first, *shard, *gpus, *left_out, *notes, f"  output: {one_line(event.directory)}"]


def sentences(event: Event, state: RunState) -> list[Sentence]:
    """Return the sentences about an event; empty for an event that needs none."""
    match event:
        case CollectionFinished():
            notes = [Sentence(Tone.WARNING, "note", one_line(note)) for note in event.notes]
            splits = [Sentence(Tone.QUIET, "split", split_line(split)) for split in event.splits]
            left_out = [Sentence(Tone.QUIET, "deselected", unselected(event.num_deselected))]
            left_out = left_out if event.num_deselected else []
            return [Sentence(Tone.QUIET, "collected", _plan(event)), *left_out, *splits, *notes]
        case UnitFinished():
            return _unit_sentences(event.result, state)
        case AttemptSlow():
            attempt = state.running.get(event.path)
            where = running_line(attempt, event.t, state) if attempt else one_line(event.path)
            return [Sentence(Tone.WARNING, "slow", where)]
        case AttemptFailed():
            what = count(len(event.tests), "test") if event.tests else "the whole file"
            next_up = f"{what} left" if event.is_rest else f"{what} again, {event.number} of {event.limit}"
            parts = [one_line(event.path), *facts(event.result, state), next_up]
            why = f": {one_line(event.result.reason)}" if event.result.reason else ""
            word = "continuing" if event.is_rest else "retrying"
            return [Sentence(Tone.WARNING, word, f"{label(event.result.outcome)} {', '.join(parts)}{why}")]
        case AttemptTerminating():
            return [Sentence(Tone.WARNING, "terminating", f"{one_line(event.path)}: {words(event.reason)}")]
        case GpuQuarantined():
            text = f"{gpus([event.gpu_id], state)} after {one_line(event.path)}: {one_line(event.reason)}"
            return [Sentence(Tone.BAD, "QUARANTINED", text)]
        case GpuReadmitted():
            return [Sentence(Tone.QUIET, "leased again", f"{gpus([event.gpu_id], state)}: it is as it was before")]
        case LeaseRefused():
            text = f"{one_line(event.path)}: its GPUs were not fit for use; it starts next on others"
            return [Sentence(Tone.WARNING, "queued again", text)]
        case CancelRequested():
            return [Sentence(Tone.WARNING, "cancelled", f"{one_line(event.reason)}: {_doing(event, state)}")]
    return []


def _doing(event: CancelRequested, state: RunState) -> str:
    if event.kill:
        return "running units are killed"
    hint = "; running units are terminated (interrupt again to kill them)" if event.interrupt and state.running else ""
    return f"no more units start{hint}"


def unselected(num_files: int) -> str:
    """Return how many files have tests of which none is selected."""
    return f"{count(num_files, 'file')} without a selected test"


def alive(state: RunState) -> str:
    """Return the progress of the run in counts."""
    if state.units:
        now = f"{len(state.running)} now, {state.num_queued} queued"
        return f"{now}, {len(state.results)} of {len(state.units)} done"
    total = state.num_collect_total
    return "collecting" + (f", {state.num_collect_done} of {count(total, 'file')} imported" if total else "")


def running_line(attempt: Running, now_t: float, state: RunState) -> str:
    """One attempt that runs: its file, since when, where, and the test it is in."""
    parts = [one_line(attempt.path), f"{now_t - attempt.started_t:.1f} s", gpus(attempt.gpu_ids, state)]
    if attempt.test:
        parts.append(f"in {one_line(bare_test(attempt))} for {now_t - attempt.test_started_t:.1f} s")
    if attempt.terminating:
        parts.append(f"terminating: {words(attempt.terminating)}")
    return ", ".join(parts)


def bare_test(attempt: Running) -> str:
    """Return the running test without its file, which is shown next to it."""
    return attempt.test.removeprefix(file_of(attempt.path)).removeprefix("::")


def words(reason: str) -> str:
    """A reason of AttemptTerminating as words: "test_timeout" is "test timeout"."""
    return one_line(reason.replace("_", " "))


def _plan(event: CollectionFinished) -> str:
    num_units = len(event.units)
    units = count(num_units, "unit") if event.shard is None else shard_units(event.shard, num_units)
    text = (
        f"{units} in {event.duration_s:.1f} s; planned {event.planned_makespan_s:.1f} s, "
        f"lower bound {event.lower_bound_s:.1f} s"
    )
    guess = estimated(event.num_estimated, sum(seconds > 0 for seconds in event.expected_s))
    return f"{text} ({guess})" if guess else text


def shard_units(shard: ShardPlan, num_units: int) -> str:
    """Return how many units of a suite a shard has: "31 of 240 units, partition 3f9a2c81d0e4"."""
    return f"{num_units:,} of {count(shard.num_suite_units, 'unit')}, partition {shard.partition}"


def _unit_sentences(result: UnitResult, state: RunState) -> list[Sentence]:
    """A unit's outcome; nothing of one of possibly thousands that were cancelled before they started, or deselected."""
    outcome = result.outcome
    if (outcome is Outcome.NOT_RUN and not result.for_want_of_gpus) or result.is_deselected:
        return []
    text = ", ".join([one_line(result.unit.path), *facts(result, state)])
    if result.left_behind:
        text += f", {count(len(result.left_behind), 'process', 'processes')} left behind and killed"
    if result.reason:
        text += f": {one_line(result.reason)}"
    return [Sentence(_tone(result), label(outcome), text)]


def _tone(result: UnitResult) -> Tone:
    if result.is_failure:
        return Tone.BAD
    if result.outcome is Outcome.PASSED and not result.tests.all_skipped and not result.left_behind:
        return Tone.GOOD
    return Tone.WARNING
