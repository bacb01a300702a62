"""The recorder's three calls, and what a leaf says of each kind of value."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.digests import digest
from harness.bits.errors import TraceError
from harness.recording.recorder import MAX_KEPT_BYTES, Kept, NullRecorder, Recorder, RecorderCallback, as_float
from harness.recording.run_spec import RunEnded
from harness.trace.format import RecordedValue, Scope
from harness.trace.values import Float


class Steps:
    """A sink that holds what it was given."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, list[RecordedValue], list[Kept]]] = []
        self.values: dict[str, Float] = {}

    def append(self, step: int, recorded_values: Sequence[RecordedValue], tensors: Sequence[Kept]) -> None:
        self.steps.append((step, list(recorded_values), list(tensors)))

    def log_values(self, values: Mapping[str, Float]) -> None:
        self.values |= values


def recorded(phase: str, name: str, value: Any, **options: Any) -> tuple[RecordedValue, list[Kept]]:
    sink = Steps()
    recorder = Recorder(sink)
    recorder.begin_step(0)
    recorder.record(phase, name, value, **options)
    recorder.end_step()
    ((_, (recorded_value,), kept),) = sink.steps
    return recorded_value, kept


def test_a_step_holds_what_was_recorded_in_its_order() -> None:
    sink = Steps()
    recorder = Recorder(sink)
    for step in (3, 5):
        recorder.begin_step(step)
        recorder.record("rollout", "tokens", torch.arange(6).reshape(2, 3))
        recorder.record("loss", "loss", torch.tensor(0.5), scope=Scope.PHYSICAL)
        recorder.record("loss", "loss", torch.tensor(0.25), scope=Scope.PHYSICAL)
        recorder.end_step(loss=0.25, kl=None)
    assert [
        (step, [recorded_value.key for recorded_value in recorded_values]) for step, recorded_values, _ in sink.steps
    ] == [(step, [("rollout", "tokens", 0), ("loss", "loss", 0), ("loss", "loss", 1)]) for step in (3, 5)]
    assert sink.values == {"loss": Float.of(0.25)}


class Switched:
    """Operations that say when they are on."""

    def __init__(self, said: list[str], step: int) -> None:
        self._said, self._step = said, step

    def start(self) -> None:
        self._said.append(f"start {self._step}")

    def stop(self) -> None:
        self._said.append(f"stop {self._step}")


def test_the_operations_of_a_step_are_those_between_its_beginning_and_its_end() -> None:
    said: list[str] = []
    operations: Any = lambda step: Switched(said, step) if step != 4 else None  # noqa: E731
    recorder = Recorder(Steps(), operations=operations)
    for step in (3, 4, 5, 5):
        recorder.begin_step(step)
        said.append(f"in {step}")
        recorder.record("loss", "loss", 1.0)
    recorder.end_step()
    said.append("after")
    of_5 = ["start 5", "in 5", "stop 5"]
    assert said == ["start 3", "in 3", "stop 3", "in 4", *of_5, *of_5, "after"]


@pytest.mark.parametrize("call", [lambda r: r.record("loss", "loss", 1.0), lambda r: r.end_step()])
def test_outside_a_step_nothing_can_be_recorded(call: Any) -> None:
    with pytest.raises(TraceError, match="begin_step"):
        call(Recorder(Steps()))


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (torch.zeros(2, 3), "f32", (2, 3)),
        (torch.zeros(4, dtype=torch.bfloat16), "bf16", (4,)),
        (torch.zeros(2, dtype=torch.complex64), "complex64", (2,)),
        (0.5, "f64", ()),
        (7, "i64", ()),
        (True, "bool", ()),
        ([1, 2], "i64", (2,)),
        ((1, 2.5), "f64", (2,)),
        (2**80, "text", (25,)),
        ("ünï", "text", (5,)),
        (b"abc", "bytes", (3,)),
        (["a", "bc"], "texts", (7,)),
    ],
)
def test_kinds_of_values(value: Any, dtype: str, shape: tuple[int, ...]) -> None:
    recorded_value, _ = recorded("rollout", "x", value)
    assert (recorded_value.dtype, recorded_value.shape) == (dtype, shape)


@pytest.mark.parametrize("value", [None, {"a": 1}, object(), [object()]])
def test_other_values_are_refused_with_their_type(value: Any) -> None:
    with pytest.raises(TraceError, match=type(value).__name__):
        recorded("rollout", "x", value)


