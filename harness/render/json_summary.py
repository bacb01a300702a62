"""A finished run as one JSON value, what `run --json` prints."""

from typing import Any

from harness.bits.errors import ReportError
from harness.render.run_words import isolation_text
from harness.runner.events import RunFinished, plain
from harness.runner.records.stats import RunState
from harness.runner.reruns.retries import flaky_tests, read_attempts
from harness.runner.test_outcomes import TestOutcome
from harness.runner.units import Outcome, UnitResult

VERSION = 1
FAILURES = (TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.UNFINISHED)


def summary_json(state: RunState, finished: RunFinished) -> dict[str, Any]:
    """Every unit's outcome and failed tests, the GPUs, and the closing figures; plain values only."""
    started = state.started
    figures = plain(finished)
    del figures["t"]
    return {
        "version": VERSION,
        "run_id": started.run_id if started else "",
        "directory": started.directory if started else "",
        **figures,
        "notes": [*finished.notes, *map(isolation_text, finished.isolation)],
        "shard": plain(state.shard),
        "num_units": len(state.units),
        "outcomes": {outcome.value: state.outcomes[outcome] for outcome in Outcome if state.outcomes[outcome]},
        "tests": plain(dict(state.tests)),
        "num_deselected": state.num_deselected,
        "gpus": list(state.gpus),
        "left_out": list(started.left_out) if started else [],
        "quarantined": [{"gpu_id": e.gpu_id, "path": e.path, "reason": e.reason} for e in state.quarantined.values()],
        "units": [_unit(result) for result in state.with_outcome(*Outcome)],
    }


def _unit(result: UnitResult) -> dict[str, Any]:
    return {
        "path": result.unit.path,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "duration_s": result.duration_s,
        "need": result.unit.need.to_json(),
        "gpu_ids": list(result.gpu_ids),
        "tests": plain(result.tests.counts),
        "num_deselected": result.num_deselected,
        "failures": _failures(result),
        "skip_reasons": list(result.skip_reasons),
        "is_accepted": result.is_accepted,
        "all_skipped": result.tests.all_skipped,
        "left_behind": list(result.left_behind),
        "need_disagrees": result.need_disagrees,
        "gpu_memory": plain(result.gpu_memory),
        "is_over_budget": result.is_over_budget,
        "for_want_of_gpus": result.for_want_of_gpus,
        "attempts": plain(result.attempts),
        "flaky_tests": list(flaky_tests(result)) if result.outcome is Outcome.FLAKY else [],
        "directory": result.directory,
    }


def _failures(result: UnitResult) -> list[dict[str, str]]:
    """The tests that failed or never ended, from the unit's report; none where that cannot be read."""
    if not any(result.tests.counts.get(outcome) for outcome in FAILURES):
        return []
    try:
        report = read_attempts(result)
    except (ReportError, OSError):
        return []
    outcomes = ((nodeid, report.outcome_of(nodeid)) for nodeid in report.all_ids())
    return [
        {"id": nodeid, "outcome": outcome.value, "reason": report.ends[nodeid].reason if nodeid in report.ends else ""}
        for nodeid, outcome in outcomes
        if outcome in FAILURES
    ]
