"""Output of `rlharness trace` after the program: the recording, its problems, what ended it, and the next command."""

import shlex
from collections.abc import Iterable, Iterator

from harness.bits.text import count, one_line, path_text, ranges
from harness.lab.experiment.recording_result import Recording
from harness.lab.experiment.single_run import TerminalRun
from harness.recording.metrics import Stop
from harness.recording.sentinel_report import finding_line

MAX_CHARS = 200


def recording_lines(recording: Recording, then: Iterable[str] = ()) -> Iterator[str]:
    """Yield a line about the recording, its problems with remedies, then the lines of `then`.

    A complete recording without further lines ends with the command that compares it.
    """
    directory = shlex.quote(path_text(recording.directory))
    if recording.ranks:
        ranks = f"rank{'s' * (len(recording.ranks) > 1)} {ranges(map(str, recording.ranks))}"
        state = "recorded" if recording.is_complete else "INCOMPLETE: recorded"
        yield f"{state} {count(recording.num_steps, 'step')} of {ranks}, {size(recording.size_bytes)}, in {directory}"
    else:
        yield f"NOTHING RECORDED in {directory}"
    yield from problem_lines(recording)
    for note in recording.notes:
        yield f"  note: {one_line(note)}"
    then = list(then)
    yield from then
    if recording.is_complete and not then:
        yield f"  compare it with another:  rlharness diff {directory} OTHER"


def problem_lines(recording: Recording) -> Iterator[str]:
    """Yield the problems of an incomplete recording with their remedies."""
    for problem in recording.problems:
        yield f"  {one_line(problem.what)}"
        if problem.remedy:
            yield f"    remedy: {one_line(problem.remedy)}"


def size(num_bytes: int) -> str:
    """1.2 MB; bytes as they are below a thousand."""
    power = min((len(str(num_bytes)) - 1) // 3, 4)
    return f"{num_bytes / 1000**power:.1f} {' kMGT'[power]}B" if power else f"{num_bytes} bytes"


def end_lines(run: TerminalRun) -> Iterator[str]:
    """Yield the findings of the sentinel, where a condition ended a run in a terminal, and the next command."""
    for bundle, finding in run.findings:
        yield one_line(finding_line(finding))
        yield f"  bundle: {shlex.quote(path_text(bundle))}"
    if run.conditions:
        steps = count(run.recording.num_steps, "step")
        unmet = f"NOT MET  {', '.join(map(str, run.conditions))} in {steps}"
        yield f"STOPPED  {where(run.stop)}" if run.stop else unmet
    if (command := run.next_command) is not None:
        yield f"  {command}"


def where(stop: Stop) -> str:
    """nan at step 7, backward layers.0.weight, element [3, 1]: nan."""
    rank = f", rank {stop.rank}" if stop.rank else ""
    if not stop.name:
        return f"{stop.condition} at step {stop.step}{rank}: {one_line(stop.value, MAX_CHARS)}"
    if not stop.phase:
        return f"{stop.condition} after step {stop.step}{rank}: {one_line(stop.name, MAX_CHARS)} is {stop.value}"
    occurrence = f" #{stop.occurrence}" if stop.occurrence else ""
    element = f", element {list(stop.element)}" if stop.element else ""
    value = f": {one_line(stop.value, MAX_CHARS)}" if stop.value else ""
    recorded_value = f"{one_line(stop.phase, MAX_CHARS)} {one_line(stop.name, MAX_CHARS)}{occurrence}"
    return f"{stop.condition} at step {stop.step}{rank}, {recorded_value}{element}{value}"
