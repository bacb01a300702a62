"""Takes the curve from what a program logs: its lines, TensorBoard, the log of transformers' trainers.

A value belongs to the step that was recorded last when it was logged. What is logged is passed on as it was.
"""

import difflib
import functools
import json
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.bits.errors import TraceError, UsageError
from harness.bits.files import MALFORMED, read_text
from harness.recording.notices import say
from harness.trace.format import TAKEN
from harness.trace.values import Float, is_cost

LogValues = Callable[[Mapping[str, Float]], None]
NAMES = {
    "reward": "reward_mean",
    "rewards/mean": "reward_mean",
    "grad_norm": "gradient_norm",
    "completions/mean_length": "completion_length",
}
"""What other programs call the values that every curve has."""
MAX_LINE_CHARS = 2**16


class PrintedMetrics:
    """Reads the lines of this process's standard output and error as they are written; who prints is never disturbed.

    `patterns` are NAME=REGEX with one group, or REGEX with named groups. A line of standard output that is a JSON
    object gives its numbers, but none for a name that a pattern has. `on_found` receives the names for which a pattern
    has found a number, at each line. ValueError for a pattern that is neither.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        log_values: LogValues,
        on_found: Callable[[Iterable[str]], None] = lambda names: None,
    ) -> None:
        self._patterns = [parse_pattern(text) for text in patterns]
        self._patterned = frozenset(name for pattern in self._patterns for name in pattern.curve_names)
        self._log_values = log_values
        self._on_found = on_found
        self._has_failed = False

    def watch_streams(self, *, has_json: bool = True) -> None:
        """Look at what goes through sys.stdout and sys.stderr from here on; `has_json`: at JSON objects too."""
        self._watch(sys.stdout, has_json=has_json)
        self._watch(sys.stderr, has_json=False)

    def read_line(self, line: str, *, has_json: bool) -> None:
        """Take the values of one line."""
        values: dict[str, Float] = {}
        if has_json and line.startswith("{") and line.endswith("}"):
            with suppress(*MALFORMED):
                of_json = floats(json.loads(line))
                values = {name: value for name, value in of_json.items() if name not in self._patterned}
        for pattern in self._patterns:
            found = floats(pattern.values(line))
            values |= found
            self._on_found(found)
        if values:
            self._log_values(values)

    def _watch(self, stream: Any, *, has_json: bool) -> None:
        if stream is None or not (self._patterns or has_json):
            return
        original = stream.write
        pending: list[str] = []

        @functools.wraps(original)
        def write(text: str, *args: Any, **kwargs: Any) -> Any:
            result = original(text, *args, **kwargs)
            if not self._has_failed and isinstance(text, str):
                try:
                    self._read(text, pending, has_json=has_json)
                except Exception as error:  # whatever it is: who prints must go on as without a recording
                    self._has_failed = True
                    why = f"{type(error).__name__}: {error}"
                    say(f"nothing more is taken from what is printed: {why}")
            return result

        try:
            stream.write = write
        except AttributeError:  # somebody's own stream without room for it: nothing is taken from it
            return

    def _read(self, text: str, pending: list[str], *, has_json: bool) -> None:
        """Take the values of the lines that end in `text`; `pending` is what was written before and not read yet."""
        pending.append(text)
        if "\n" in text or sum(map(len, pending)) > MAX_LINE_CHARS:
            *lines, rest = "".join(pending).split("\n")
            pending[:] = [rest[-MAX_LINE_CHARS:]]
            for line in lines:
                self.read_line(line.rpartition("\r")[2].strip(), has_json=has_json)


@dataclass(frozen=True, slots=True)
class Pattern:
    """What to take from a line."""

    expression: re.Pattern[str]
    name: str
    """Of its one value; empty where its groups have names."""

    @property
    def curve_names(self) -> tuple[str, ...]:
        """What its values are called in the curve."""
        names = (self.name,) if self.name else tuple(self.expression.groupindex)
        return tuple(NAMES.get(name, name) for name in names)

    def values(self, line: str) -> dict[str, str]:
        """The values of one line, as text."""
        found: dict[str, str] = {}
        for match in self.expression.finditer(line):
            named = match.groupdict() if not self.name else {self.name: match.group(1)}
            found |= {name: text for name, text in named.items() if text is not None}
        return found


def parse_pattern(text: str) -> Pattern:
    """NAME=REGEX with one group, or REGEX whose groups have names; ValueError for anything else."""
    name, equals, expression = text.partition("=")
    try:
        if equals and name.replace("/", "_").isidentifier() and re.compile(expression).groups == 1:
            pattern = Pattern(re.compile(expression), name)
        else:
            pattern = Pattern(re.compile(text), "")
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    if not pattern.curve_names:
        raise ValueError(f"{text!r} gives its value no name or no group: NAME=REGEX with one group, or (?P<NAME>...)")
    if taken := sorted({*pattern.curve_names} & {*TAKEN}):
        raise ValueError(f"the name {taken[0]!r} is taken: every line of the curve has its own")
    return pattern


def floats(values: Any) -> dict[str, Float]:
    """Of a mapping those values that are numbers of a float's range, or texts of them, and no costs of the machine.

    Under the curve's own names. Of anything else nothing.
    """
    found = {}
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if not isinstance(name, str) or isinstance(value, bool) or is_cost(name):
            continue
        try:
            number = float(value)
        except Exception:  # no number, one beyond a float's range, or what some class of the program's raises
            continue
        found[NAMES.get(name, name)] = Float.of(number)
    return found


# ----------------------------------------------------------------------------------------------------------- conditions
# Conditions on which a run ends before its end, as a person types them. Pure: both sides read this, no torch.
#
# nan   inf   grad_norm>10   reward<0.2      operators: < <= > >= == !=

NAN, INF = "nan", "inf"
WORDS = (NAN, INF)
OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_COMPARISON = re.compile(r"\s*([A-Za-z_][\w./-]*)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition: a word, or a comparison of a value of the curve with a number."""

    word: str = ""
    """NAN or INF; empty of a comparison."""
    name: str = ""
    """Of the curve."""
    relation: str = ""
    """A key of OPERATORS."""
    number: float = 0.0

    def __str__(self) -> str:
        return self.word or f"{self.name}{self.relation}{self.number!r}"

    def name_among(self, known: Iterable[str]) -> str:
        """Return the curve's name for it, which may differ from the program's."""
        return self.name if self.name in known else NAMES.get(self.name, self.name)

    def holds(self, values: Mapping[str, Float]) -> bool:
        """Whether a comparison holds of these values; of a name that is not among them it does not. NaN is only !=."""
        value = values.get(self.name_among(values))
        return value is not None and OPERATORS[self.relation](value.value(), self.number)


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a condition held, or why none can hold."""

    condition: str
    step: int
    rank: int = 0
    phase: str = ""
    """Phase of the value that shows it; empty for a value of the curve or an error."""
    name: str = ""
    """Name of the recorded value, or of the value of the curve."""
    occurrence: int = 0
    element: tuple[int, ...] = ()
    """Its indices, of the first of several."""
    value: str = ""
    """What stands there, or what the error says."""
    unknown: str = ""
    """A name of which the curve has nothing: nothing else is said then."""
    known: tuple[str, ...] = ()
    """What the curve has."""

    def write(self, path: Path) -> None:
        """Write a file that is not there yet; FileExistsError where another process was faster, other OSErrors."""
        with path.open("x", encoding="utf-8") as file:
            file.write(json.dumps(asdict(self)) + "\n")


def read_stop(path: Path) -> Stop | None:
    """The stop in a file; None where the run went to its end. TraceError for one that is cut: its disk was full."""
    try:
        fields = json.loads(read_text(path))
        return Stop(**{**fields, "element": tuple(fields["element"]), "known": tuple(fields["known"])})
    except FileNotFoundError:
        return None
    except (OSError, *MALFORMED) as error:
        raise TraceError(
            f"{path} does not report where the run ended: {error!r:.100}",
            legal="what the run has written there",
            remedy="free disk space, and run it again",
        ) from None


def parse_condition(text: str, option: str = "--break-on", words: Sequence[str] = WORDS) -> Condition:
    """Parse a condition; raise UsageError, which begins with the option, for any other text.

    `words` are those that apply to the option: the error lists only these as legal.
    """
    if text.strip() in words:
        return Condition(text.strip())
    match = _COMPARISON.fullmatch(text)
    try:
        number = float(match[3]) if match else math.nan
    except ValueError:
        number = math.nan
    if match is None or math.isnan(number):
        others = f"{', '.join(words)}, or " if words else ""
        raise UsageError(
            f"{option} {text!r}",
            legal=f"{others}a name of the curve, one of {' '.join(OPERATORS)} and a number",
            remedy=f"{option} 'reward<0.2'",
        )
    return Condition("", match[1], match[2], number)


def refuse_unknown(unknown: Sequence[str], known: Iterable[str]) -> None:
    """UsageError where there are names that a curve has not; `known` are those that it has."""
    if unknown:
        known = set(known)
        near = difflib.get_close_matches(unknown[0], known, n=1)
        raise UsageError(
            f"the curve has no value {unknown[0]!r}",
            legal=", ".join(sorted(known)) or "nothing: this program reports no values",
            remedy=f"did you mean {near[0]!r}?" if near else "--metric NAME=REGEX reads one from a command's output",
        )
