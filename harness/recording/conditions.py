"""Conditions on which a run ends before its end, as a person types them. Pure: both sides read this, no torch.

nan   inf   grad_norm>10   reward<0.2      operators: < <= > >= == !=
"""

import difflib
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.bits.errors import TraceError, UsageError
from harness.bits.files import MALFORMED, read_text
from harness.recording.metrics import NAMES
from harness.trace.values import Float

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


def unknown_names(conditions: Iterable[Condition], known: Iterable[str]) -> list[str]:
    """What comparisons are made with, and no curve of these names has."""
    known = set(known)
    return [each.name for each in conditions if not each.word and each.name_among(known) not in known]


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
