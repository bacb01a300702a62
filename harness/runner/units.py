"""The nouns of a run: what a unit (one test file, or a part of one) needs, how it ended, what was measured."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from harness.bits.findings import FindingCode
from harness.runner.need import Need
from harness.runner.report_file import TestCounts

MAX_TESTS = 10_000
"""Tests of one unit whose peaks are kept."""


Listed = Mapping[int, int | None]
"""Bytes of each process that the driver lists on a GPU; None where it does not report them."""


class Unmeasured(FindingCode):
    """Reason why there is no figure for a unit."""

    NOT_SEEN = "not_seen", "none of its processes was on a GPU in any sample"
    NOT_REPORTED = "not_reported", "the driver reports no memory by process here, as with MIG or in some containers"
    NOT_VISIBLE = "not_visible", "the driver lists processes that cannot be seen from here, as in a container"
    NO_ANSWER = "no_answer", "the driver did not answer in time"


@dataclass(frozen=True, slots=True)
class GpuMemoryUse:
    """Measured GPU memory of a unit, or the reason why it was not measured."""

    peak_bytes: int | None = None
    """Most memory that its processes held together on one of its GPUs; None where it was not measured."""
    why: Unmeasured | None = None
    """Reason why it was not measured; None where it was."""
    test: str = ""
    """Node id of the test that ran at the peak; empty where none did, or the peak is not known to be of one test."""
    tests: dict[str, int] = field(default_factory=dict)
    """Peak in bytes while each test ran, by node id, of those that ran during a sample."""


def exceeds_budget(use: GpuMemoryUse | None, need: Need) -> bool:
    """Return whether a unit with this need was measured to use more memory of a GPU that it shares than its budget."""
    return need.shared and use is not None and (use.peak_bytes or 0) > need.budget_bytes


@dataclass(slots=True)
class MemoryTally:
    """The samples of one unit, folded."""

    peak_bytes: int = 0
    test: str = ""
    tests: dict[str, int] = field(default_factory=dict)
    reasons: set[Unmeasured] = field(default_factory=set)

    def take(
        self, by_gpu: Collection[Listed], *, tree: Collection[int], living: Collection[int], test: str = ""
    ) -> None:
        """Fold one sample in.

        `tree` are the processes of the unit, `living` those that can be seen from here; `test` ran throughout.
        """
        for listed in by_gpu:
            own = {pid: used for pid, used in listed.items() if pid in tree}
            if None in own.values():
                self.reasons.add(Unmeasured.NOT_REPORTED)
            elif not own and any(pid not in living for pid in listed):
                self.reasons.add(Unmeasured.NOT_VISIBLE)
            used_bytes = sum(used for used in own.values() if used is not None)
            if used_bytes > self.peak_bytes:
                self.peak_bytes, self.test = used_bytes, test
            is_kept = test in self.tests or len(self.tests) < MAX_TESTS
            if test and used_bytes and is_kept:
                self.tests[test] = max(used_bytes, self.tests.get(test, 0))

    def finish(self) -> GpuMemoryUse:
        """Return the figure, or the reason why it was not measured."""
        if Unmeasured.NOT_REPORTED not in self.reasons and self.peak_bytes:
            return GpuMemoryUse(self.peak_bytes, None, self.test, dict(self.tests))
        why = next((reason for reason in _MOST_TELLING if reason in self.reasons), Unmeasured.NOT_SEEN)
        return GpuMemoryUse(None, why)


_MOST_TELLING = (Unmeasured.NOT_REPORTED, Unmeasured.NO_ANSWER, Unmeasured.NOT_VISIBLE)


def merge_uses(uses: Collection[GpuMemoryUse | None]) -> GpuMemoryUse | None:
    """Return the use of several attempts or parts: the highest peak, and that of each test."""
    known = [use for use in uses if use is not None]
    if not known:
        return None
    highest = max(known, key=lambda use: use.peak_bytes or 0)
    tests: dict[str, int] = {}
    for use in known:
        tests |= {test: max(peak, tests.get(test, 0)) for test, peak in use.tests.items()}
    return GpuMemoryUse(highest.peak_bytes, highest.why, highest.test, tests)


class IsolationCode(FindingCode):
    """Codes of notes on isolation."""

    TESTS_NOT_FORKED = "tests_not_forked", "the tests of {files} ran in one process{each}: {why}"
    NOT_FORKED = "not_forked", "{processes} an interpreter of {whose} own: {why}"


class NotForked(FindingCode):
    """Reasons why something is not forked."""

    THREADS = "threads", "{subject} starts threads when it is imported{more}"
    PLUGIN_THREADS = "plugin_threads", "the plugin {detail} starts threads; without it: rlharness run -- -p no:{detail}"
    SUITE_THREADS = "suite_threads", "the suite starts threads before its files are imported{more}"
    CUDA = "cuda", "{subject} initialises CUDA when it is imported{more}"
    PROCESSES = "processes", "{subject} starts a process when it is imported{more}"
    SOCKETS = "sockets", "{subject} opens sockets when it is imported{more}"
    FILES = "files", "{subject} holds a file open for writing when it is imported{more}"
    CWD = "cwd", "{subject} changes the working directory when it is imported{more}"
    REPLACED = "replaced", "{subject} replaces system functions when it is imported{more}"
    READS = "reads", "{reader} reads {name} when it is imported"
    NO_FORK = "no_fork", "the session could not fork{more}"
    LOST = "lost", "the session was lost{more}"


@dataclass(frozen=True, slots=True)
class IsolationNote:
    """A note on isolation."""

    code: IsolationCode
    path: str = ""
    """The file, as it was given to pytest; empty for NOT_FORKED, and for one note on several files."""
    reason: NotForked | None = None
    """Why nothing was forked; None for changes of a file."""
    detail: str = ""
    """Value that belongs to the code or the reason: variables, a directory, a process, an error."""
    num_processes: int = 0
    """Processes, or files without a path, that were not forked; 0 for all of the run, and for codes of files."""


OF_ALL_FILES = (NotForked.PLUGIN_THREADS, NotForked.SUITE_THREADS)
"""Reasons that no file has by itself."""


def merge_notes(notes: Iterable[IsolationNote]) -> tuple[IsolationNote, ...]:
    """Return the notes without repetitions, with one for all files that have a reason of OF_ALL_FILES in common."""
    paths: dict[IsolationNote, set[str]] = {}
    for note in notes:
        paths.setdefault(replace(note, path="") if note.reason in OF_ALL_FILES else note, set()).add(note.path)
    return tuple(
        replace(note, num_processes=len(files)) if note.reason in OF_ALL_FILES else note
        for note, files in paths.items()
    )


NO_TESTS = TestCounts()
_PART = re.compile(r" \[(\d+)/(\d+)\]\Z")


class NeedSource(StrEnum):
    """Where a unit's need was read."""

    IMPORT = "import"  # the markers of its tests
    TABLE = "table"  # a glob of [tool.rlharness.needs] or of --needs FILE


