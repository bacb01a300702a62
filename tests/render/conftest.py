"""One hand-written run that has met everything, its directories included, for every reporter to tell."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from harness.runner.events import (
    AttemptSlow,
    AttemptStarted,
    AttemptTerminating,
    CollectionFinished,
    DumpRequested,
    Event,
    GpuQuarantined,
    Heartbeat,
    LeaseReturned,
    RunStarted,
    TestFinished,
    TestStarted,
    UnitFinished,
)
from harness.runner.need import Need
from harness.runner.records.stats import RunState, closing_figures, exit_code
from harness.runner.report_file import TestCounts, TestOutcome
from harness.runner.reporter import Reporter
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult
from tests.support.golden import check_golden

CARDS = ("GPU-aaaa", "GPU-bbbb")
IMPORT_ERROR = "tests/test_import.py:1: in <module>\n    import moonshine\nE   ModuleNotFoundError: moonshine\n"
OUTPUT_OF_BAD = (
    b"collected 2 items\r\n\x1b[31mFAILED\x1b[0m tests/test_bad.py::test_sum\n"
    b"progress 1\rprogress 2\rbytes \xff\xfe and a title \x1b]0;owned\x07 and a cursor \x1b[2J\x1b[1;1H\n"
    b"E   assert 1 == 2"
)
STACKS_OF_HANG = b"process 4711 (python)\n  test_hang.py:7 in test_waits\n"


@dataclass(frozen=True)
class SampleRun:
    """The events of the run, and where its attempts left their files."""

    directory: Path
    events: list[Event]

    def tell(self, *reporters: Reporter) -> RunState:
        """Give every event to every reporter, as a dispatcher does."""
        state = RunState()
        with ExitStack() as closing:
            for reporter in reversed(reporters):
                closing.callback(reporter.close)
            for event in self.events:
                state.apply(event)
                for reporter in reporters:
                    reporter.on_event(event, state)
        return state

    def without_paths(self, text: str) -> str:
        """`text` with the directory, which is another one each time, as RUN."""
        return text.replace(str(self.directory), "RUN")


def unit(name: str, num_gpus: int = 0, **fields: object) -> Unit:
    return Unit(f"tests/test_{name}.py", Need(num_gpus), NeedSource.IMPORT, **fields)  # type: ignore[arg-type]


UNITS = (
    unit("ok", 1),
    unit("bad", 1),
    unit("hang", 2),
    unit("import", collect_error=IMPORT_ERROR),
    unit("skipped"),
    unit("wide", 16),
    unit("leaky", 1),
    unit("empty"),
    unit("crash"),
)
OK, BAD, HANG, IMPORT, SKIPPED, WIDE, LEAKY, EMPTY, CRASH = UNITS


def end(unit: Unit, name: str, outcome: str, reason: str = "", text: str = "") -> dict[str, object]:
    nodeid = f"{unit.path}::{name}"
    return {"k": "end", "id": nodeid, "outcome": outcome, "duration_s": 0.25, "reason": reason, "text": text}


def start(unit: Unit, name: str) -> dict[str, object]:
    return {"k": "start", "id": f"{unit.path}::{name}", "timeout_s": None}


def attempt(root: Path, unit: Unit, names: list[str], records: list[dict[str, object]], exit: int | None) -> str:
    """A directory as an attempt leaves it."""
    directory = root / "units" / unit.path.removeprefix("tests/test_").removesuffix(".py")
    directory.mkdir(parents=True)
    nodeids = [f"{unit.path}::{name}" for name in names]
    head: list[dict[str, object]] = [
        {"k": "hello", "version": 1, "pid": 1},
        {"k": "collected", "need": unit.need.to_json(), "nodeids": nodeids},
    ]
    tail: list[dict[str, object]] = [] if exit is None else [{"k": "finish", "exit": exit}]
    lines = [json.dumps(record) for record in [*head, *records, *tail]]
    (directory / "report.jsonl").write_text("\n".join(lines) + "\n")
    (directory / "output.log").write_bytes(f"output of {unit.path}\n".encode())
    return str(directory)


def make_attempts(root: Path) -> dict[str, str]:
    """The directories of all units that were started, by path."""
    made = {
        OK.path: attempt(
            root,
            OK,
            ["test_a", "TestB::test_c[x::y]"],
            [end(OK, "test_a", "passed"), end(OK, "TestB::test_c[x::y]", "xfailed", "known")],
            0,
        ),
        BAD.path: attempt(
            root,
            BAD,
            ["test_fine", "test_sum", "test_setup"],
            [
                end(BAD, "test_fine", "passed"),
                end(BAD, "test_sum", "failed", "assert 1 == 2", "E   assert 1 == 2\nbell \x07 nul \x00"),
                end(BAD, "test_setup", "error", "fixture 'gone' not found", "E   fixture 'gone' not found"),
            ],
            1,
        ),
        HANG.path: attempt(root, HANG, ["test_waits", "test_later"], [start(HANG, "test_waits")], None),
        SKIPPED.path: attempt(
            root,
            SKIPPED,
            ["test_a", "test_b"],
            [end(SKIPPED, "test_a", "skipped", "no flash-attn"), end(SKIPPED, "test_b", "skipped", "no H100")],
            0,
        ),
        LEAKY.path: attempt(root, LEAKY, ["test_a"], [end(LEAKY, "test_a", "passed")], 0),
        EMPTY.path: attempt(root, EMPTY, [], [], 5),
        CRASH.path: attempt(root, CRASH, ["test_a"], [end(CRASH, "test_a", "passed")], None),
    }
    Path(made[BAD.path], "output.log").write_bytes(OUTPUT_OF_BAD)
    Path(made[HANG.path], "stacks.txt").write_bytes(STACKS_OF_HANG)
    Path(made[CRASH.path], "output.log").write_bytes(b"")
    return made


def tests(**counts: int) -> TestCounts:
    return TestCounts({TestOutcome[name.upper()]: number for name, number in counts.items()})


FIRST, SECOND = CARDS
ENDS = {
    OK: UnitResult(OK, Outcome.PASSED, "", 3.0, (FIRST,), tests(passed=1, xfailed=1)),
    BAD: UnitResult(BAD, Outcome.FAILED, "exit code 1", 4.0, (SECOND,), tests(passed=1, failed=1, error=1)),
    HANG: UnitResult(
        HANG, Outcome.TIMED_OUT, "test_waits ran longer than its 30 s", 32.0, CARDS, tests(unfinished=1, unstarted=1)
    ),
    IMPORT: UnitResult(IMPORT, Outcome.COLLECT_ERROR, "ModuleNotFoundError: moonshine"),
    SKIPPED: UnitResult(
        SKIPPED, Outcome.PASSED, "", 1.5, (), tests(skipped=2), skip_reasons=("no flash-attn", "no H100")
    ),
    WIDE: UnitResult(WIDE, Outcome.NOT_RUN, "needs 16 GPUs; here: 2 x NVIDIA H200 143 GB", for_want_of_gpus=True),
    LEAKY: UnitResult(
        LEAKY,
        Outcome.PASSED,
        "",
        4.0,
        (FIRST,),
        tests(passed=1),
        left_behind=("812 R python server.py",),
        collected_need=Need(2),
    ),
    EMPTY: UnitResult(EMPTY, Outcome.NO_TESTS, "nothing was collected", 2.0),
    CRASH: UnitResult(CRASH, Outcome.CRASHED, "signal 11 (SIGSEGV)", 4.5, (), tests(passed=1)),
}


def beginning(root: Path) -> list[Event]:
    """The run's head and its collection, whose second line of progress comes late enough to be said."""
    cards = tuple(f"{index} NVIDIA H200 143 GB {gpu_id}" for index, gpu_id in enumerate(CARDS))
    busy = ("2 NVIDIA H200: busy, 12.3 GB held by pid 4711 (python train.py)",)
    expected_s = (3.0, 2.0, 5.0, 0.0, 1.0, 9.0, 4.0, 1.0, 1.0)
    return [
        RunStarted(0.0, "20260101-120000-k3f9", str(root), cards, busy, ("TMPDIR moved to /tmp/rlh",), "cgroup", 2),
        CollectionFinished(12.0, UNITS, expected_s, 14.0, 12.5, 12.0),
    ]


