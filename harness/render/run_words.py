"""Outcomes, figures and notes of a run of tests in words, which every output of it shares."""

from collections.abc import Iterable, Iterator
from typing import Any

from harness.bits.exit_codes import ExitCode
from harness.bits.text import count, one_line, ranges
from harness.runner.events import RunFinished
from harness.runner.gpu_memory import GpuMemoryUse, Unmeasured, exceeds_budget
from harness.runner.isolation_notes import IsolationNote
from harness.runner.need import Need
from harness.runner.records.stats import RunState
from harness.runner.schedule.splitting import Split
from harness.runner.test_outcomes import TestCounts, TestOutcome
from harness.runner.units import Outcome, UnitResult

REASON_OF_CODE = {
    ExitCode.INTERRUPTED: "the run was interrupted",
    ExitCode.INTERNAL_ERROR: "rlharness itself failed",
    ExitCode.USAGE_ERROR: "pytest refused its arguments",
    ExitCode.NOTHING_COLLECTED: "no tests were collected",
    ExitCode.GPU_QUARANTINED: "the tests passed, but a GPU was quarantined",
    ExitCode.UNITS_NOT_RUN: "units were not run for lack of GPUs (--allow-missing-gpus accepts this)",
}
TEST_WORDS = {TestOutcome.ERROR: "in error", TestOutcome.UNSTARTED: "not started"}


def label(outcome: Outcome) -> str:
    """The outcome in words, in capitals if it needs attention: "passed", "FAILED", "TIMED OUT"."""
    words = outcome.value.replace("_", " ")
    return words if outcome in (Outcome.PASSED, Outcome.NO_TESTS) else words.upper()


def tally(tests: TestCounts) -> str:
    """14 passed, 2 skipped: in the order of TestOutcome, worst not first; "no tests" for none."""
    parts = [f"{tests[each]:,} {TEST_WORDS.get(each, each.value)}" for each in TestOutcome if tests[each]]
    return ", ".join(parts) or "no tests"


def outcome_counts(state: RunState) -> str:
    """Units by outcome: "34 passed, 3 failed"."""
    found = [(each, state.outcomes[each]) for each in Outcome if state.outcomes[each]]
    return ", ".join(f"{num:,} {each.value.replace('_', ' ')}" for each, num in found)


def facts(result: UnitResult, state: RunState) -> list[str]:
    """Return how long a unit ran, on which GPUs, and its test counts; empty if it never started."""
    if not result.directory:
        return []
    return [f"{result.duration_s:.1f} s", gpus(result.gpu_ids, state), tally(result.tests)]


def exit_reason(event: RunFinished, state: RunState) -> str:
    """Return the reason for the exit code; empty if it needs none."""
    if event.exit_code == ExitCode.USAGE_ERROR and not event.error and not state.outcomes[Outcome.USAGE_ERROR]:
        return "a requested file could not be written: see the notes"
    if event.exit_code == ExitCode.INTERRUPTED and event.error:  # of merged runs
        return one_line(event.error, 1000)
    return REASON_OF_CODE.get(ExitCode(event.exit_code), "")


def estimated(num_estimated: int, num_planned: int) -> str:
    """Return how many durations of a plan are estimates; empty if all were measured in earlier runs."""
    some = f"estimated for {num_estimated:,} of {num_planned:,} files"
    return "" if not num_estimated else some if num_estimated < num_planned else "estimated: no durations known yet"


def gpus(gpu_ids: Iterable[str], state: RunState) -> str:
    """The GPUs of a lease by their positions among the run's: "gpu 0", "gpus 0-3,6"; "cpu" for none."""
    shown = [gpu_names(state.gpus).get(gpu_id, gpu_id) for gpu_id in gpu_ids]
    return f"gpu{'' if len(shown) == 1 else 's'} {ranges(shown)}" if shown else "cpu"


