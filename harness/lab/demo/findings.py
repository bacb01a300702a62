"""What is planted in the example project, and what the commands reported of it. Data only."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.bits.exit_codes import ExitCode
from harness.lab.demo.project import suite_files
from harness.runner.units import Outcome, UnitResult
from harness.trace.verdict import Divergence, Kind, Verdict

PLANTED_OUTCOMES = {
    "tests/test_sampler.py": Outcome.TIMED_OUT,
    "tests/test_kernels.py": Outcome.CRASHED,
    "tests/test_node.py": Outcome.NOT_RUN,
}
"""Outcome of each test file with a planted fault; all other files pass."""
PLANTED_STEP, PLANTED_PHASE, PLANTED_NAME = 3, "rollout", "batch.0"
"""Step, phase and name of the first recorded value that differs between two runs of the training program."""


@dataclass(frozen=True, slots=True)
class FileFinding:
    """A test file of the demo with the outcome it must have, and the one it had."""

    path: str
    expected: Outcome
    outcome: Outcome | None
    """Outcome that the runner reported; None if it reported none."""
    reason: str = ""

    @property
    def is_as_expected(self) -> bool:
        """Whether the runner reported what is planted."""
        return self.outcome is self.expected


@dataclass(frozen=True, slots=True)
class DivergenceFinding:
    """The first difference that the replay reported; None each if it reported none."""

    step: int | None = None
    phase: str | None = None
    name: str | None = None

    @property
    def is_as_expected(self) -> bool:
        """Whether the replay named the planted step and value."""
        return (self.step, self.phase, self.name) == (PLANTED_STEP, PLANTED_PHASE, PLANTED_NAME)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What a demo has shown."""

    directory: Path
    """Directory of the example project."""
    files: tuple[FileFinding, ...]
    divergence: DivergenceFinding | None
    """First difference of the replay; None if torch is not installed and nothing was replayed."""
    python: str = "python"
    """Program that ran train.py."""

    @property
    def exit_code(self) -> ExitCode:
        """OK if everything planted was reported as it is, else INTERNAL_ERROR."""
        is_diverged = self.divergence is None or self.divergence.is_as_expected
        is_shown = is_diverged and all(each.is_as_expected for each in self.files)
        return ExitCode.OK if is_shown else ExitCode.INTERNAL_ERROR


def file_findings(results: Mapping[str, UnitResult]) -> tuple[FileFinding, ...]:
    """Compare the result of each test file, by its path, with what is planted in it; planted faults come first."""
    paths = (*PLANTED_OUTCOMES, *(path for path in suite_files() if path not in PLANTED_OUTCOMES))
    return tuple(_file_finding(path, results.get(path)) for path in paths)


def _file_finding(path: str, result: UnitResult | None) -> FileFinding:
    expected = PLANTED_OUTCOMES.get(path, Outcome.PASSED)
    if result is None:
        return FileFinding(path, expected, None)
    return FileFinding(path, expected, result.outcome, result.reason)


def divergence_finding(verdict: Verdict | None) -> DivergenceFinding:
    """Return the first difference of a verdict; an empty one if two runs were equal or could not be compared."""
    first: Divergence | None = verdict.first if verdict is not None and verdict.kind is Kind.DIVERGED else None
    if first is None:
        return DivergenceFinding()
    value = first.a or first.b
    return DivergenceFinding(first.step, value.phase if value else None, value.name if value else None)
