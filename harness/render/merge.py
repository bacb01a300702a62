"""Output of `merge`: the runs, then the summary of all of them as one; the same as JSON."""

from collections.abc import Iterator
from typing import Any

from harness.bits.text import count, one_line
from harness.render.json_summary import summary_json
from harness.runner.records.merging import MergedRun
from harness.runner.records.recorded_run import RecordedRun


def merge_lines(merged: MergedRun) -> Iterator[str]:
    """Yield a line for each of the merged runs, and one for each missing shard or early end."""
    shards = f", {count(merged.num_shards, 'shard')}" if merged.num_shards else ""
    yield f"rlharness merge: {count(len(merged.runs), 'run')}{shards}"
    for run in merged.runs:
        yield f"  {_run(run)}"
    for error in merged.errors:
        yield f"  {one_line(error, 4096)}"


def _run(run: RecordedRun) -> str:
    shard = f"shard {one_line(run.started.shard)}, " if run.started.shard else ""
    units = count(len(run.collected.units), "unit") if run.collected is not None else "no units known"
    end = f"exit code {run.finished.exit_code}" if run.finished is not None else "killed before its end"
    return f"{shard}{units}, {end}: {one_line(run.name, 4096)}"


def merge_json(merged: MergedRun) -> dict[str, Any]:
    """The summary of a run, with the runs that it was merged from; plain values only."""
    runs = [
        {
            "name": run.name,
            "run_id": run.started.run_id,
            "shard": run.started.shard,
            "num_units": len(run.collected.units) if run.collected is not None else 0,
            "exit_code": run.finished.exit_code if run.finished is not None else None,
        }
        for run in merged.runs
    ]
    missing = list(merged.missing_shards)
    return {**summary_json(merged.state, merged.finished), "runs": runs, "missing_shards": missing}
