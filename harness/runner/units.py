"""The nouns of a run: what a unit (one test file, or a part of one) needs, and how it ended."""

import re
from dataclasses import dataclass
from enum import StrEnum

from harness.runner.gpu_memory import GpuMemoryUse, exceeds_budget
from harness.runner.need import Need
from harness.runner.test_outcomes import TestCounts

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
    together: tuple[str, ...] = ()
    """Files and node ids that run in this unit's process, in order, its own file being the last; empty for one file."""
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


def files_of(unit: Unit) -> tuple[str, ...]:
    """Return the files that run in a unit's process, relative to the root directory, in order."""
    return tuple(dict.fromkeys(each.partition("::")[0] for each in unit.together)) or (unit.file_path,)


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
