"""Where a run ends that is to end where a condition holds."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from harness.recording.breakpoints import OF_TENSORS, Breakpoints
from harness.recording.metrics import Stop, read_stop
from harness.recording.recorder import Kept, Recorder
from harness.recording.run_spec import RunEnded
from harness.trace.format import RecordedValue, Scope
from harness.trace.values import Float
from harness.trace.writer import TraceWriter
from tests.support.traces import manifest_of

NAN, INF = float("nan"), float("inf")


class ToTrace:
    """A sink that is a trace."""

    def __init__(self, directory: Path) -> None:
        self.writer = TraceWriter(directory, manifest_of(), say=print)

    def append(self, step: int, recorded_values: Sequence[RecordedValue], tensors: Sequence[Kept]) -> None:
        self.writer.append(step, recorded_values)

    def log_values(self, values: Mapping[str, Float]) -> None:
        pass


def program(recorder: Recorder, weights: Mapping[int, torch.Tensor], losses: Mapping[int, float]) -> int:
    """Three steps of which each records a few values; how many have ended."""
    for step in range(3):
        recorder.begin_step(step)
        recorder.record("rollout", "tokens", torch.arange(4))
        recorder.record("rollout", "state", torch.tensor(NAN), scope=Scope.CONTEXT)
        recorder.record("backward", "weight", weights.get(step, torch.ones(2, 3)))
        recorder.record("backward", "weight", torch.ones(2, 3))
        recorder.end_step(loss=losses.get(step, 1.0))
    return 3


def stop_of(
    tmp_path: Path,
    *conditions: str,
    weights: Mapping[int, torch.Tensor] | None = None,
    losses: Mapping[int, float] | None = None,
) -> Stop | None:
    """Where the program ended, if it did not go to its end."""
    callback = Breakpoints(conditions, str(tmp_path / "stop.json"))
    recorder = Recorder(ToTrace(tmp_path / "trace"), callbacks=[callback])
    try:
        program(recorder, weights or {}, losses or {})
    except RunEnded:
        assert (tmp_path / "stop.json").exists()
    else:
        assert not (tmp_path / "stop.json").exists()
    return read_stop(tmp_path / "stop.json")


def with_element(value: float) -> torch.Tensor:
    tensor = torch.ones(2, 3)
    tensor[1, 2] = value
    return tensor


@pytest.mark.parametrize(("word", "value"), [("nan", NAN), ("inf", -INF)])
def test_a_value_that_is_not_finite_ends_the_run_at_its_element(tmp_path: Path, word: str, value: float) -> None:
    found = stop_of(tmp_path, word, weights={1: with_element(value)})
    assert found == Stop(word, 1, 0, "backward", "weight", 0, (1, 2), str(value))


def test_dtypes_that_have_no_inf_are_no_reason_to_end(tmp_path: Path) -> None:
    eights = torch.tensor([1.0, NAN]).to(torch.float8_e4m3fn)
    assert stop_of(tmp_path / "a", "inf", weights={1: eights}) is None
    found = stop_of(tmp_path / "b", "inf", "nan", weights={1: eights})
    assert found == Stop("nan", 1, 0, "backward", "weight", 0, (1,), "nan")


def test_what_torch_cannot_do_for_another_reason_is_no_finite_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(tensor: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError(f"no room for {tensor.shape}")

    monkeypatch.setitem(OF_TENSORS, "nan", exhausted)
    with pytest.raises(torch.OutOfMemoryError):
        stop_of(tmp_path, "nan", weights={1: torch.ones(2)})


def test_a_value_of_the_curve_ends_the_run_after_its_step(tmp_path: Path) -> None:
    assert stop_of(tmp_path / "a", "loss<0.5", losses={1: 0.25}) == Stop("loss<0.5", 1, name="loss", value="0.25")
    assert stop_of(tmp_path / "b", "nan", losses={2: NAN}) == Stop(
        "nan", 2, name="loss", value="nan (7ff8000000000000)"
    )


def test_a_name_that_the_curve_has_not_ends_the_run_when_that_is_known(tmp_path: Path) -> None:
    assert stop_of(tmp_path, "lose<0.5") == Stop("", 0, unknown="lose", known=("loss",))


class NonFiniteError(ValueError):
    what = "the gradient is nan"


@pytest.mark.parametrize(("error", "is_met"), [(NonFiniteError(), True), (ValueError("nan"), False), (None, False)])
def test_the_programs_own_error_at_such_a_value_counts(
    tmp_path: Path, error: Exception | None, *, is_met: bool
) -> None:
    recorder = Recorder(ToTrace(tmp_path / "t"), callbacks=[Breakpoints(["nan"], str(tmp_path / "stop.json"))])
    recorder.begin_step(4)
    recorder.record("forward", "x", torch.ones(9))
    step = recorder.break_off(error)
    assert step is not None
    assert (step.number, [recorded_value.name for recorded_value in step.values]) == (4, ["x"])
    assert read_stop(tmp_path / "stop.json") == (Stop("nan", 4, value="the gradient is nan") if is_met else None)
    assert recorder.break_off() is None


def test_a_value_that_is_told_late_ends_the_run_with_its_next_step(tmp_path: Path) -> None:
    callback = Breakpoints(["loss<0.5"], str(tmp_path / "stop.json"))
    recorder = Recorder(ToTrace(tmp_path / "t"), callbacks=[callback])
    recorder.begin_step(0)
    recorder.end_step()
    callback.on_values({"loss": Float.of(0.25)})
    with pytest.raises(RunEnded):
        recorder.begin_step(1)
    assert read_stop(tmp_path / "stop.json") == Stop("loss<0.5", 0, name="loss", value="0.25")


def test_it_is_looked_only_for_what_was_asked_for(tmp_path: Path) -> None:
    assert stop_of(tmp_path / "a", "inf", weights={1: torch.tensor([NAN])}) is None
    assert stop_of(tmp_path / "b", "nan", weights={1: torch.tensor([INF])}) is None
