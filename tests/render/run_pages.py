"""Runs of any size for pages and exports: the events of a run, given to reporters as a dispatcher does."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from harness.bits.exit_codes import ExitCode
from harness.process.run_directory import make_run_directory
from harness.render.run_page import run_page_text
from harness.render.run_reporters import JsonlReporter, LateReporter
from harness.runner.events import (
    AttemptStarted,
    CollectionFinished,
    Event,
    LeaseReturned,
    RunFinished,
    RunStarted,
    TestFinished,
    TestStarted,
    UnitFinished,
)
from harness.runner.need import Need
from harness.runner.records.recorded_run import PAGE, RECORD
from harness.runner.records.stats import RunState, closing_figures
from harness.runner.records.timeline import Timeline
from harness.runner.report_file import TestCounts, TestOutcome
from harness.runner.reporter import Reporter
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult

Tests = Mapping[str, tuple[str, float]]
"""Outcome and seconds of each test of a file, by its name."""


def write_run(root: Path, run_id: str, files: Mapping[str, Tests], *, num_gpus: int = 2, text: str = "") -> Path:
    """Carry out a run of `files` below `root`, one file after another on each GPU, and write its page; its directory.

    `text` is the failure of each failed test. The first of every three files needs no GPU.
    """
    directory = make_run_directory(root, run_id)
    state = RunState()
    record = directory / RECORD
    timeline = Timeline()
    page = LateReporter(directory / PAGE, "the page", partial(run_page_text, timeline))
    reporters: list[Reporter] = [JsonlReporter(record), timeline, page]

    def take(event: Event) -> None:
        state.apply(event)
        for reporter in reporters:
            reporter.on_event(event, state)

    gpus = [f"GPU-{number:04d}" for number in range(num_gpus)]
    lines = tuple(f"{number} NVIDIA H200 143 GB {gpu}" for number, gpu in enumerate(gpus))
    take(RunStarted(0.0, run_id, str(directory), lines, (), (), "cgroup", 1))
    units = [Unit(path, Need(gpus=int(number % 3 > 0)), NeedSource.IMPORT) for number, path in enumerate(files)]
    take(CollectionFinished(0.5, tuple(units), (1.0,) * len(units), 1.0, 1.0, 0.5))
    free_s = dict.fromkeys([*gpus, ""], 0.5)
    for number, unit in enumerate(units):
        leased = min(gpus, key=lambda gpu: free_s[gpu]) if unit.need.gpus else ""
        t, tests = free_s[leased], files[unit.path]
        gpu_ids, attempt = ((leased,) if leased else ()), directory / "units" / f"{number:04d}"
        take(AttemptStarted(t, unit.path, gpu_ids, number, str(attempt)))
        for name, (outcome, seconds) in tests.items():
            take(TestStarted(t, unit.path, f"{unit.path}::{name}", None))
            t += seconds
            if outcome != TestOutcome.UNFINISHED:
                take(TestFinished(t, unit.path, f"{unit.path}::{name}", outcome, seconds))
        write_report(attempt, unit, tests, text)
        if gpu_ids:
            take(LeaseReturned(t, unit.path, gpu_ids))
        duration_s, free_s[leased] = t - free_s[leased], t
        outcomes = [TestOutcome(outcome) for outcome, _ in tests.values()]
        outcome = Outcome.FAILED if TestOutcome.FAILED in outcomes else Outcome.PASSED
        if TestOutcome.UNFINISHED in outcomes:
            outcome = Outcome.CRASHED
        counts = TestCounts({each: outcomes.count(each) for each in set(outcomes)})
        take(UnitFinished(t, UnitResult(unit, outcome, "", duration_s, gpu_ids, counts, directory=str(attempt))))
    code = ExitCode.TESTS_FAILED if any(outcome.is_failure for outcome in state.outcomes) else ExitCode.OK
    take(closing_figures(state, t=max(free_s.values()), exit_code=code, lower_bound_s=1.0))
    for reporter in reporters:
        reporter.close()
    return directory


def write_report(attempt: Path, unit: Unit, tests: Tests, text: str) -> None:
    """Write what an attempt leaves: its report and its output."""
    attempt.mkdir(parents=True)
    nodeids = [f"{unit.path}::{name}" for name in tests]
    records: list[dict[str, object]] = [
        {"k": "hello", "version": 1, "pid": 1},
        {"k": "collected", "need": unit.need.to_json(), "nodeids": nodeids},
    ]
    for nodeid, (outcome, seconds) in zip(nodeids, tests.values(), strict=True):
        record: dict[str, object] = {"id": nodeid, "outcome": outcome, "duration_s": seconds}
        if outcome == TestOutcome.FAILED:
            record |= {"reason": text[:80], "text": text}
        records.append({"k": "start", "id": nodeid, "timeout_s": None})
        if outcome != TestOutcome.UNFINISHED:
            records.append({"k": "end", **record})
    (attempt / "report.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records), "utf-8")
    (attempt / "output.log").write_text(f"output of {unit.path}\n{text}\n", "utf-8")


def state_of(*results: UnitResult) -> RunState:
    """The state of a run with these results, before its end."""
    state = RunState()
    units = tuple(result.unit for result in results)
    state.apply(CollectionFinished(0.0, units, (0.0,) * len(units), 0.0, 0.0, 0.0))
    for result in results:
        state.apply(UnitFinished(0.0, result))
    return state


def finished_of(state: RunState, code: ExitCode = ExitCode.TESTS_FAILED) -> RunFinished:
    return closing_figures(state, t=1.0, exit_code=code, lower_bound_s=0.0)
