"""Outcomes of units and tests in words."""

from collections.abc import Iterable

from harness.bits.text import ranges
from harness.runner.records.stats import RunState
from harness.runner.test_outcomes import TestCounts, TestOutcome
from harness.runner.units import Outcome, UnitResult

_SHORT = {
    TestOutcome.PASSED: "passed",
    TestOutcome.FAILED: "failed",
    TestOutcome.ERROR: "in error",
    TestOutcome.SKIPPED: "skipped",
    TestOutcome.XFAILED: "xfailed",
    TestOutcome.XPASSED: "xpassed",
    TestOutcome.UNFINISHED: "unfinished",
    TestOutcome.UNSTARTED: "not started",
}


def label(outcome: Outcome) -> str:
    """The outcome in words, in capitals if it needs attention: "passed", "FAILED", "TIMED OUT"."""
    words = outcome.value.replace("_", " ")
    return words if outcome in (Outcome.PASSED, Outcome.NO_TESTS) else words.upper()


def tally(tests: TestCounts) -> str:
    """14 passed, 2 skipped: in the order of TestOutcome, worst not first; "no tests" for none."""
    parts = [f"{tests[outcome]:,} {_SHORT[outcome]}" for outcome in TestOutcome if tests[outcome]]
    return ", ".join(parts) or "no tests"


def facts(result: UnitResult, state: RunState) -> list[str]:
    """Return how long a unit ran, on which GPUs, and its test counts; empty if it never started."""
    if not result.directory:
        return []
    return [f"{result.duration_s:.1f} s", gpus(result.gpu_ids, state), tally(result.tests)]


def estimated(num_estimated: int, num_planned: int) -> str:
    """Return how many durations of a plan are estimates; empty if all were measured in earlier runs."""
    if not num_estimated:
        return ""
    if num_estimated < num_planned:
        return f"estimated for {num_estimated:,} of {num_planned:,} files"
    return "estimated: no durations known yet"


def gpus(gpu_ids: Iterable[str], state: RunState) -> str:
    """The GPUs of a lease by their positions among the run's: "gpu 0", "gpus 0-3,6"; "cpu" for none."""
    names = gpu_names(state.gpus)
    shown = [names.get(gpu_id, gpu_id) for gpu_id in gpu_ids]
    if not shown:
        return "cpu"
    return f"gpu{'' if len(shown) == 1 else 's'} {ranges(shown)}"


def gpu_names(gpus: Iterable[str]) -> dict[str, str]:
    """The index of each GPU by its id, from the lines of RunStarted ("0 NVIDIA H200 143 GB GPU-...")."""
    words = [line.split() for line in gpus]
    return {line[-1]: line[0] for line in words if line}
