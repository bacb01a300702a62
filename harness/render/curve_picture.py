"""A small picture of one value of two curves over the steps, with the step at which the runs diverge.

Dots of Braille, two by four in a character; where the terminal cannot, letters: a, b, * where both are.
"""

from collections.abc import Iterator, Sequence
from math import ceil, isfinite

from harness.bits.text import one_line
from harness.process.invocation import Invocation
from harness.render.console import stdout_encodes
from harness.trace.verdict import Curves

HEIGHT = 6
CHARACTERS = "⣿│└─▲"
"""Characters that the terminal must encode; if it cannot, letters are drawn."""
MIN_MARGIN = len("1.234e-05")
MIN_COLUMNS = 10
MAX_COLUMNS = 72
_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a character, by row and column."""
Line = list[float | None]
Dots = set[tuple[int, int]]


def curve_picture(curves: Curves, *, parted: int | None, width: int, is_ascii: bool) -> list[str]:
    """The lines of the picture, at most `width` characters each; none where there is nothing to see.

    `parted` is the step at which the runs diverge; None to mark no step.
    """
    known = [value for line in (curves.a, curves.b) for value in line if value is not None and isfinite(value)]
    if len(curves.steps) < 2 or not known:
        return []
    margin = max(MIN_MARGIN, *map(len, _labels(min(known), max(known)).values()))
    columns = max(MIN_COLUMNS, min(MAX_COLUMNS, width - margin - 8))
    across, down = (1, 1) if is_ascii else (2, 4)
    num_means = ceil(len(curves.steps) / (columns * across))
    a, b = _means(curves.a, num_means), _means(curves.b, num_means)
    known = [value for value in (*a, *b) if value is not None]
    low, high = min(known), max(known)
    canvas = (columns * across, HEIGHT * down)
    dots_a, dots_b = (list(_dots(line, low, high, canvas)) for line in (a, b))
    rows = _letters(set(dots_a), set(dots_b), columns) if is_ascii else _braille({*dots_a, *dots_b}, columns)
    ends = [
        [name for name, dots in (("A", dots_a), ("B", dots_b)) if dots and dots[-1][1] // down == row]
        for row in range(HEIGHT)
    ]
    labels = _labels(low, high)
    axis = "|" if is_ascii else "│"
    means = f", means of {num_means} steps" if num_means > 1 else ""
    lines = [f"{one_line(curves.name, width // 2)}{means}"]
    lines += [f"{labels.get(at, ''):>{margin}} {axis}{row} {' '.join(ends[at])}" for at, row in enumerate(rows)]
    lines += [f"{'':{margin}} {line}" for line in _below(curves.steps, parted, columns, is_ascii)]
    return [f"  {line.rstrip()}" for line in lines]


def _labels(low: float, high: float) -> dict[int, str]:
    """Return the labels of the ends of the range by row, with enough digits to differ."""
    if low == high:
        return {HEIGHT // 2: f"{high:.4g}"}
    digits = next((digits for digits in range(4, 9) if f"{low:.{digits}g}" != f"{high:.{digits}g}"), 9)
    return {0: f"{high:.{digits}g}", HEIGHT - 1: f"{low:.{digits}g}"}


def _means(line: Sequence[float | None], num: int) -> Line:
    """Means of so many values each, of those that are finite."""
    found: Line = []
    for start in range(0, len(line), num):
        finite = [value for value in line[start : start + num] if value is not None and isfinite(value)]
        found.append(sum(value / len(finite) for value in finite) if finite else None)
    return found


def _dots(line: Line, low: float, high: float, canvas: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """(x, y) of each dot, y from above, the last one at the end; values that follow each other are joined."""
    width, height = canvas
    before: tuple[float, float] | None = None
    for index, value in enumerate(line):
        if value is None:
            before = None
            continue
        x = index * (width - 1) / max(1, len(line) - 1)
        # Halves: the distance of two floats may not fit into a float.
        y = (height - 1) * ((high / 2 - value / 2) / (high / 2 - low / 2) if low < high else 0.5)
        x0, y0 = before or (x, y)
        num_dots = max(1, ceil(max(x - x0, abs(y - y0))))
        for part in range(num_dots + 1):
            yield round(x0 + (x - x0) * part / num_dots), round(y0 + (y - y0) * part / num_dots)
        before = x, y


def _below(steps: Sequence[int], parted: int | None, columns: int, is_ascii: bool) -> Iterator[str]:
    """The axis with its mark, and the steps under it."""
    rule = ["-" if is_ascii else "─"] * columns
    words = f"step {steps[0]}"
    if parted is not None and steps[0] <= parted <= steps[-1]:
        rule[round(sum(step < parted for step in steps) * (columns - 1) / (len(steps) - 1))] = "^" if is_ascii else "▲"
        words += f", they diverge at {parted}"
    yield ("+" if is_ascii else "└") + "".join(rule)
    yield f" {words:<{columns - len(str(steps[-1]))}}{steps[-1]}" if len(words) < columns - 6 else f" {words}"


def _braille(dots: Dots, columns: int) -> list[str]:
    cells = [[_BRAILLE] * columns for _ in range(HEIGHT)]
    for x, y in dots:
        cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    return ["".join(map(chr, row)).replace(chr(_BRAILLE), " ") for row in cells]


def _letters(a: Dots, b: Dots, columns: int) -> list[str]:
    marks = {**dict.fromkeys(a, "a"), **dict.fromkeys(b, "b"), **dict.fromkeys(a & b, "*")}
    return ["".join(marks.get((x, y), " ") for x in range(columns)) for y in range(HEIGHT)]


def is_ascii(invocation: Invocation) -> bool:
    """Whether pictures are drawn with letters: the console of Linux has no Braille, nor have some encodings."""
    return invocation.environ.get("TERM") in ("linux", "dumb") or not stdout_encodes(CHARACTERS)