def attempts(at: dict[str, str]) -> list[Event]:
    """What became of the units, each with its attempt in the directory that `at` gives."""

    def ended(t: float, unit: Unit) -> UnitFinished:
        return UnitFinished(t, replace(ENDS[unit], directory=at.get(unit.path, "")))

    return [
        ended(12.0, IMPORT),
        ended(12.0, WIDE),
        AttemptStarted(12.0, OK.path, (FIRST,), 0, at[OK.path]),
        AttemptStarted(12.0, BAD.path, (SECOND,), 1, at[BAD.path]),
        TestStarted(13.0, OK.path, f"{OK.path}::test_a", None),
        TestFinished(13.5, OK.path, f"{OK.path}::test_a", "passed", 0.25),
        ended(15.0, OK),
        LeaseReturned(15.0, OK.path, (FIRST,)),
        ended(16.0, BAD),
        LeaseReturned(16.0, BAD.path, (SECOND,)),
        AttemptStarted(16.0, HANG.path, CARDS, 0, at[HANG.path]),
        TestStarted(17.0, HANG.path, f"{HANG.path}::test_waits", 30.0),
        Heartbeat(40.0, 1, 4),
        AttemptSlow(46.0, HANG.path, 30.0),
        DumpRequested(46.5),
        AttemptTerminating(47.0, HANG.path, "test_timeout"),
        ended(48.0, HANG),
        LeaseReturned(48.5, HANG.path, CARDS),
        AttemptStarted(48.5, LEAKY.path, (FIRST,), 0, at[LEAKY.path]),
        AttemptStarted(48.5, SKIPPED.path, (), 1, at[SKIPPED.path]),
        AttemptStarted(48.5, EMPTY.path, (), 2, at[EMPTY.path]),
        ended(50.0, SKIPPED),
        ended(50.5, EMPTY),
        AttemptStarted(50.5, CRASH.path, (), 1, at[CRASH.path]),
        ended(52.5, LEAKY),
        GpuQuarantined(
            54.0, LEAKY.path, FIRST, "busy: 29.1 GB in use, by no process that the driver lists (another container?)"
        ),
        ended(55.0, CRASH),
    ]


@pytest.fixture
def sample_run(tmp_path: Path) -> SampleRun:
    root = tmp_path / "run"
    events = beginning(root) + attempts(make_attempts(root))
    state = RunState()
    for event in events:
        state.apply(event)
    state.check_sum()
    code = exit_code(state, allow_missing_gpus=False)
    events.append(closing_figures(state, t=55.5, exit_code=code, lower_bound_s=36.0))
    return SampleRun(root, events)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare the text of a renderer with a golden file: golden("plan.txt", text)."""
    return partial(check_golden, is_updating=request.config.getoption("--update-goldens"))
