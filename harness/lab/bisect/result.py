"""A bisection that has ended. Data only."""

from dataclasses import dataclass
from pathlib import Path

from harness.bits.exit_codes import ExitCode
from harness.lab.bisect.criterion import Criterion
from harness.lab.bisect.search import Outcome
from harness.lab.experiments.worktrees import Commit
from harness.trace.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Probe:
    """One candidate that was looked at."""

    name: str
    """A commit's whole hash, or a version."""
    label: str
    """As a person knows it."""
    outcome: Outcome
    reason: str
    directory: Path | None = None
    """Of its trace; None where it left none."""
    chains: tuple[str, ...] = ()
    """Of its last step, a text for each rank: equal for equal bits."""


@dataclass(frozen=True, slots=True)
class Bisection:
    """What a bisection has found."""

    scenario: str
    criterion: Criterion
    good: Probe
    bad: Probe
    probes: tuple[Probe, ...]
    """Between the two, in the order in which they were looked at."""
    candidates: tuple[Probe, ...]
    """Among which the first bad one is, the earliest first; one, unless some could not be run, or were not reached."""
    found: Probe
    """The earliest that is known to be bad."""
    last_good: Probe
    """The run with which it was compared: of a parent, where that was run."""
    verdict: Verdict
    """Of `last_good` (A) and `found` (B)."""
    directory: Path
    commit: Commit | None = None
    """Of `found`, where candidates are commits."""
    notes: tuple[str, ...] = ()
    interrupted_by: str = ""

    @property
    def exit_code(self) -> ExitCode:
        """OK where one was found."""
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        return ExitCode.OK if len(self.candidates) == 1 else ExitCode.INCOMPLETE_RECORDING