def test_lists_of_text_that_join_alike_are_not_alike() -> None:
    assert recorded("rollout", "x", ["ab", "c"])[0].digest != recorded("rollout", "x", ["a", "bc"])[0].digest


@pytest.mark.parametrize("shape", [(2, 2), (), (0, 3)])
def test_an_array_is_digested_as_the_tensor_of_its_values(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    array.setflags(write=False)
    assert (
        recorded("rollout", "x", array)[0] == recorded("rollout", "x", torch.tensor(array.tolist()).reshape(shape))[0]
    )
    assert recorded("rollout", "x", np.array(array, order="F"))[0] == recorded("rollout", "x", array)[0]


@pytest.mark.parametrize(
    ("phase", "num_bytes", "is_kept"),
    [
        ("reward", MAX_KEPT_BYTES, True),
        ("reward", MAX_KEPT_BYTES + 1, False),
        ("rollout", 8, True),
        ("advantage", 8, True),
        ("backward", 8, False),
    ],
)
def test_small_values_of_some_phases_are_kept(phase: str, num_bytes: int, is_kept: bool) -> None:
    value = torch.arange(num_bytes, dtype=torch.uint8)
    recorded_value, kept = recorded(phase, "x", value)
    assert kept == ([(recorded_value, bytes(value.tolist()))] if is_kept else [])


@given(st.floats(width=32))
def test_a_value_of_the_curve_keeps_its_bits(value: float) -> None:
    found = as_float(torch.tensor(value, dtype=torch.float32))
    assert found.dtype == "f32"
    assert math.isnan(value) or found.value() == value
    assert math.copysign(1, found.value()) == math.copysign(1, value) or math.isnan(value)


@pytest.mark.parametrize("value", [torch.zeros(2), "0.5", None, torch.tensor(1j)])
def test_a_value_of_the_curve_is_one_number(value: Any) -> None:
    with pytest.raises(TraceError, match="curve"):
        as_float(value)


MANY = [("tokens", torch.arange(40)), ("text", "a b"), ("sparse", torch.eye(3).to_sparse()), ("tokens", 7)]


@pytest.mark.parametrize("callbacks", [(), (RecorderCallback(),)])
def test_many_values_at_once_are_recorded_as_one_after_the_other(
    callbacks: Sequence[RecorderCallback], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.recording.recorder.MAX_HELD_BYTES", 300)
    sink = Steps()
    recorder = Recorder(sink, callbacks=callbacks)
    recorder.begin_step(0)
    for name, value in MANY:
        recorder.record("rollout", name, value)
    recorder.end_step()
    recorder.begin_step(1)
    recorder.record_all("rollout", iter(MANY))
    recorder.end_step()
    (_, one_by_one, kept), (_, at_once, kept_at_once) = sink.steps
    assert at_once == one_by_one
    assert kept_at_once == kept
    assert len(kept) == 4, "the parts of a sparse tensor, no text"


def test_the_null_recorder_takes_the_same_calls() -> None:
    recorder = NullRecorder()
    recorder.begin_step(0)
    recorder.record("no such phase", "x", object())
    made = iter([("x", object())])
    recorder.record_all("no such phase", made)
    assert next(made, None) is None, "ranks make values together"
    recorder.end_step(loss="nothing")


def test_recording_draws_no_random_number_and_changes_no_value() -> None:
    value = torch.randn(100, 3).t()
    before, state = value.clone(), torch.get_rng_state()
    recorded_value, _ = recorded("rollout", "x", value)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(value, before)
    assert (recorded_value.algorithm, recorded_value.digest) == digest(
        bytes(before.contiguous().view(torch.uint8).flatten().tolist())
    )


def test_after_the_last_step_that_is_wanted_the_run_is_ended() -> None:
    sink = Steps()
    recorder = Recorder(sink, last_step=1)
    recorder.begin_step(0)
    recorder.end_step(loss=0.5)
    recorder.begin_step(1)
    with pytest.raises(RunEnded):
        recorder.end_step(loss=0.25)
    assert [step for step, _, _ in sink.steps] == [0, 1]
    assert sink.values["loss"] == Float.of(0.25)
    assert not issubclass(RunEnded, Exception), "a program that catches every Exception would go on"
