"""What a verdict means for a change: equal, numerics only, behaviour; every doubt counts as behaviour."""

import struct
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from harness.bits.digests import RAW
from harness.lab.gate.change import CODE_OF_DIFFERENCE, CODE_OF_KIND, Change, GateCode, Rounding, classify_change
from harness.trace.diff import diff
from harness.trace.format import RecordedValue
from harness.trace.verdict import (
    ADVANTAGE_SIGNS,
    BATCHES,
    INTEGERS,
    REWARDS,
    TOKENS,
    Count,
    Difference,
    Element,
    Kind,
    SettingDifference,
    Verdict,
    VerdictCode,
)
from tests.support.traces import Steps, flip_bit, manifest_of, steps_of, trace, value

ROUNDING = Rounding(1, 3, 1, "backward w", 1, 1, "backward w", 1e-7, "backward", True)
FAR = replace(ROUNDING, share=0.5, is_rounding=False)
SAME = {TOKENS: Count(100), ADVANTAGE_SIGNS: Count(100)}


@pytest.fixture
def moved(tmp_path: Path) -> Verdict:
    """A verdict on two traces of which one gradient differs from step 1 on."""
    a = trace(tmp_path / "a", steps_of(3))
    b = trace(tmp_path / "b", steps_of(3, flip_bit(1, "backward", "layers.0.weight")))
    return replace(diff(a, b), attribution=SAME)


def test_a_digest_of_a_sync_that_moves_alone_is_behaviour(tmp_path: Path) -> None:
    """In the last step nothing is sampled with it, and no float has moved."""
    a, b = (trace(tmp_path / side, with_sync(digest)) for side, digest in (("a", b"w1"), ("b", b"w2")))
    found = classify_change(replace(diff(a, b), attribution=SAME), replace(ROUNDING, num_different=0))
    assert (found.change, found.reasons) == (Change.BEHAVIOUR, (GateCode.SYNC_MOVED_ALONE(),))


def with_sync(weights_digest: bytes) -> Steps:
    """Steps whose last has a digest of synced weights."""
    steps = steps_of(3)
    synced, _ = value("sync", "weights_digest", "text", (2,), weights_digest)
    return [*steps[:2], [*steps[2], synced]]


def test_what_diff_notes_the_gate_notes_too(tmp_path: Path) -> None:
    a, b = (trace(tmp_path / side, steps_of(3)) for side in "ab")
    verdict = diff(a, b)
    note = VerdictCode.CURVE_DIFFERS(step=1, names=("gradient_norm",))
    found = classify_change(replace(verdict, notes=(note,)), None)
    assert (found.change, found.notes) == (Change.EQUAL, (note,))


def test_floats_further_apart_are_behaviour(moved: Verdict) -> None:
    found = classify_change(moved, FAR)
    assert found.change is Change.BEHAVIOUR
    assert found.reasons == (GateCode.BEYOND_ROUNDING(phase="backward", share=0.5),)
    assert classify_change(moved, replace(FAR, share=1e-9, num_nan=3)).reasons == (
        GateCode.NAN_CHANGED(num_elements=3),
    )
    assert classify_change(moved, replace(FAR, share=inf)).reasons == (GateCode.ZERO_AT_BASE(phase="backward"),)


@pytest.mark.parametrize("kind", [BATCHES, INTEGERS, TOKENS, REWARDS, ADVANTAGE_SIGNS])
def test_whatever_is_decided_otherwise_is_behaviour(moved: Verdict, kind: str) -> None:
    place = Element(2, 0, kind, (4, 4), 3)
    found = classify_change(replace(moved, attribution={**SAME, kind: Count(64, 5, 0, place)}), FAR)
    assert found.change is Change.BEHAVIOUR
    assert found.reasons == (CODE_OF_KIND[kind](first_step=2, num_different=5, num_compared=64),), (
        "floats follow from it"
    )
    unknown = classify_change(replace(moved, attribution={**SAME, kind: Count(0, 0, 1, place)}), ROUNDING)
    assert unknown.change is Change.BEHAVIOUR
    code = GateCode.ADVANTAGE_SIGNS_UNKNOWN if kind == ADVANTAGE_SIGNS else CODE_OF_KIND[kind]
    assert [reason.code for reason in unknown.reasons] == [code], "an advantage that moved may keep its sign"


@pytest.mark.parametrize("what", [each for each in Difference if each is not Difference.VALUE])
def test_other_things_recorded_are_behaviour(moved: Verdict, what: Difference) -> None:
    assert moved.first is not None
    found = classify_change(replace(moved, first=replace(moved.first, what=what)), None)
    assert (found.change, found.reasons) == (Change.BEHAVIOUR, (CODE_OF_DIFFERENCE[what](),))


def test_where_nothing_tells_numerics_from_behaviour_it_counts_as_behaviour(moved: Verdict) -> None:
    bare = replace(moved, attribution={})
    found = classify_change(bare, None)
    assert (found.change, found.reasons) == (Change.BEHAVIOUR, (GateCode.NO_EVIDENCE(),))
    assert classify_change(bare, ROUNDING).change is Change.NUMERICS


@pytest.mark.parametrize(
    ("rate", "change"),
    [
        (0.0009, Change.BEHAVIOUR),
        (0.001 * (1 + 1e-7), Change.BEHAVIOUR),
        (0.001 * (1 + 1e-9), Change.NUMERICS),
    ],
)
def test_a_changed_learning_rate_is_behaviour(moved: Verdict, rate: float, change: Change) -> None:
    a, b = (
        RecordedValue("optimizer", "group0.lr", 0, "f64", (), RAW, struct.pack("<d", each).ljust(16, b"\0"))
        for each in (0.001, rate)
    )
    assert moved.first is not None
    verdict = replace(moved, first=replace(moved.first, settings=(SettingDifference("group0.lr", a, b),)))
    assert classify_change(verdict, ROUNDING).change is change


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
    assert found.notes == (GateCode.NUMERICS_DIFFER(names=("package einops",)),)


def test_digests_that_cannot_be_compared_are_no_equality(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", steps_of(3))
    b = trace(tmp_path / "b", steps_of(3, lambda step, recorded_value: recorded_value._replace(algorithm="their own")))
    found = classify_change(diff(a, b), None)
    assert found.change is Change.NOT_COMPARABLE
    assert [reason.code for reason in found.reasons] == [VerdictCode.DIGESTS_INCOMPARABLE]
