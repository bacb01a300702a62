from harness.runner.events import Event, Heartbeat
from harness.runner.records.stats import RunState
from harness.runner.reporter import Guarded


class Recorder:
    """Fails from the given call on."""

    def __init__(self, fails_at: int = 10**9, close_fails: bool = False) -> None:
        self.num_calls = 0
        self.num_closed = 0
        self.fails_at = fails_at
        self.close_fails = close_fails

    def on_event(self, event: Event, state: RunState) -> None:
        self.num_calls += 1
        if self.num_calls >= self.fails_at:
            raise OSError(28, "No space left on device")

    def close(self) -> None:
        self.num_closed += 1
        if self.close_fails:
            raise ValueError("closed")


EVENT = Heartbeat(1.0, 0, 0)


def test_the_first_failure_is_said_once_and_the_reporter_left_alone() -> None:
    said: list[str] = []
    inner = Recorder(fails_at=2)
    guarded = Guarded(inner, "the record", said.append)
    for _ in range(5):
        guarded.on_event(EVENT, RunState())
    guarded.close()
    assert (inner.num_calls, inner.num_closed) == (2, 1)
    (line,) = said
    assert "the record is off" in line
    assert "No space left on device" in line
    assert isinstance(guarded.failure, OSError)


def test_a_failure_at_the_end_is_said_too() -> None:
    said: list[str] = []
    Guarded(Recorder(close_fails=True), "the display", said.append).close()
    assert len(said) == 1


def test_a_failure_after_a_failure_is_not_said_again() -> None:
    said: list[str] = []
    guarded = Guarded(Recorder(fails_at=1, close_fails=True), "the display", said.append)
    guarded.on_event(EVENT, RunState())
    guarded.close()
    assert len(said) == 1


def test_stderr_may_be_gone_as_well() -> None:
    def say(line: str) -> None:
        raise BrokenPipeError

    Guarded(Recorder(fails_at=1), "the display", say).on_event(EVENT, RunState())
