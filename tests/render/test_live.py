import io
import re
import threading
from typing import Any, TextIO

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from harness.render.run_live import LiveReporter, frame
from harness.runner.events import RunStarted
from harness.runner.need import Need
from harness.runner.records.stats import Running, RunState
from harness.runner.units import NeedSource, Outcome, Unit
from tests.support.fake_clock import FakeClock

CARDS = ("0 NVIDIA H200 143 GB GPU-a", "1 NVIDIA H200 143 GB GPU-b")


def running(path: str, slot: int = 0, **fields: Any) -> Running:
    defaults = {"gpu_ids": (), "slot": slot, "directory": "/d", "started_t": 10.0, "expected_s": 20.0}
    return Running(path, **{**defaults, **fields})


def state_with(*attempts: Running) -> RunState:
    """The state of a run of ten files on two GPUs, with these attempts, when four have ended."""
    state = RunState()
    state.started = RunStarted(0.0, "run", "/d", CARDS, (), (), "cgroup", 1)
    state.units = {str(number): Unit(str(number), Need(), NeedSource.IMPORT) for number in range(10)}
    state.outcomes.update({Outcome.PASSED: 3, Outcome.FAILED: 1})
    state.running = {str(number): attempt for number, attempt in enumerate(attempts)}
    state.first_start_t, state.planned_makespan_s = 10.0, 60.0
    state.expected_s, state.expected_done_s = {"all": 100.0}, 40.0
    return state


def drawn(state: RunState, now_t: float = 72.0, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None, no_color=True, force_terminal=True)
    return ["".join(each.text for each in line).rstrip() for line in console.render_lines(frame(state, now_t))]


HANG = running(
    "tests/distributed/test_hang.py",
    1,
    gpu_ids=("GPU-a", "GPU-b"),
    test="tests/distributed/test_hang.py::TestX::test_y[p::q]",
    test_started_t=11.0,
)
ENDING = running("tests/test_b.py", 0, terminating="test_timeout")


def test_a_frame_says_what_runs_where_since_when() -> None:
    assert drawn(state_with(HANG, ENDING), width=100) == [
        "",
        "━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━                                                0:01:12, 0:00:14 left",
        "2 now, 4 queued, 4 of 10 done: 3 passed, 1 failed",
        "tests/test_b.py, 62.0 s, cpu, terminating: test timeout",
        "tests/distributed/test_hang.py, 62.0 s, gpus 0-1, in TestX::test_y[p::q] for 61.0 s",
    ]


@given(paths=st.lists(st.text(max_size=40), max_size=12), width=st.integers(20, 150), now_t=st.floats(0, 1e6))
def test_no_frame_is_wider_than_its_terminal(paths: list[str], width: int, now_t: float) -> None:
    attempts = [running(path, slot, test=f"{path}::test_{path}") for slot, path in enumerate(paths)]
    lines = drawn(state_with(*attempts), now_t, width)
    assert all(cell_len(line) <= width for line in lines)
    assert not any(c in line for line in lines for c in "\n\r\x1b\x9b")


def reporter_on(stream: TextIO, said: list[str], **fields: Any) -> LiveReporter:
    return LiveReporter(stream, FakeClock(), **{"colour": True, "say": said.append, **fields})


def test_a_run_on_a_terminal_leaves_its_lines_and_gives_the_cursor_back(sample_run: Any) -> None:
    said: list[str] = []
    sample_run.tell(reporter_on(stream := io.StringIO(), said))
    text = stream.getvalue()
    assert said == []
    assert text.count("\x1b[?25l") == 1
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    for line in (
        "FAILED tests/test_bad.py",
        "QUARANTINED gpu 0",
        "slow tests/test_hang.py",
        "passed tests/test_skipped",
    ):
        assert re.search(line.replace(" ", " +", 1), plain)
    assert not re.search("passed +tests/test_ok.py", plain)  # what is well is counted, not told


def test_frames_are_drawn_while_the_run_goes_on(sample_run: Any) -> None:
    state, reporter = RunState(), reporter_on(stream := io.StringIO(), [])
    for event in sample_run.events[:18]:
        state.apply(event)
        reporter.on_event(event, state)
    deadline = threading.Event()
    for _ in range(200):
        if "test_waits" in stream.getvalue():
            break
        deadline.wait(0.05)
    assert "test_waits" in stream.getvalue()
    reporter.close()


def test_no_colour_means_none(sample_run: Any) -> None:
    sample_run.tell(reporter_on(stream := io.StringIO(), [], colour=False))
    text = stream.getvalue()
    assert not re.search(r"\x1b\[[0-9;]*3[0-7][0-9;]*m", text)
    assert "━" in text


class GoneStream(io.StringIO):
    """A terminal that closes after the first frame."""

    def write(self, text: str) -> int:
        if self.tell() > 0:
            raise BrokenPipeError(32, "Broken pipe")
        return super().write(text)


def test_a_terminal_that_goes_away_turns_the_display_off_and_nothing_else(sample_run: Any) -> None:
    said: list[str] = []
    reporter = reporter_on(GoneStream(), said)
    state = sample_run.tell(reporter)
    assert state.finished is not None
    (line,) = said
    assert "the live display is off" in line
    assert "Broken pipe" in line


class StalledStream(io.StringIO):
    """A terminal that takes nothing until it is let go (Ctrl-S)."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def write(self, text: str) -> int:
        self.go_on.wait(60)
        return super().write(text)


def test_a_terminal_that_takes_nothing_does_not_hold_up_the_run(sample_run: Any) -> None:
    stream = StalledStream()
    sample_run.tell(reporter_on(stream, [], close_s=0.05))  # this line coming to its end is the test
    assert stream.getvalue() == ""
    stream.go_on.set()
