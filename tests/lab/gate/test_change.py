"""What a verdict means for a change: equal, numerics only, behaviour; every doubt counts as behaviour."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from harness.lab.gate.change import WHAT, Change, classify_change
from harness.lab.gate.rounding import Rounding
from harness.trace.diff import diff
from harness.trace.verdict import (
    ADVANTAGE_SIGNS,
    BATCHES,
    COUNTED,
    INTEGERS,
    REWARDS,
    TOKENS,
    Count,
    Difference,
    Element,
    Kind,
    Verdict,
)
from tests.support.traces import flip_bit, manifest_of, steps_of, trace

ROUNDING = Rounding(1, 3, 1, "backward w", 1, 1, "backward w", 1e-7, "backward", True)
FAR = replace(ROUNDING, share=0.5, is_rounding=False)
SAME = {TOKENS: Count(100), ADVANTAGE_SIGNS: Count(100)}


@pytest.fixture
def moved(tmp_path: Path) -> Verdict:
    """A verdict on two traces of which one gradient differs from step 1 on."""
    a = trace(tmp_path / "a", steps_of(3))
    b = trace(tmp_path / "b", steps_of(3, flip_bit(1, "backward", "layers.0.weight")))
    return replace(diff(a, b), attribution=SAME)


def test_nothing_differs(tmp_path: Path) -> None:
    a, b = (trace(tmp_path / side, steps_of(3)) for side in "ab")
    assert classify_change(diff(a, b), None).change is Change.EQUAL


def test_floats_alone_within_rounding_are_numerics(moved: Verdict) -> None:
    found = classify_change(moved, ROUNDING)
    assert (found.change, found.reasons, found.rounding) == (Change.NUMERICS, (), ROUNDING)


def test_floats_further_apart_are_behaviour(moved: Verdict) -> None:
    found = classify_change(moved, FAR)
    assert found.change is Change.BEHAVIOUR
    assert found.reasons == ("backward differs by 50 % of its largest element: more than rounding explains",)
    assert classify_change(moved, replace(FAR, share=1e-9, num_nan=3)).reasons == ("NaN came or went, in 3 elements",)
    assert classify_change(moved, replace(FAR, share=inf)).reasons == ("all of backward was 0 at the base, and is not",)


@pytest.mark.parametrize("kind", [BATCHES, INTEGERS, TOKENS, REWARDS, ADVANTAGE_SIGNS])
def test_whatever_is_decided_otherwise_is_behaviour(moved: Verdict, kind: str) -> None:
    place = Element(2, 0, kind, (4, 4), 3)
    found = classify_change(replace(moved, attribution={**SAME, kind: Count(64, 5, 0, place)}), FAR)
    assert found.change is Change.BEHAVIOUR
    assert found.reasons == (f"{COUNTED[kind]}: 5 of 64, first at step 2",), "floats follow from it"
    unknown = classify_change(replace(moved, attribution={**SAME, kind: Count(0, 0, 1, place)}), ROUNDING)
    assert unknown.change is Change.BEHAVIOUR
    assert ("not known" in unknown.reasons[0]) == (kind == ADVANTAGE_SIGNS), "an advantage that moved may keep its sign"


@pytest.mark.parametrize("what", [each for each in Difference if each is not Difference.VALUE])
def test_other_things_recorded_are_behaviour(moved: Verdict, what: Difference) -> None:
    assert moved.first is not None
    found = classify_change(replace(moved, first=replace(moved.first, what=what)), None)
    assert (found.change, found.reasons) == (Change.BEHAVIOUR, (WHAT[what],))


def test_where_nothing_tells_numerics_from_behaviour_it_counts_as_behaviour(moved: Verdict) -> None:
    bare = replace(moved, attribution={})
    assert classify_change(bare, None).change is Change.BEHAVIOUR
    assert classify_change(bare, ROUNDING).change is Change.NUMERICS


def test_what_the_change_itself_imports_is_no_excuse(tmp_path: Path) -> None:
    """One machine, one environment: `diff` by itself would say that the two are not comparable."""
    a = trace(tmp_path / "a", steps_of(3), manifest_of(numerics={"python": "3.12"}))
    b = trace(
        tmp_path / "b",
        steps_of(3, flip_bit(1, "backward", "layers.0.weight")),
        manifest_of(numerics={"python": "3.12", "package einops": "0.8"}),
    )
    verdict = diff(a, b)
    assert verdict.kind is Kind.NOT_COMPARABLE
    found = classify_change(verdict, FAR)
    assert found.change is Change.BEHAVIOUR
    assert found.notes == ("the head's process is another than the base's in package einops",)


def test_digests_that_cannot_be_compared_are_no_equality(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", steps_of(3))
    b = trace(tmp_path / "b", steps_of(3, lambda step, recorded_value: recorded_value._replace(algorithm="their own")))
    assert classify_change(diff(a, b), None).change is Change.NOT_COMPARABLE
