"""A finished run as JSON: what `run --json` and `merge --json` print."""

from collections.abc import Iterator
from typing import Any

from harness.render.run_words import isolation_text, report_of
from harness.runner.events import RunFinished, plain
from harness.runner.records.recorded_run import MergedRun
from harness.runner.records.stats import RunState
from harness.runner.report_file import TestOutcome
from harness.runner.reruns.retries import flaky_tests
from harness.runner.units import Outcome, UnitResult

VERSION = 1
FAILURES = (TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.UNFINISHED)


def summary_json(state: RunState, finished: RunFinished) -> dict[str, Any]:
    """Every unit's outcome and failed tests, the GPUs, and the closing figures; plain values only."""
    started = state.started
    return {
        "version": VERSION,
        "run_id": started.run_id if started else "",
        "directory": started.directory if started else "",
        **{name: value for name, value in plain(finished).items() if name != "t"},
        "notes": [*finished.notes, *map(isolation_text, finished.isolation)],
        "shard": plain(state.shard),
        "num_units": len(state.units),
        "outcomes": {outcome.value: state.outcomes[outcome] for outcome in Outcome if state.outcomes[outcome]},
        "tests": plain(dict(state.tests)),
        "num_deselected": state.num_deselected,
        "gpus": list(state.gpus),
        "left_out": list(started.left_out) if started else [],
        "quarantined": plain(list(state.quarantined.values())),
        "units": [_unit(result) for result in state.with_outcome(*Outcome)],
    }


def merge_json(merged: MergedRun) -> dict[str, Any]:
    """The summary of a run, with the runs that it was merged from; plain values only."""
    runs = []
    for run in merged.runs:
        end = {"exit_code": run.finished.exit_code if run.finished is not None else None}
        num_units = len(run.collected.units) if run.collected is not None else 0
        own = {"run_id": run.started.run_id, "shard": run.started.shard, "num_units": num_units}
        runs.append({"name": run.name, **own, **end})
    summary = summary_json(merged.state, merged.finished)
    return {**summary, "runs": runs, "missing_shards": list(merged.missing_shards)}


def _unit(result: UnitResult) -> dict[str, Any]:
    values = plain(result)
    del values["unit"]
    return {
        "path": result.unit.path,
        **values,
        "need": plain(result.unit.need),
        "tests": plain(result.tests.counts),
        "failures": list(_failures(result)),
        "all_skipped": result.tests.all_skipped,
        "need_disagrees": result.need_disagrees,
        "is_over_budget": result.is_over_budget,
        "flaky_tests": list(flaky_tests(result)) if result.outcome is Outcome.FLAKY else [],
    }


def _failures(result: UnitResult) -> Iterator[dict[str, str]]:
    """Yield the tests that failed or never ended, from the unit's report; none where that cannot be read."""
    if not any(result.tests.counts.get(outcome) for outcome in FAILURES):
        return
    report = report_of(result)
    for nodeid in report.all_ids():
        if (outcome := report.outcome_of(nodeid)) in FAILURES:
            reason = report.ends[nodeid].reason if nodeid in report.ends else ""
            yield {"id": nodeid, "outcome": outcome.value, "reason": reason}
