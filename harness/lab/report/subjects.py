"""What a report is of: runs, each with a letter, and what every other run is to the first."""

from dataclasses import dataclass
from string import ascii_uppercase

from harness.trace.reader import Trace
from harness.trace.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Subject:
    """One run."""

    letter: str
    """A for the first: what it is called in the page."""
    name: str
    """As it was typed."""
    trace: Trace


@dataclass(frozen=True, slots=True)
class Pair:
    """A run beside the first."""

    a: Subject
    b: Subject
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Report:
    """The runs, and the verdict on each but the first."""

    subjects: tuple[Subject, ...]
    pairs: tuple[Pair, ...]


def letter(number: int) -> str:
    """A, B, ... Z, AA, AB: of the run of this number, from 0 on."""
    rest, last = divmod(number, len(ascii_uppercase))
    return (letter(rest - 1) if rest else "") + ascii_uppercase[last]
