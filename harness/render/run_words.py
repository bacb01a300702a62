"""Outcomes, figures and notes of a run of tests in words, which every output of it shares."""

from collections.abc import Iterable, Iterator

from harness.bits.exit_codes import ExitCode
from harness.bits.text import count, one_line, ranges
from harness.runner.events import RunFinished
from harness.runner.gpu_memory import GpuMemoryUse, Unmeasured, exceeds_budget
from harness.runner.isolation_notes import IsolationCode, IsolationNote, NotForked
from harness.runner.need import Need
from harness.runner.records.stats import RunState
from harness.runner.schedule.splitting import Obstacle, Split, SplitReason
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
    if not num_estimated:
        return ""
    if num_estimated < num_planned:
        return f"estimated for {num_estimated:,} of {num_planned:,} files"
    return "estimated: no durations known yet"


def gpus(gpu_ids: Iterable[str], state: RunState) -> str:
    """The GPUs of a lease by their positions among the run's: "gpu 0", "gpus 0-3,6"; "cpu" for none."""
    names = gpu_names(state.gpus)
    shown = [names.get(gpu_id, gpu_id) for gpu_id in gpu_ids]
    return f"gpu{'' if len(shown) == 1 else 's'} {ranges(shown)}" if shown else "cpu"


def gpu_names(gpus: Iterable[str]) -> dict[str, str]:
    """The index of each GPU by its id, from the lines of RunStarted ("0 NVIDIA H200 143 GB GPU-...")."""
    words = [line.split() for line in gpus]
    return {line[-1]: line[0] for line in words if line}


# ---- isolation

CHANGES = {
    IsolationCode.CHANGED_ENVIRONMENT: "changed environment variables and did not restore them",
    IsolationCode.CHANGED_CWD: "changed the working directory, which rlharness restored, to",
    IsolationCode.LEFT_PROCESS: "left a process running, which ends with its worker",
    IsolationCode.LEFT_THREAD: "left a thread running, and its worker cannot exit before that ends",
}
NOT_FORKED = {
    NotForked.THREADS: "{subject} starts threads when it is imported{more}",
    NotForked.PLUGIN_THREADS: "the plugin {detail} starts threads; to run without it: rlharness run -- -p no:{detail}",
    NotForked.SUITE_THREADS: "the suite starts threads before its files are imported{more}",
    NotForked.CUDA: "{subject} initialises CUDA when it is imported{more}",
    NotForked.PROCESSES: "{subject} starts a process when it is imported{more}",
    NotForked.SOCKETS: "{subject} opens sockets when it is imported{more}",
    NotForked.FILES: "{subject} holds a file open for writing when it is imported{more}",
    NotForked.CWD: "{subject} changes the working directory when it is imported{more}",
    NotForked.TEMPORARY_FILES: "{subject} makes temporary files when it is imported{more}",
    NotForked.REPLACED: "{subject} replaces system functions when it is imported{more}",
    NotForked.READS: "{reader} reads {name} when it is imported",
    NotForked.NOT_LOADED: "the suite cannot be loaded ahead of its files{more}",
    NotForked.NOT_IMPORTED: "the imports of the suite did not end well in the warm session{more}",
    NotForked.NOT_READY: "the warm session is not ready{more}",
    NotForked.NO_FORK: "the warm session could not fork{more}",
    NotForked.LOST: "the warm session was lost{more}",
    None: "{detail}",
}


def isolation_text(note: IsolationNote) -> str:
    """Return the sentence of a note. It may hold texts of others, unescaped."""
    if note.code in CHANGES:
        return f"{note.path} {CHANGES[note.code]}: {note.detail}"
    name, _, reader = note.detail.partition(" ")
    more = f" ({note.detail})" if note.detail else ""
    subject = "the file" if note.path else "the suite"
    why = NOT_FORKED[note.reason].format(detail=note.detail, more=more, subject=subject, name=name, reader=reader)
    if note.code is IsolationCode.TESTS_NOT_FORKED:
        files = note.path or count(note.num_processes, "file")
        return f"the tests of {files} ran in one process{' each' if note.num_processes > 1 else ''}: {why}"
    if not note.num_processes:
        return f"each file has an interpreter of its own: {why}"
    verb = "has" if note.num_processes == 1 else "have"
    return f"{count(note.num_processes, 'process', 'processes')} {verb} an interpreter of their own: {why}"


# ---- files in parts

OBSTACLES = {
    Obstacle.ONE_TEST: "it has one test",
    Obstacle.SHORT: "its parts would take less than 1 s",
    Obstacle.NOT_COLLECTED: "its tests could not be listed before the run",
}
TIES = {
    "together": "its tests are marked to run together ({})",
    "marker": "its tests have the marker {}",
    "class": "its tests share a class-scoped fixture of {}",
    "module-fixture": "its tests share the module-scoped fixture {}",
    "package-fixture": "its tests share the package-scoped fixture {}",
}
WHY_SPLIT = {
    SplitReason.DOMINATES: "it takes {:.1f} s, and all work spread evenly takes {:.1f} s",
    SplitReason.FEW_FILES: "there are fewer files than GPUs or CPU slots for them, and no duration is known",
    SplitReason.NEEDS_DIFFER: "its tests need different numbers of GPUs",
}


def split_line(split: Split) -> str:
    """Return a line about one file: its number of parts or the obstacle, and why it is to be split."""
    path, why = one_line(split.path), WHY_SPLIT[split.reason].format(split.expected_s, split.bound_s)
    if split.obstacle is None:
        return f"{path} is split into {count(split.num_parts, 'part')}: {why}"
    kind, _, name = split.detail.partition(" ")
    tie = TIES.get(kind, "its tests run together").format(one_line(name))
    return f"{path} is not split: {OBSTACLES.get(split.obstacle, tie)} ({why})"


# ---- GPU memory

UNMEASURED = {
    Unmeasured.NOT_SEEN: "none of its processes was on a GPU in any sample",
    Unmeasured.NOT_REPORTED: "the driver reports no memory by process here, as with MIG or in some containers",
    Unmeasured.NOT_VISIBLE: "the driver lists processes that cannot be seen from here, as in a container",
    Unmeasured.NO_ANSWER: "the driver did not answer in time",
}


def gb_text(num_bytes: int | None) -> str:
    """An amount of memory in GB (10**9 bytes); "not measured" for None."""
    if num_bytes is None:
        return "not measured"
    return f"{num_bytes / 1e9:,.2f} GB" if num_bytes < 10**10 else f"{num_bytes / 1e9:,.1f} GB"


def memory_text(use: GpuMemoryUse, need: Need) -> str:
    """The peak of a unit with its budget and the test that ran then, or why it was not measured."""
    if use.peak_bytes is None:
        return "GPU memory not measured" + (f": {UNMEASURED[use.why]}" if use.why else "")
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
    for why, text in UNMEASURED.items():
        if why is not Unmeasured.NOT_SEEN and why in whys:
            yield f"the GPU memory of {count(whys.count(why), 'unit')} was not measured: {text}"