@dataclass(frozen=True, slots=True)
class Part:
    """One of the parts into which a test file is split."""

    number: int
    """From 1; the first part runs every test that no other part has."""
    count: int

    def __str__(self) -> str:
        return f"[{self.number}/{self.count}]"


def file_of(path: str) -> str:
    """Return the file of a unit, given the unit's path: `tests/test_k.py` for `tests/test_k.py [2/8]`."""
    return _PART.sub("", path)


@dataclass(frozen=True, slots=True)
class Unit:
    """One test file, or a part of one, and what it asks for: it is packed, supervised and given one outcome."""

    path: str
    """The file, relative to the root directory, with forward slashes, and the part ("tests/test_k.py [2/8]"); unique
    within a run."""
    need: Need
    source: NeedSource
    timeout_s: float | None = None
    """Time limit of the whole file in seconds when the needs table sets one; None for --timeout."""
    selection: tuple[str, ...] = ()
    """Node ids asked for on the command line ("tests/test_a.py::test_x"); empty for the whole file."""
    collect_error: str = ""
    """Why the file cannot be run (it failed or hung at import), the whole text; empty where it can."""
    collect_timed_out: bool = False
    file: str = ""
    """The file, for a part of one; empty for a whole file."""
    part: Part | None = None
    digest: str = ""
    """Digest of the contents of its files, and of options of pytest that select tests; empty if one was not read."""

    @property
    def file_path(self) -> str:
        """The file, relative to the root directory."""
        return self.file or self.path

    @property
    def can_run(self) -> bool:
        """Whether collection found nothing that keeps it from running."""
        return not self.collect_error and not self.collect_timed_out


