"""What of a gate's findings fails it, and with which exit code. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.lab.gate.change import Change
from harness.lab.gate.costs import MEMORY, SECONDS, CostChange

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
CODES = {CONFIGURATION: ExitCode.NOT_COMPARABLE, NOT_COMPARABLE: ExitCode.NOT_COMPARABLE}
"""Others that fail are divergence; BROKEN alone is an incomplete recording."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What fails."""

    fail_on: tuple[str, ...] = DEFAULT

    def findings(self, change: Change, costs: Iterable[CostChange]) -> tuple[str, ...]:
        """Everything about a scenario that a policy may fail on, in the order of REASONS; BROKEN too."""
        found = {OF_CHANGE[change]} if change in OF_CHANGE else set()
        names = {SECONDS: SLOWDOWN, MEMORY: OF_MEMORY}
        found |= {names[cost.kind] for cost in costs if cost.is_too_much}
        return tuple(each for each in (BROKEN, *REASONS) if each in found)

    def failures(self, change: Change, costs: Iterable[CostChange]) -> tuple[str, ...]:
        """Of these, what fails."""
        return tuple(each for each in self.findings(change, costs) if each == BROKEN or each in self.fail_on)


def exit_code(failures: Collection[str]) -> ExitCode:
    """That of a gate from all that fails it: a divergence weighs most, then what is not comparable, then BROKEN."""
    if any(each not in CODES and each != BROKEN for each in failures):
        return ExitCode.DIVERGED
    if any(each in CODES for each in failures):
        return ExitCode.NOT_COMPARABLE
    return ExitCode.INCOMPLETE_RECORDING if failures else ExitCode.OK


def checked_reasons(words: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the reasons to fail, each once; "none" alone gives an empty tuple. UsageError for any other word."""
    if list(words) == ["none"]:
        return ()
    if unknown := [word for word in words if word not in REASONS]:
        raise UsageError(
            f"{where} {unknown[0]!r}",
            legal=", ".join((*REASONS, "or none")),
            remedy="--fail-on behaviour,numerics; a scenario that does not run always fails",
        )
    return tuple(dict.fromkeys(words))
