"""Finding of a check of the machine: the shape shared by the preflight of a run and by `rlharness doctor`."""

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """Severity of a finding, in the order in which findings are shown."""

    BROKEN = "broken"
    """Something will break: `doctor` exits with 1."""
    WARNING = "warning"
    """It works, but costs time or has surprising effects."""
    FINE = "fine"
    """It was checked, and is as it should be."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    check: str
    """Subject of the check, in a word or two: "interfaces", "TMPDIR"."""
    severity: Severity
    measured: str
    """Observation, with its values."""
    breaks: str = ""
    """Consequences of the problem; empty if there are none."""
    remedy: str = ""
    """A command to type, or what to change; empty where nothing."""
    exports: tuple[tuple[str, str], ...] = ()
    """Environment variables that mend it, name and value: what `doctor --fix` prints."""
    unsets: tuple[str, ...] = ()
    """Environment variables that are better gone: `doctor --fix` prints these too."""
    details: tuple[str, ...] = ()
    """Lines that show it: what the part that failed has logged."""