class Outcome(StrEnum):
    """Outcome of a unit: all kinds of success and failure, one value per unit."""

    PASSED = "passed"
    FLAKY = "flaky"  # it failed, and passed when it was run again (--retries)
    FAILED = "failed"  # pytest said so (exit 1)
    LEANING = "leaning"  # it failed, and passes after the files before it (--check-leaning)
    NO_TESTS = "no_tests"  # the file collected nothing, or everything was deselected
    COLLECT_ERROR = "collect_error"  # it could not be imported or collected
    COLLECT_TIMEOUT = "collect_timeout"  # it hung at import
    PYTEST_ERROR = "pytest_error"  # pytest's internal error
    USAGE_ERROR = "usage_error"  # pytest refused its arguments: a node id that names no test
    TIMED_OUT = "timed_out"  # its own limit or one test's; the tree was ended
    CRASHED = "crashed"  # a signal, or a non-zero exit before pytest had finished
    EXITED_EARLY = "exited_early"  # exit 0 before pytest had finished
    UNKILLABLE = "unkillable"  # a process survived SIGKILL; its GPUs stay out of use
    SUPERVISOR_LOST = "supervisor_lost"  # our own supervisor died; the tree was ended by the runner
    INTERRUPTED = "interrupted"  # the run was cancelled while it ran
    NOT_RUN = "not_run"  # cancelled before it started, or no such GPUs exist

    @property
    def is_failure(self) -> bool:
        """Whether this outcome alone makes the run fail (NOT_RUN and INTERRUPTED have codes of their own)."""
        return self not in (Outcome.PASSED, Outcome.FLAKY, Outcome.NO_TESTS, Outcome.INTERRUPTED, Outcome.NOT_RUN)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A further attempt at a unit: one that failed and was followed by another, or one that ran its rest."""

    outcome: Outcome
    reason: str
    duration_s: float
    directory: str
    selection: tuple[str, ...] = ()
    """Node ids that it ran; empty for what was asked for."""
    is_rest: bool = False
    """Whether it ran the tests that had not begun when the process of the unit was cut short."""


@dataclass(frozen=True, slots=True)
class UnitResult:
    """The one outcome of one unit, with what is needed to explain it."""

    unit: Unit
    outcome: Outcome
    reason: str = ""
    """One line for a person: the signal, the limit, the request against the inventory; empty when it passed."""
    duration_s: float = 0.0
    """From the supervisor's start of the process to the proof that its tree was gone; 0 if never started."""
    gpu_ids: tuple[str, ...] = ()
    tests: TestCounts = NO_TESTS
    skip_reasons: tuple[str, ...] = ()
    """Distinct reasons of skipped tests, at most eight."""
    left_behind: tuple[str, ...] = ()
    """Processes that outlived the test process and had to be killed, as "pid command"."""
    collected_need: Need | None = None
    """Need of the markers of all its tests, as collected by the attempt; None if unknown."""
    directory: str = ""
    """The attempt's directory: output.log, report.jsonl, stacks.txt, ray_logs/; empty if never started."""
    for_want_of_gpus: bool = False
    """NOT_RUN as the GPUs it needs do not exist here or are all quarantined; False where the run was cancelled."""

    attempts: tuple[Attempt, ...] = ()
    """Earlier attempts that failed, and those that ran its rest; `duration_s` and `tests` are those of all attempts."""

    num_deselected: int = 0
    """Tests that pytest's options or a hook have left out."""

    is_accepted: bool = False
    """Whether the configuration accepts that the file leans on others (`leaning = "report"`)."""

    gpu_memory: GpuMemoryUse | None = None
    """Measured GPU memory; None without GPUs, on simulated ones, and where nothing was started."""

    resumed_from: str = ""
    """The run that had this result, for one that `--resume` has kept; empty for a unit of this run."""

    @property
    def in_time(self) -> "tuple[Attempt | UnitResult, ...]":
        """Every attempt in the order of time, of which this is the one before its rests."""
        rests = tuple(each for each in self.attempts if each.is_rest)
        return (*self.attempts[: len(self.attempts) - len(rests)], self, *rests)

    @property
    def is_failure(self) -> bool:
        """Whether this result alone makes the run fail."""
        return self.outcome.is_failure and not self.is_accepted

    @property
    def is_deselected(self) -> bool:
        """Whether it has tests, of which none was selected."""
        return self.outcome is Outcome.NO_TESTS and self.num_deselected > 0

    @property
    def is_over_budget(self) -> bool:
        """Whether it was measured to use more memory of a GPU that it shares than its budget."""
        return exceeds_budget(self.gpu_memory, self.unit.need)

    @property
    def need_disagrees(self) -> bool:
        """Whether the markers asked for something else than the plan had read, where the plan read markers."""
        if self.collected_need is None:
            return False
        if self.unit.source is NeedSource.TABLE:
            return self.collected_need.exceeds(self.unit.need)
        return self.collected_need != self.unit.need


@dataclass(frozen=True, slots=True)
class SessionFailure:
    """The failure of pytest's session after its last test."""

    log: str
    """Path of its output."""
    reason: str
    text: str
    """End of its output."""
