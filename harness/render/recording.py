"""Output of `rlharness trace` after the program: the recording, its problems, and the next command."""

import shlex
from collections.abc import Iterable, Iterator

from harness.bits.text import count, one_line, path_text, ranges
from harness.lab.experiments.recording_result import Recording


def recording_lines(recording: Recording, then: Iterable[str] = ()) -> Iterator[str]:
    """Yield a line about the recording, its problems with remedies, then the lines of `then`.

    A complete recording without further lines ends with the command that compares it.
    """
    directory = shlex.quote(path_text(recording.directory))
    if recording.ranks:
        ranks = (
            f"rank {recording.ranks[0]}" if len(recording.ranks) == 1 else f"ranks {ranges(map(str, recording.ranks))}"
        )
        state = "recorded" if recording.is_complete else "INCOMPLETE: recorded"
        yield f"{state} {count(recording.num_steps, 'step')} of {ranks}, {size(recording.size_bytes)}, in {directory}"
    else:
        yield f"NOTHING RECORDED in {directory}"
    for problem in recording.problems:
        yield f"  {one_line(problem.what)}"
        if problem.remedy:
            yield f"    remedy: {one_line(problem.remedy)}"
    for note in recording.notes:
        yield f"  note: {one_line(note)}"
    then = list(then)
    yield from then
    if recording.is_complete and not then:
        yield f"  compare it with another:  rlharness diff {directory} OTHER"


def size(num_bytes: int) -> str:
    """1.2 MB; bytes as they are below a thousand."""
    amount, units = float(num_bytes), ["kB", "MB", "GB", "TB"]
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    unit = ""
    while amount >= 1000 and units:
        amount, unit = amount / 1000, units.pop(0)
    return f"{amount:.1f} {unit}"