def gpu_names(gpus: Iterable[str]) -> dict[str, str]:
    """The index of each GPU by its id, from the lines of RunStarted ("0 NVIDIA H200 143 GB GPU-...")."""
    return {line[-1]: line[0] for line in map(str.split, gpus) if line}


# ---- isolation


def isolation_text(note: IsolationNote) -> str:
    """Return the sentence of a note. It may hold texts of others, unescaped."""
    detail, num = note.detail, note.num_processes
    name, _, reader = detail.partition(" ")
    more = f" ({detail})" if detail else ""
    subject = "the file" if note.path else "the suite"
    why = note.reason(subject=subject, detail=detail, more=more, name=name, reader=reader) if note.reason else detail
    processes = f"{count(num, 'process', 'processes')} {'has' if num == 1 else 'have'}" if num else "each file has"
    files, each, whose = note.path or count(num, "file"), " each" if num > 1 else "", "their" if num else "its"
    values: dict[str, Any] = {"path": note.path, "detail": detail, "files": files, "each": each, "whose": whose}
    return str(note.code(processes=processes, why=why, **values))


# ---- files in parts

TIES = {
    "together": "its tests are marked to run together ({})",
    "marker": "its tests have the marker {}",
    "class": "its tests share a class-scoped fixture of {}",
    "module-fixture": "its tests share the module-scoped fixture {}",
    "package-fixture": "its tests share the package-scoped fixture {}",
}


def split_line(split: Split) -> str:
    """Return a line about one file: its number of parts or the obstacle, and why it is to be split."""
    path, why = one_line(split.path), split.reason(expected_s=split.expected_s, bound_s=split.bound_s)
    if split.obstacle is None:
        return f"{path} is split into {count(split.num_parts, 'part')}: {why}"
    kind, _, name = split.detail.partition(" ")
    obstacle = TIES[kind].format(one_line(name)) if kind in TIES else split.obstacle.sentence
    return f"{path} is not split: {obstacle} ({why})"


# ---- GPU memory


def gb_text(num_bytes: int | None) -> str:
    """An amount of memory in GB (10**9 bytes); "not measured" for None."""
    if num_bytes is None:
        return "not measured"
    return f"{num_bytes / 1e9:,.2f} GB" if num_bytes < 10**10 else f"{num_bytes / 1e9:,.1f} GB"


def memory_text(use: GpuMemoryUse, need: Need) -> str:
    """The peak of a unit with its budget and the test that ran then, or why it was not measured."""
    if use.peak_bytes is None:
        return "GPU memory not measured" + (f": {use.why.sentence}" if use.why else "")
    test = f" in {one_line(use.test.partition('::')[2] or use.test)}" if use.test else ""
    budget = f" of a budget of {need.memory_gb:g} GB" if need.shared else ""
    return f"{gb_text(use.peak_bytes)} of GPU memory at its peak{test}{budget}"


def over_budget_lines(uses: Iterable[tuple[str, Need, GpuMemoryUse | None]]) -> Iterator[str]:
    """Yield a line for each unit (path, need, use) that exceeded its budget, with the tests during which it did."""
    for path, need, use in uses:
        if use is not None and exceeds_budget(use, need):
            over = [nodeid for nodeid, peak in use.tests.items() if peak > need.budget_bytes]
            named = ", ".join(one_line(each.partition("::")[2] or each) for each in over[:3])
            tests = f", while {named}{f' and {len(over) - 3:,} more' * (len(over) > 3)} ran" if over else ""
            yield f"{one_line(path)}: {gb_text(use.peak_bytes)} at its peak, budget {need.memory_gb:g} GB{tests}"


def unmeasured_lines(results: Iterable[UnitResult]) -> Iterator[str]:
    """Yield a line for each reason that a user can do something about why the memory of units was not measured."""
    whys = [result.gpu_memory.why for result in results if result.gpu_memory is not None]
    for why in Unmeasured:
        if why is not Unmeasured.NOT_SEEN and why in whys:
            yield f"the GPU memory of {count(whys.count(why), 'unit')} was not measured: {why.sentence}"
