"""Findings of a search, and the work left. Data only: `search` decides, `render.chaos` reports."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bits.exit_codes import ExitCode
from harness.lab.chaos.comparison import Outcome, Sign
from harness.lab.chaos.plan import ChaosPlan


@dataclass(frozen=True, slots=True)
class Tally:
    """How often a perturbation was run, and how often it failed."""

    num_failed: int = 0
    num_runs: int = 0

    def plus(self, *, has_failed: bool) -> "Tally":
        """With one more run."""
        return Tally(self.num_failed + has_failed, self.num_runs + 1)

    @property
    def is_steady(self) -> bool:
        """Whether all runs ended alike."""
        return self.num_failed in (0, self.num_runs)


@dataclass(frozen=True, slots=True)
class Finding:
    """A perturbation that is seen in the bits."""

    perturbation: Mapping[str, Any]
    """The smallest that was found; empty where nothing has to be changed at all."""
    outcome: Outcome
    """Of a run under it."""
    tally: Tally
    """Of all runs under it."""
    without: Tally
    """Of all runs with nothing changed."""
    drawn: Mapping[str, Any]
    """What was changed when it was first seen."""
    index: int | None = None
    """Which of the drawn ones this was, from 1 on; None where none was drawn."""
    num_steps: int | None = None
    """So many steps show it; None: it was run to its end."""
    is_smallest: bool = True
    """Whether the search for a smaller one came to its end."""


@dataclass(frozen=True, slots=True)
class NotApplied:
    """A perturbation of which a part never happened: neither found nor cleared."""

    perturbation: Mapping[str, Any]
    why: str


@dataclass(frozen=True, slots=True)
class Chaos:
    """A search that has ended."""

    plan: ChaosPlan
    finding: Finding | None = None
    num_probes: int = 0
    """Drawn ones that were run and applied."""
    num_runs: int = 0
    problem: str = ""
    """Why there is no baseline."""
    remedy: str = ""
    """Of the problem; empty where none is known."""
    output: Path | None = None
    """What the run printed that should have been the baseline."""
    interrupted_by: str = ""
    """The name of a signal; empty where none has asked for the end."""
    is_out_of_time: bool = False
    not_applied: tuple[NotApplied, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """What was found weighs most; then that the search did not come to its end."""
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        if self.finding is not None:
            return ExitCode.DIVERGED if self.finding.outcome.sign is Sign.MOVED else ExitCode.INCOMPLETE_RECORDING
        return ExitCode.INCOMPLETE_RECORDING if self.problem or not self.num_probes else ExitCode.OK
