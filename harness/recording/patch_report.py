"""Report of the values patched into another run: one line of JSON each, beside the trace. No torch.

    {"step": 12, "phase": "advantage", "name": "advantages", "occurrence": 0, "fate": "put", "why": ""}

Both sides import this: the patched process writes it, the launcher classifies the run by it.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from harness.core.errors import TraceError
from harness.core.malformed import MALFORMED
from harness.core.regular_file import read_text
from harness.trace.chain import Key

REPORT = "transplant.jsonl"


class Fate(StrEnum):
    """What became of a value."""

    PUT = "put"
    """The program's own memory now holds the donor's bits, which are others."""
    EQUAL = "equal"
    """Both runs had the same bits."""
    NO_MEMORY = "no_memory"
    """It differs and stays: a text, or a number of Python's own, has no memory that the program continues to use."""
    UNLIKE = "unlike"
    """It differs in dtype or shape, cannot be written to, or only one of the runs has it: the run was ended there."""


@dataclass(frozen=True, slots=True)
class Transplanted:
    """One value that was to be put."""

    step: int
    phase: str
    name: str
    occurrence: int
    fate: Fate
    why: str = ""

    @property
    def key(self) -> Key:
        return self.phase, self.name, self.occurrence

    def to_line(self) -> str:
        """As it stands in the report."""
        return json.dumps(asdict(self)) + "\n"


def is_taken(key: Key, phases: Collection[str], values: Collection[tuple[str, str] | Key]) -> bool:
    """Whether a value is of one of these phases, or one of these values: by phase and name, or its occurrence too."""
    return key[0] in phases or key in values or key[:2] in values


def read_report(directory: Path) -> Sequence[Transplanted]:
    """What the report in the directory of a trace says; nothing where there is none.

    A line that is cut is left out. TraceError where the file cannot be read.
    """
    try:
        lines = read_text(directory / REPORT).split("\n")[:-1]
        return tuple(Transplanted(**{**(fields := json.loads(line)), "fate": Fate(fields["fate"])}) for line in lines)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise TraceError(f"{directory / REPORT} cannot be read: {error.strerror}") from None
    except MALFORMED as error:
        raise TraceError(f"{directory / REPORT} is damaged: {error!r:.100}", remedy="run it again") from None
