"""Likely causes of a first difference, by what two traces show."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bits.digests import RAW
from harness.trace.diff import diff
from harness.trace.format import Kept, RecordedValue, Scope
from harness.trace.manifest import Manifest
from harness.trace.verdict import CauseCode, Verdict
from tests.support.traces import manifest_of, recorded_value, scalar, steps_of, trace, trace_of_values, value

W = "layers.0.weight"
STATE = recorded_value("rollout", "random.torch", 1, scope=Scope.CONTEXT)
OTHER_STATE = STATE._replace(digest=bytes(16))
LOSS = scalar("loss", "loss", 0x3F800000)
OTHER_LOSS = scalar("loss", "loss", 0x3F900000)
Values = Sequence[RecordedValue]


def verdict_of(directory: Path, a: Sequence[Values], b: Sequence[Values], manifest: Manifest | None = None) -> Verdict:
    return diff(*(trace(directory / name, steps, manifest or manifest_of()) for name, steps in (("a", a), ("b", b))))


def codes(verdict: Verdict) -> list[CauseCode]:
    return [each.code for each in verdict.causes]  # type: ignore[misc]


def forward(name: str, content: object) -> RecordedValue:
    return recorded_value("forward", name, content)


def backward(content: object, scope: Scope = Scope.LOGICAL) -> RecordedValue:
    return recorded_value("backward", W, content, scope=scope)


def rate(number: float, name: str = "group0.lr") -> RecordedValue:
    return RecordedValue("optimizer", name, 0, "f64", (), RAW, struct.pack("<d", number).ljust(16, b"\0"))


MADE = backward(1, Scope.PHYSICAL)


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ([[STATE, forward(W, 1)]], [[OTHER_STATE, forward(W, 2)]], [CauseCode.SEED_OF_HASH]),
        ([[STATE, forward(W, 1)]], [[STATE, forward(W, 2)]], [CauseCode.WEIGHTS_DIFFER]),
        ([[STATE], [STATE, LOSS]], [[STATE], [OTHER_STATE, OTHER_LOSS]], [CauseCode.GENERATOR_DIFFERS]),
        ([[forward(W, 1), LOSS]], [[forward(W, 1), OTHER_LOSS]], [CauseCode.INPUTS_NOT_RECORDED]),
        (
            [[recorded_value("rollout", "tokens", 1), recorded_value("reward", "rewards", 1)]],
            [[recorded_value("rollout", "tokens", 1), recorded_value("reward", "rewards", 2)]],
            [CauseCode.REWARD_OF_HASH],
        ),
        (
            [[recorded_value("rollout", "batch", 1), LOSS]],
            [[recorded_value("rollout", "batch", 1), OTHER_LOSS]],
            [CauseCode.FORWARD_DIFFERS],
        ),
        ([[LOSS, MADE, backward(1)]], [[LOSS, MADE, backward(2)]], [CauseCode.GRADIENT_CHANGED]),
        (
            [[LOSS, MADE, backward(1)]],
            [[LOSS, backward(3, Scope.PHYSICAL), backward(2)]],
            [CauseCode.BACKWARD_DIFFERS],
        ),
        ([[LOSS, rate(1)]], [[LOSS, rate(2)]], [CauseCode.SETTINGS_DIFFER]),
        (
            [[LOSS, recorded_value("optimizer", W, 1)]],
            [[LOSS, recorded_value("optimizer", W, 2)]],
            [CauseCode.STATE_DIFFERS],
        ),
        (
            [[MADE, backward(1), recorded_value("optimizer", W, 1)]],
            [[MADE, backward(1), recorded_value("optimizer", W, 2)]],
            [CauseCode.STATE_DIFFERS],
        ),
        (
            [[MADE, recorded_value("optimizer", W, 1)]],
            [[MADE, recorded_value("optimizer", W, 2)]],
            [CauseCode.OWN_OPTIMIZER_DIFFERS],
        ),
        ([[LOSS]] * 3, [[LOSS]] * 2, [CauseCode.ENDED_EARLIER]),
        ([[recorded_value("sync", W, 1)]], [[recorded_value("sync", W, 2)]], [CauseCode.SYNC_DIFFERS]),
        (
            [[recorded_value("optimizer", W, 1)], [forward(W, 1)]],
            [[recorded_value("optimizer", W, 1)], [forward(W, 2)]],
            [CauseCode.WRITTEN_OUTSIDE],
        ),
    ],
)
def test_the_likely_cause(tmp_path: Path, a: list[Values], b: list[Values], found: list[CauseCode]) -> None:
    assert codes(verdict_of(tmp_path, a, b)) == found


def test_a_value_that_was_not_recorded_again_is_known_since_it_was(tmp_path: Path) -> None:
    buffer = "1.running_mean"
    steps = [[forward(buffer, 1)], [LOSS], [forward(buffer, 2), LOSS]]
    verdict = verdict_of(tmp_path, steps, [*steps[:2], [LOSS]])
    assert verdict.first is not None and verdict.first.known is not None
    assert (verdict.first.known.step, verdict.first.known.value) == (0, forward(buffer, 1))


def test_settings_that_differ_are_all_named(tmp_path: Path) -> None:
    """The learning rate too, although a beta comes first and was recorded by one trace only."""
    first = [rate(0.9, "group0.betas.0"), rate(1)]
    verdict = verdict_of(tmp_path, [first, [rate(0.8, "group0.betas.0"), rate(2)]], [first, [rate(3)]])
    assert verdict.first is not None
    assert [each.name for each in verdict.first.settings] == ["group0.betas.0", "group0.lr"]
    assert verdict.first.settings[0].b == rate(0.9, "group0.betas.0")


@pytest.mark.parametrize(
    ("numbers", "hash_seed", "found"),
    [
        ((3, 1, 2), "", CauseCode.ORDER_OF_SET),
        ((3, 1, 2), "0", CauseCode.ORDER_DIFFERS),
        ((1, 2, 4), "", CauseCode.DATA_DIFFER),
    ],
)
def test_a_hash_seed_is_a_cause_only_of_an_order(
    tmp_path: Path, numbers: tuple[int, ...], hash_seed: str, found: CauseCode
) -> None:
    def batch(numbers: Sequence[int]) -> Kept:
        return value("rollout", "batch", "i64", (3,), struct.pack("<3q", *numbers))

    settings = {"variable PYTHONHASHSEED": hash_seed} if hash_seed else {}
    a = trace_of_values(tmp_path / "a", [[batch((1, 2, 3))]])
    b = trace_of_values(tmp_path / "b", [[batch(numbers)]])
    manifest = manifest_of(perturbation=settings)
    assert codes(diff(replace(a, manifest=manifest), replace(b, manifest=manifest))) == [found]


def test_generators_are_compared_where_both_traces_have_them(tmp_path: Path) -> None:
    """A trace with the operations of step 0 begins before the program seeds anything."""
    verdict = verdict_of(tmp_path, [[LOSS], [STATE, LOSS]], [[STATE, LOSS], [STATE, OTHER_LOSS]])
    assert verdict.context is not None and verdict.context.step is None


def test_code_and_settings_that_differ_come_first(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", steps_of(1), manifest_of(subject={"commit": "1"}, perturbation={"cores": "1"}))
    other = [[each if each.name != "loss" else OTHER_LOSS for each in values] for values in steps_of(1)]
    b = trace(tmp_path / "b", other, manifest_of(subject={"commit": "2"}, perturbation={"cores": "2"}))
    assert codes(diff(a, b))[:2] == [CauseCode.CODE_DIFFERS, CauseCode.ENVIRONMENT_DIFFERS]


def test_libraries_that_cannot_compute_are_shown_and_decide_nothing(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", steps_of(1), manifest_of(numerics={"library libnss_mdns4_minimal.so.2": "d6"}))
    b = trace(tmp_path / "b", [[OTHER_LOSS]], manifest_of())
    verdict = diff(a, b)
    assert (verdict.kind.value, [*verdict.fingerprints]) == ("diverged", ["libraries"])
