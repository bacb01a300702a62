"""A gate that has ended: what became of each scenario, and what of that fails it. Data only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.bits.exit_codes import ExitCode
from harness.lab.experiments.worktrees import Commit
from harness.lab.gate.change import Finding
from harness.lab.gate.costs import CostChange
from harness.lab.gate.golden import Golden
from harness.lab.gate.policy import Policy, exit_code
from harness.lab.gate.reasons import Reason


@dataclass(frozen=True, slots=True)
class GateScenario:
    """What became of one scenario."""

    name: str
    finding: Finding
    costs: tuple[CostChange, ...] = ()
    against: str = ""
    """With what it was compared: "base 3f9c2a7", "golden 5d0e..."; empty where with nothing."""
    notes: tuple[Reason, ...] = ()
    golden: Golden | None = None
    """With which it was compared, or that was written."""
    output: Path | None = None
    """What the run printed that did not come to its end."""
    typed: tuple[str, ...] = ()
    """The words that name it to other commands, with its size and overrides; empty if none of its runs is compared."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate that has ended."""

    head: Commit
    """What is checked out."""
    is_dirty: bool
    """Whether the working tree holds more."""
    base: Commit | None
    """None where nothing was compared with a revision."""
    policy: Policy
    scenarios: tuple[GateScenario, ...]
    directory: Path
    """Of the traces."""
    notes: tuple[Reason, ...] = ()
    interrupted_by: str = ""
    failures: Mapping[str, tuple[str, ...]] = field(init=False)
    """By scenario, what fails it."""

    def __post_init__(self) -> None:
        found = {each.name: self.policy.failures(each.finding.change, each.costs) for each in self.scenarios}
        object.__setattr__(self, "failures", {name: reasons for name, reasons in found.items() if reasons})

    @property
    def exit_code(self) -> ExitCode:
        """Of all scenarios together."""
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        return exit_code([reason for reasons in self.failures.values() for reason in reasons])
