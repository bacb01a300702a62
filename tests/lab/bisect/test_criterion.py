"""What makes a probe bad: bits, the reward, a value of the curve."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bits.errors import UsageError
from harness.lab.bisect.bisection import Criterion, Outcome, parse_criterion
from harness.trace.format import CurvePoint
from harness.trace.reader import Trace
from harness.trace.values import Float
from tests.support.traces import flip_bit, manifest_of, steps_of, trace


def with_rewards(base: Trace, *rewards: float) -> Trace:
    bits = [Float("f32", struct.unpack("<I", struct.pack("<f", reward))[0]) for reward in rewards]
    points = [CurvePoint(step, {"reward_mean": each}, "") for step, each in enumerate(bits)]
    return replace(base, curve=tuple(points))


@pytest.fixture
def good(tmp_path: Path) -> Trace:
    return trace(tmp_path / "good", steps_of(3))


def outcome(criterion: Criterion, good: Trace, probe: Trace) -> tuple[Outcome, str]:
    return criterion.classify(good, probe)


def test_by_bits(good: Trace, tmp_path: Path) -> None:
    by = parse_criterion("bits")
    assert outcome(by, good, trace(tmp_path / "same", steps_of(3))) == (Outcome.GOOD, "every bit is the same")
    flipped = trace(tmp_path / "other", steps_of(3, flip_bit(2, "backward", "layers.1.weight")))
    assert outcome(by, good, flipped) == (Outcome.BAD, "bits differ from step 2 on, first in backward layers.1.weight")
    assert outcome(by, good, trace(tmp_path / "more", steps_of(4)))[0] is Outcome.BAD
    other = trace(tmp_path / "cut", steps_of(3), complete=False)
    skipped = (Outcome.SKIP, "cannot be compared: trace_incomplete")
    assert outcome(by, good, other) == skipped, "equal as far as it went"


def test_other_numerics_are_no_excuse_and_no_difference(good: Trace, tmp_path: Path) -> None:
    """Which is what another version of a package brings along."""
    by, numerics = parse_criterion("bits"), manifest_of(numerics={"package einops": "0.8"})
    assert outcome(by, good, trace(tmp_path / "same", steps_of(3), numerics))[0] is Outcome.GOOD
    flipped = steps_of(3, flip_bit(2, "backward", "layers.1.weight"))
    assert outcome(by, good, trace(tmp_path / "other", flipped, numerics))[0] is Outcome.BAD


def test_by_a_value_of_the_curve(good: Trace) -> None:
    by = parse_criterion("reward_mean<0.2")
    assert outcome(by, good, with_rewards(good, 0.5, 0.25)) == (Outcome.GOOD, "no step has reward_mean<0.2")
    assert outcome(by, good, with_rewards(good, 0.5, 0.125)) == (Outcome.BAD, "reward_mean of step 1 is 0.125")
    assert outcome(by, good, with_rewards(good, float("nan")))[0] is Outcome.BAD
    assert outcome(by, good, replace(good, curve=()))[0] is Outcome.SKIP


@pytest.mark.parametrize("text", ["nan", "reward", "loss", "loss>", "", "bits>1x"])
def test_what_is_no_criterion_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_criterion(text)
    assert refused.value.what == f"--by {text}"
    assert (refused.value.legal or "").startswith("bits, or METRIC>X")


def test_what_the_curve_has_not_is_refused_with_what_it_has(good: Trace) -> None:
    base = with_rewards(good, 0.5)
    with pytest.raises(UsageError) as refused:
        parse_criterion("foo>1").check(base)
    assert refused.value.what == "--by foo>1: the curve of the good run has no value 'foo'"
    assert refused.value.legal == "reward_mean"
    for text in ("bits", "reward<0.2"):
        parse_criterion(text).check(base)
