"""What is put where, from two traces alone."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import UsageError
from harness.lab.experiments.entry_call import EntryCall
from harness.lab.experiments.recorded_run import RecordedRun
from harness.lab.transplant.plan import TransplantPlan, first_difference, make_plan
from harness.trace.chain import RecordedValue
from harness.trace.reader import read_trace
from tests.support.operations import operation
from tests.support.traces import SEEDED, VALUES, flip_bit, steps_of, write, write_ops

CALL = EntryCall("a:b", {})
NUM_STEPS = 6


def run(directory: Path, *flipped: tuple[int, str, str]) -> RecordedRun:
    """A run of six steps; one bit of each of these leaves is flipped, from a step on."""
    changes = [flip_bit(*place) for place in flipped]

    def change(step: int, own: RecordedValue) -> RecordedValue:
        for each in changes:
            own = each(step, own)
        return own

    return RecordedRun(read_trace(write(directory, steps_of(NUM_STEPS, change))), CALL)


def planned(
    tmp_path: Path,
    flipped: list[tuple[int, str, str]],
    *takes: str,
    step: int | None = None,
    num_steps: int | None = None,
    is_once: bool = False,
) -> TransplantPlan:
    runs = run(tmp_path / "a"), run(tmp_path / "b", *flipped)
    return make_plan(*runs, takes, step=step, num_steps=num_steps, is_once=is_once)


LATER = [(1, "loss", "loss"), (3, "backward", "layers.1.weight"), (3, "optimizer", "layers.0.weight")]


def test_what_is_taken_begins_where_it_differs(tmp_path: Path) -> None:
    plan = planned(tmp_path, LATER, "loss", "gradients", "weights", "op:3")
    assert [patch.title for patch in plan.patches] == [
        "loss, from step 1 on",
        "gradients, from step 3 on",
        "weights, with which step 4 begins",
        "op:3, at step 1 only",
    ]
    assert (plan.pair.parts, plan.pair.step, plan.pair.last) == (1, 1, 5)


def test_what_is_asked_for_twice_is_tried_once(tmp_path: Path) -> None:
    assert len(planned(tmp_path, LATER, "loss", "gradients", "loss").patches) == 2


def test_what_begins_later_than_the_runs_part_says_so(tmp_path: Path) -> None:
    plan = planned(tmp_path, LATER, "backward/layers.1.weight", num_steps=2)
    assert (plan.pair.parts, plan.pair.step, plan.pair.last) == (1, 3, 4)


def test_what_nobody_names_is_what_differs_first(tmp_path: Path) -> None:
    plan = planned(tmp_path, LATER)
    assert [patch.title for patch in plan.patches] == ["loss, from step 1 on"]
    assert [patch.title for patch in planned(tmp_path / "again", LATER, step=3).patches] == [
        "loss, from step 3 on",
        "gradients, from step 3 on",
        "optimizer, from step 3 on",
    ]


def test_a_step_that_is_asked_for_is_where_it_begins(tmp_path: Path) -> None:
    plan = planned(tmp_path, LATER, "gradients", step=2)
    assert [(patch.first, patch.last) for patch in plan.patches] == [(2, 5)]
    assert (plan.pair.parts, plan.pair.step) == (1, 2)


@pytest.mark.parametrize(
    ("takes", "options", "what", "remedy"),
    [
        (("rollout",), {}, "--take rollout: the two runs have the same values in every step from 1 on", "--take loss"),
        (("gradients",), {"step": 2, "is_once": True}, "the same values in step 2", "--take loss"),
        (("weights",), {"step": 3}, "--take weights: the two runs have the same values in step 3", "--take loss"),
        (("weights",), {"step": 0}, "the weights of step 0 are not recorded in both runs", "--step 1"),
        ((), {"step": 0}, "no value that could be patched differs in step 0", "--step 1"),
        (("loss",), {"step": 9}, "--step 9", "omit it to begin at the first difference of the patched values"),
        (("sync",), {}, "records no sync in step 1", ""),
    ],
)
def test_what_is_not_there_to_put_is_refused_before_any_run(
    tmp_path: Path, takes: tuple[str, ...], options: dict[str, Any], what: str, remedy: str
) -> None:
    with pytest.raises(UsageError) as refused:
        planned(tmp_path, LATER, *takes, **options)
    assert what in str(refused.value)
    assert refused.value.remedy == remedy


def test_an_operation_that_a_record_of_the_step_does_not_have_is_refused_before_any_run(tmp_path: Path) -> None:
    runs = run(tmp_path / "a"), run(tmp_path / "b", *LATER)
    write_ops(runs[1].directory, [operation(0), operation(1)], step=1)
    (at_the_end,) = make_plan(*runs, ["op:1"], step=None, num_steps=None, is_once=False).patches
    assert at_the_end.title == "op:1, at step 1 only"
    with pytest.raises(UsageError) as refused:
        make_plan(*runs, ["op:1", "op:2"], step=None, num_steps=None, is_once=False)
    what, legal = f"--take op:2: step 1 of {runs[1].directory} has 2 operations", "op:0 to op:1"
    a, b = (each.directory for each in runs)
    remedy = f"rlharness reproduce {a} --step 1 --trace-ops --against {b} names one that differs"
    assert (refused.value.what, refused.value.legal, refused.value.remedy) == (what, legal, remedy)
    (elsewhere,) = make_plan(*runs, ["op:2"], step=3, num_steps=None, is_once=False).patches
    assert elsewhere.first == 3, "nobody knows before a run"
    write_ops(runs[1].directory, [operation(0)], step=3, problem="its disk was full")
    (torn,) = make_plan(*runs, ["op:2"], step=3, num_steps=None, is_once=False).patches
    assert torn.first == 3, "the record is not whole"


def test_the_weights_of_a_step_are_looked_at_where_they_were_made(tmp_path: Path) -> None:
    plan = planned(tmp_path, LATER, "weights", step=4, is_once=True)
    assert [patch.title for patch in plan.patches] == ["weights, with which step 4 begins"]
    assert plan.patches[0].first == 3


def test_texts_are_no_values(tmp_path: Path) -> None:
    """They differ first, and cannot be put in."""

    def with_texts(name: str, number: int) -> RecordedRun:
        steps = [
            [*recorded_values, RecordedValue("loss", "words", 0, "texts", (2,), "raw", bytes([number]) * 16)]
            for recorded_values in steps_of(NUM_STEPS, flip_bit(3 if number else NUM_STEPS, "loss", "loss"))
        ]
        return RecordedRun(read_trace(write(tmp_path / name, steps)), CALL)

    runs = with_texts("a", 0), with_texts("b", 1)
    plan = make_plan(*runs, ["loss"], step=None, num_steps=None, is_once=False)
    assert (plan.pair.parts, plan.pair.step) == (0, 3)
    for takes in (["loss/words"], []):
        with pytest.raises(UsageError, match="texts") as refused:
            make_plan(*runs, takes, step=None, num_steps=None, is_once=False)
        assert not refused.value.remedy


def test_so_many_steps_are_looked_at_of_what_begins_last(tmp_path: Path) -> None:
    assert planned(tmp_path, LATER, "gradients", "loss", num_steps=2).pair.last == 4


def test_weights_that_no_step_begins_with_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="differ first after step 5, and no step follows") as refused:
        planned(tmp_path, [(1, "loss", "loss"), (5, "optimizer", "layers.0.weight")], "weights")
    assert "--take optimizer" in refused.value.remedy


def test_two_equal_runs_have_nothing_to_explain(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="are equal in every step that both have"):
        planned(tmp_path, [])


@given(
    st.lists(st.tuples(st.integers(0, NUM_STEPS - 1), st.sampled_from(VALUES)), min_size=1, max_size=4, unique=True),
    st.data(),
)
@SEEDED
def test_it_begins_where_something_that_is_taken_first_differs(
    tmp_path_factory: pytest.TempPathFactory, places: list[tuple[int, tuple[str, str]]], data: st.DataObject
) -> None:
    flipped: dict[tuple[str, str], int] = {}
    for step, recorded_value in places:
        flipped[recorded_value] = min(step, flipped.get(recorded_value, step))
    take = data.draw(st.sampled_from(sorted(flipped)))
    first = min(step for recorded_value, step in flipped.items() if recorded_value[0] == take[0])
    tmp_path = tmp_path_factory.mktemp("plan")
    plan = planned(tmp_path, [(step, *recorded_value) for recorded_value, step in flipped.items()], take[0])
    assert [patch.first for patch in plan.patches] == [first]
    assert plan.pair.parts == min(flipped.values())
    assert first_difference(plan.pair.b.trace, plan.pair.a.trace) == plan.pair.parts
