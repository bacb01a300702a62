"""A gate that has ended: what became of each scenario, what of that fails it, and with which exit code. Data only."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.findings import Finding
from harness.lab.experiments.worktrees import Commit
from harness.lab.gate.change import Change, Comparison
from harness.lab.gate.costs import MEMORY, SECONDS, CostChange, Limits
from harness.lab.gate.golden import Golden
from harness.runner.config import GateKeys

BEHAVIOUR, NUMERICS, CONFIGURATION = "behaviour", "numerics", "configuration"
SLOWDOWN, OF_MEMORY, NOT_COMPARABLE = "slowdown", "memory", "not_comparable"
REASONS = (BEHAVIOUR, NUMERICS, CONFIGURATION, SLOWDOWN, OF_MEMORY, NOT_COMPARABLE)
"""What may stand in `fail-on`."""
DEFAULT = (BEHAVIOUR, NUMERICS, SLOWDOWN, OF_MEMORY, NOT_COMPARABLE)
BROKEN = "broken"
"""Beside REASONS: the head does not run. It always fails."""
OF_CHANGE = {
    Change.NUMERICS: NUMERICS,
    Change.BEHAVIOUR: BEHAVIOUR,
    Change.CONFIGURATION: CONFIGURATION,
    Change.REMOVED: CONFIGURATION,
    Change.NONDETERMINISTIC: NOT_COMPARABLE,
    Change.NOT_COMPARABLE: NOT_COMPARABLE,
    Change.BROKEN: BROKEN,
}


OF_COST = {SECONDS: SLOWDOWN, MEMORY: OF_MEMORY}


def failures(change: Change, costs: Iterable[CostChange], fail_on: Collection[str] = DEFAULT) -> tuple[str, ...]:
    """Return what fails of a scenario, in the order of REASONS; BROKEN always does."""
    found = {OF_CHANGE.get(change)} | {OF_COST[cost.kind] for cost in costs if cost.is_too_much}
    return tuple(each for each in (BROKEN, *REASONS) if each in found and each in (BROKEN, *fail_on))


def policy_of(typed: Mapping[str, Any], keys: GateKeys, where: str) -> tuple[tuple[str, ...], Limits]:
    """(reasons to fail, limits) of what was typed over the keys of a configuration over the defaults.

    UsageError for an unknown reason; the word "none" alone stands for none.
    """
    words: Sequence[str] = DEFAULT if keys.fail_on is None else keys.fail_on
    if typed.get("fail_on") is not None:
        where, words = "--fail-on", [word.strip() for word in typed["fail_on"].split(",")]
    words = () if list(words) == ["none"] else tuple(dict.fromkeys(words))
    if unknown := [word for word in words if word not in REASONS]:
        raise UsageError(
            f"{where} {unknown[0]!r}",
            legal=", ".join((*REASONS, "or none")),
            remedy="--fail-on behaviour,numerics; a scenario that does not run always fails",
        )
    defaults = Limits()._asdict()
    return words, Limits(**{name: typed.get(name) or getattr(keys, name) or x for name, x in defaults.items()})


def exit_code(failures: Collection[str]) -> ExitCode:
    """That of a gate from all that fails it: a divergence weighs most, then what is not comparable, then BROKEN."""
    if any(each not in (CONFIGURATION, NOT_COMPARABLE, BROKEN) for each in failures):
        return ExitCode.DIVERGED
    if any(each != BROKEN for each in failures):
        return ExitCode.NOT_COMPARABLE
    return ExitCode.INCOMPLETE_RECORDING if failures else ExitCode.OK


@dataclass(frozen=True, slots=True)
class GateScenario:
    """What became of one scenario."""

    name: str
    comparison: Comparison
    costs: tuple[CostChange, ...] = ()
    against: str = ""
    """With what it was compared: "base 3f9c2a7", "golden 5d0e..."; empty where with nothing."""
    notes: tuple[Finding, ...] = ()
    golden: Golden | None = None
    """With which it was compared, or that was written."""
    output: Path | None = None
    """What the run printed that did not come to its end."""
    replay: tuple[str, ...] = ()
    """The words after `rlharness replay` that run it again; empty if none of its runs is compared."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate that has ended."""

    head: Commit
    """The commit that is checked out."""
    is_dirty: bool
    """Whether the working tree holds more."""
    base: Commit | None
    """None where nothing was compared with a revision."""
    fail_on: tuple[str, ...]
    scenarios: tuple[GateScenario, ...]
    directory: Path
    """Directory of the traces."""
    notes: tuple[Finding, ...] = ()
    interrupted_by: str = ""
    bisect: tuple[str, ...] = ()
    """The command that finds the commit, without the scenario; empty where no commits lie between both sides."""

    @property
    def failures(self) -> dict[str, tuple[str, ...]]:
        """By scenario, what fails it."""
        found = {each.name: failures(each.comparison.change, each.costs, self.fail_on) for each in self.scenarios}
        return {name: reasons for name, reasons in found.items() if reasons}

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of all scenarios together."""
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        return exit_code([reason for reasons in self.failures.values() for reason in reasons])
