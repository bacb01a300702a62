"""Values of one run, put into another where its program records them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.recording.op_log import OpLog
from harness.recording.op_mode import OpMode
from harness.recording.patch_report import REPORT, Fate, Transplanted, read_report
from harness.recording.patches import OperationDonor, OperationTransplant, Transplant, put
from harness.recording.recorder import Recorder
from harness.recording.recording_config import RunEnded
from harness.recording.tensors import digest_tensor, dtype_name, tensor_bytes
from harness.trace.chain import RecordedValue
from harness.trace.reader import Trace
from tests.support.recorded_steps import record
from tests.support.traces import SEEDED

pytestmark = pytest.mark.full


def program(recorder: Recorder, *, factor: float = 1.0, size: int = 4, name: str = "arm 1") -> list[Tensor]:
    """Three steps: rewards become advantages, advantages a weight; the weight of each step."""
    weight, seen = torch.zeros(size), []
    for step in range(3):
        recorder.begin_step(step)
        recorder.record("rollout", "names", [name])
        rewards = torch.arange(size).float() * factor
        recorder.record("reward", "rewards", rewards)
        advantages = rewards - rewards.mean()
        recorder.record("advantage", "advantages", advantages)
        weight = weight + advantages
        recorder.record("optimizer", "weight", weight)
        seen.append(weight)
        recorder.end_step(reward_mean=rewards.mean())
    return seen


def donor_of(directory: Path, **changed: Any) -> Trace:
    def run(recorder: Recorder) -> None:
        program(recorder, **changed)

    return record(directory / "donor", run)


def transplant(tmp_path: Path, *phases: str, steps: tuple[int, int] = (1, 2), recorded_values: Any = ()) -> Transplant:
    first, last = steps
    report = str(tmp_path / REPORT)
    return Transplant(str(tmp_path / "donor"), report, first=first, last=last, phases=phases, values=recorded_values)


def operated(tmp_path: Path, callback: Transplant) -> tuple[Trace, list[Tensor]]:
    """The trace of the program with something put into it, and the weights that it went on with."""
    weights: list[Tensor] = []
    made = record(tmp_path / "made", lambda recorder: weights.extend(program(recorder)), callback)
    return made, weights


def test_the_program_goes_on_with_what_was_put_and_records_it(tmp_path: Path) -> None:
    donor = donor_of(tmp_path, factor=2.0)

    made, weights = operated(tmp_path, transplant(tmp_path, "advantage"))

    base = torch.tensor([-1.5, -0.5, 0.5, 1.5])
    assert [weight.tolist() for weight in weights] == [(base * factor).tolist() for factor in (1, 3, 5)]
    recorded_value = donor.columns(1, 0).values()[2]
    assert recorded_value.name == "advantages"
    assert recorded_value in made.columns(1, 0).values()
    assert recorded_value not in made.columns(0, 0).values(), "not before its time"
    assert read_report(tmp_path) == tuple(Transplanted(step, "advantage", "advantages", 0, Fate.PUT) for step in (1, 2))


@pytest.mark.parametrize("recorded_values", [[["advantage", "advantages"]], [["advantage", "advantages", 0]]])
def test_one_leaf_is_taken_by_its_name(tmp_path: Path, recorded_values: Any) -> None:
    donor_of(tmp_path, factor=2.0)
    _, weights = operated(tmp_path, transplant(tmp_path, steps=(2, 2), recorded_values=recorded_values))
    assert weights[2][0].item() == -6.0
    assert len(read_report(tmp_path)) == 1


def test_another_occurrence_is_another_leaf(tmp_path: Path) -> None:
    donor_of(tmp_path, factor=2.0)
    _, weights = operated(tmp_path, transplant(tmp_path, recorded_values=[["advantage", "advantages", 1]]))
    assert weights[2][0].item() == -4.5
    assert read_report(tmp_path) == ()


def test_equal_bits_and_texts_are_left_and_told(tmp_path: Path) -> None:
    donor_of(tmp_path, name="arm 2")
    operated(tmp_path, transplant(tmp_path, "rollout", "reward", steps=(1, 1)))
    assert [(each.name, each.fate, each.why) for each in read_report(tmp_path)] == [
        ("names", Fate.NO_MEMORY, "it is of type list"),
        ("rewards", Fate.EQUAL, ""),
    ]


def test_another_shape_ends_the_run(tmp_path: Path) -> None:
    donor_of(tmp_path, size=5)
    made, _ = operated(tmp_path, transplant(tmp_path, "reward"))
    (told,) = read_report(tmp_path)
    assert (told.fate, told.why) == (Fate.UNLIKE, "it is f32 [4] in A, f32 [5] in B")
    assert made.steps == (0,), "and the step in which it was to be put is not there"


def test_what_only_one_of_the_runs_records_ends_the_run(tmp_path: Path) -> None:
    def less(recorder: Recorder) -> None:
        for step in range(3):
            recorder.begin_step(step)
            recorder.record("reward", "rewards", torch.ones(4))
            recorder.end_step()

    donor_of(tmp_path)
    record(tmp_path / "made", less, transplant(tmp_path, "reward", "advantage"))
    assert [(each.name, each.why) for each in read_report(tmp_path)] == [
        ("rewards", ""),
        ("advantages", "only B has it"),
    ]
    record(tmp_path / "less" / "donor", less)
    operated(tmp_path / "less", transplant(tmp_path / "less", "reward", "advantage"))
    assert [each.why for each in read_report(tmp_path / "less")] == ["", "only A has it"]


def test_a_report_that_is_not_there_or_cut_says_what_it_has(tmp_path: Path) -> None:
    assert read_report(tmp_path) == ()
    whole = Transplanted(1, "loss", "loss", 0, Fate.PUT)
    (tmp_path / REPORT).write_text(whole.to_line() + whole.to_line()[:20], "utf-8")
    assert read_report(tmp_path) == (whole,)


# -------------------------------------------------------------------------------------------------------------- put


def recorded_value_of(tensor: Tensor) -> RecordedValue:
    return RecordedValue("loss", "loss", 0, *digest_tensor(tensor))


@given(
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8]),
    st.binary(min_size=8, max_size=64).filter(lambda data: len(data) % 8 == 0),
)
@SEEDED
def test_every_bit_arrives_nan_payloads_too(dtype: torch.dtype, data: bytes) -> None:
    wanted = torch.frombuffer(bytearray(data), dtype=dtype)
    value = torch.zeros(2 * len(wanted), dtype=dtype)[::2]
    assert put(value, recorded_value_of(wanted), data) == (Fate.PUT, "")
    assert bytes(tensor_bytes(value)) == data
    assert dtype_name(value.dtype) == recorded_value_of(wanted).dtype


def test_memory_that_is_shared_by_elements_cannot_be_written_to() -> None:
    shared = torch.zeros(1).expand(4)
    fate, why = put(shared, recorded_value_of(torch.ones(4)), bytes(tensor_bytes(torch.ones(4))))
    assert fate is Fate.UNLIKE
    assert why.startswith("its memory cannot be written to: ")


def test_a_value_that_was_not_kept_is_told() -> None:
    assert put(torch.zeros(3), recorded_value_of(torch.ones(3)), None) == (Fate.UNLIKE, "B's value was not kept")


def test_backward_goes_on_with_what_was_put() -> None:
    """A value that autograd has saved: a write that it counts would be an error there."""
    weight = torch.ones(3, requires_grad=True)
    saved = torch.full((3,), 2.0)
    loss = (weight * saved).sum()
    put(saved, recorded_value_of(torch.full((3,), 5.0)), bytes(tensor_bytes(torch.full((3,), 5.0))))
    loss.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.tolist() == [5.0, 5.0, 5.0]


# ------------------------------------------------------------------------------------------------------- operations


def doubled(directory: Path, callback: Any, factor: float) -> Tensor:
    """A few operations, recorded: the second one multiplies."""
    mode = OpMode(OpLog(directory, rank=0, step=1, say=print))
    mode.callbacks = [callback]
    with mode:
        total = torch.ones(3) + 1
        total = total * factor
        torch._foreach_add_([total], 1)  # its schema has no result
    return total


def test_one_operation_gives_what_it_gave_in_the_donor(tmp_path: Path) -> None:
    results = str(tmp_path / "results")
    doubled(tmp_path / "b", OperationDonor(2, results), 3.0)

    made = doubled(tmp_path / "a", OperationTransplant(2, results, str(tmp_path / REPORT), 1), 2.0)

    assert made.tolist() == [7.0] * 3
    (told,) = read_report(tmp_path)
    assert (told.step, told.name, told.fate) == (1, "aten.mul.Tensor", Fate.PUT)


def test_what_an_operation_writes_into_its_argument_counts_as_its_result(tmp_path: Path) -> None:
    results = str(tmp_path / "results")
    doubled(tmp_path / "b", OperationDonor(3, results), 3.0)
    made = doubled(tmp_path / "a", OperationTransplant(3, results, str(tmp_path / REPORT), 1), 2.0)
    assert made.tolist() == [7.0] * 3


def test_another_operation_of_that_number_ends_the_run(tmp_path: Path) -> None:
    results = str(tmp_path / "results")
    doubled(tmp_path / "b", OperationDonor(1, results), 3.0)
    with pytest.raises(RunEnded):
        doubled(tmp_path / "a", OperationTransplant(2, results, str(tmp_path / REPORT), 1), 2.0)
    (told,) = read_report(tmp_path)
    assert (told.fate, told.why) == (Fate.UNLIKE, "operation 2 is aten.mul.Tensor in A, and in B another one")


def test_equal_results_are_told(tmp_path: Path) -> None:
    results = str(tmp_path / "results")
    doubled(tmp_path / "b", OperationDonor(2, results), 2.0)
    doubled(tmp_path / "a", OperationTransplant(2, results, str(tmp_path / REPORT), 1), 2.0)
    assert [each.fate for each in read_report(tmp_path)] == [Fate.EQUAL]
