"""What a check of the machine found: the shape shared by the preflight of a run and by `rlharness doctor`."""

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How much a finding matters; in the order in which they are shown."""

    BROKEN = "broken"
    """Something will break: `doctor` exits with 1."""
    WARNING = "warning"
    """It works, but costs time or has surprising effects."""
    FINE = "fine"
    """It was looked at, and is as it should be."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    """What was looked at, in a word or two: "interfaces", "TMPDIR"."""
    severity: Severity
    measured: str
    """What was seen, with its values."""
    breaks: str = ""
    """What it will break; empty where nothing."""
    remedy: str = ""
    """A command to type, or what to change; empty where nothing."""
    exports: tuple[tuple[str, str], ...] = ()
    """Environment variables that mend it, name and value: what `doctor --fix` prints."""
    unsets: tuple[str, ...] = ()
    """Environment variables that are better gone: `doctor --fix` prints these too."""
    details: tuple[str, ...] = ()
    """Lines that show it: what the part that failed has logged."""
