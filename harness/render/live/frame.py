"""One frame of the live display, as lines of coloured text: a pure function of a picture, the time and the terminal."""

from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from harness.bits.text import count, one_line, ranges
from harness.render.run_text import bare_test, words
from harness.render.run_words import gpu_names, label
from harness.runner.records.stats import Progress, Running
from harness.runner.units import Outcome

GPUS_WIDTH, DONE_WIDTH, SINCE_WIDTH, GAP = 10, 5, 7, 2
MIN_TEST_WIDTH = 16
TIMES_WIDTH = 21
SLOW_FACTOR = 3.0
"""A unit's time turns yellow when it runs for this many times what was expected, and for a minute at least."""
SLOW_AT_LEAST_S = 60.0


@dataclass(frozen=True, slots=True)
class FrameStyle:
    """The terminal a frame is for."""

    width: int
    height: int
    num_rows: int
    """Rows the table has at least, empty ones included."""
    ascii_only: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """Content of a frame: the run's progress at `t`, taken at `taken_s` of the clock."""

    progress: Progress
    gpus: tuple[str, ...]
    t: float
    taken_s: float


def frame(picture: Picture, now_t: float, style: FrameStyle) -> list[Text]:
    """The lines of one frame, each shorter than the terminal is wide, all of them fewer than it has lines.

    Columns depend on the width alone, rows keep their order while their units run, and the frame does not become
    shorter again: nothing jumps.
    """
    progress = picture.progress
    space = style.width - 1
    if not progress.num_units:
        return [_collecting(progress, now_t, space)]
    columns = _Columns.for_width(space, "..." if style.ascii_only else "…")
    room = max(1, style.height - 6)
    attempts = sorted(progress.running, key=lambda attempt: (attempt.slot, attempt.started_t))
    names = gpu_names(picture.gpus)
    rows = [_row(attempt, now_t, names, columns) for attempt in attempts[:room]]
    if len(attempts) > room:
        rows[-1] = Text(f" and {len(attempts) - room + 1} more", style="dim")
    rows += [Text()] * (min(style.num_rows, room) - len(rows))
    head = columns.line(("GPUs", "file", "test", "tests", "since"), styles=("dim",) * 5)
    lines = [Text(), head, *rows, Text(), _bar(progress, now_t, space, style.ascii_only), _counts(progress, space)]
    for line in lines:
        line.truncate(space)
    return lines[-max(1, style.height - 1) :]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Widths in cells of the columns GPUs, file, test, tests done, since; 0 for one that is left out."""

    widths: tuple[int, int, int, int, int]
    ellipsis: str

    @property
    def test_width(self) -> int:
        return self.widths[2]

    @classmethod
    def for_width(cls, space: int, ellipsis: str) -> "_Columns":
        rest = space - 1 - GPUS_WIDTH - DONE_WIDTH - SINCE_WIDTH - 4 * GAP
        test = rest * 2 // 5
        if test >= MIN_TEST_WIDTH:
            return cls((GPUS_WIDTH, rest - test, test, DONE_WIDTH, SINCE_WIDTH), ellipsis)
        rest = space - 1 - GPUS_WIDTH - SINCE_WIDTH - 2 * GAP
        return cls((GPUS_WIDTH, max(1, rest), 0, 0, SINCE_WIDTH), ellipsis)

    def line(self, texts: tuple[str, str, str, str, str], styles: tuple[str, ...]) -> Text:
        """One line: numbers to the right, a long path cut on its left, anything else on its right."""
        line = Text(" ", no_wrap=True, overflow="crop")
        for index, (text, width, style) in enumerate(zip(texts, self.widths, styles, strict=True)):
            if not width:
                continue
            cut = self._cut(text, width, keep_end=index == 1)
            padded = " " * (width - cell_len(cut)) + cut if index > 2 else set_cell_size(cut, width)
            line.append(padded + " " * GAP, style=style)
        line.rstrip()
        return line

    def _cut(self, text: str, width: int, *, keep_end: bool) -> str:
        if cell_len(text) <= width:
            return text
        room = max(0, width - len(self.ellipsis))
        if not keep_end:
            return set_cell_size(text, room).rstrip() + self.ellipsis[:width]
        while cell_len(text) > room:
            text = text[1:]
        return self.ellipsis[:width] + text


def _row(attempt: Running, now_t: float, names: dict[str, str], columns: _Columns) -> Text:
    gpus = ranges([names.get(gpu_id, gpu_id) for gpu_id in attempt.gpu_ids])
    ran_s = now_t - attempt.started_t
    slow = ran_s > max(SLOW_AT_LEAST_S, SLOW_FACTOR * attempt.expected_s)
    ending = f"terminating: {words(attempt.terminating)}" if attempt.terminating else ""
    if len(ending) > columns.test_width:
        ending = "terminating"
    texts = (
        f"gpu {gpus}" if gpus else "cpu",
        one_line(attempt.path),
        ending or one_line(_function(attempt)),
        str(attempt.num_tests_done or ""),
        _clock_time(ran_s),
    )
    return columns.line(texts, ("cyan", "", "yellow" if ending else "dim", "dim", "yellow" if slow else ""))


def _function(attempt: Running) -> str:
    """The running test by its function and parameters: there is no room for its class."""
    name, bracket, parameters = bare_test(attempt).partition("[")
    return name.rpartition("::")[2] + bracket + parameters


def _collecting(progress: Progress, now_t: float, space: int) -> Text:
    done = (
        f": {progress.num_collect_done} of {count(progress.num_collect_total, 'file')}"
        if progress.num_collect_total
        else ""
    )
    line = Text(f" collecting{done}, {_clock_time(now_t)}", style="dim", no_wrap=True, overflow="crop")
    line.truncate(space)
    return line


def _bar(progress: Progress, now_t: float, space: int, ascii_only: bool) -> Text:
    """How many units are done, coloured by how they ended, then those that run, with the time beside it."""
    left_s = progress.remaining_s(now_t)
    beside = _clock_time(now_t) + (f", {_clock_time(left_s)} left" if left_s is not None and left_s >= 1 else "")
    width = max(0, space - TIMES_WIDTH - 1)
    num_bad = sum(number for outcome, number in progress.outcomes.items() if outcome.is_failure)
    num_bad -= progress.num_accepted
    num_not = progress.outcomes.get(Outcome.NOT_RUN, 0) + progress.outcomes.get(Outcome.INTERRUPTED, 0)
    parts = (
        (progress.num_done - num_bad - num_not, "green", "#"),
        (num_bad, "red", "!"),
        (num_not, "yellow", "-"),
        (len(progress.running), "cyan", "="),
        (progress.num_queued, "bright_black", "."),
    )
    line = Text(" ", no_wrap=True, overflow="crop")
    reached = 0
    for number, style, character in parts:
        begin, reached = reached, reached + number
        cells = _cell(reached, progress.num_units, width) - _cell(begin, progress.num_units, width)
        line.append((character if ascii_only else "━") * cells, style=style)
    line.append(beside.rjust(TIMES_WIDTH))
    return line


def _cell(number: int, total: int, width: int) -> int:
    return width * number // max(1, total)


def _counts(progress: Progress, space: int) -> Text:
    """Counts in a row, each outcome by its name; what does not fit is left out from the right."""
    outcomes = progress.outcomes
    pieces = [(f"{progress.num_done}/{progress.num_units}", "bold")]
    for outcome in sorted(outcomes, key=lambda outcome: (not outcome.is_failure, list(Outcome).index(outcome))):
        style = "bold red" if outcome.is_failure else "green" if outcome is Outcome.PASSED else "yellow"
        pieces.append((f"{outcomes[outcome]} {label(outcome).lower()}", style))
    pieces += [(f"{len(progress.running)} running", "cyan"), (f"{progress.num_queued} queued", "dim")]
    if progress.num_gpus:
        pieces.append((f"{progress.num_gpus_leased}/{progress.num_gpus} GPUs", "dim"))
    line = Text("", no_wrap=True, overflow="crop")
    for text, style in pieces:
        if line.cell_len + len(text) + GAP > space:
            break
        line.append(" " * (GAP if line.plain else 1) + text, style=style)
    return line


def _clock_time(seconds: float) -> str:
    """1:02 or 1:01:02."""
    minutes, whole = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"
