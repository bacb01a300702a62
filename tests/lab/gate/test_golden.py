"""Goldens: what is kept of a trace, what a run is to it, files that survive a round trip, reasons on record."""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.lab.gate.change import Change
from harness.lab.gate.golden import (
    GOLDEN,
    Acceptance,
    Golden,
    GoldenError,
    accepted,
    compare_with_golden,
    golden_directory,
    golden_of,
    other_keys,
    read_golden,
    write_golden,
)
from harness.trace.reader import read_trace
from harness.trace.tensor_file import Kept
from harness.trace.values import Float
from harness.trace.writer import TraceWriter
from tests.trace.traces import manifest_of, value

WHY = Acceptance("2026-11-20", "3f9c2a7", "the clip is lower", "Ada")
Step = Callable[[int], list[Kept]]


def f32(phase: str, name: str, *numbers: float) -> Kept:
    return value(phase, name, "f32", (len(numbers),), struct.pack(f"<{len(numbers)}f", *numbers))


def step_of(*, token: int = 5, reward: float = 1.0, advantage: float = 0.5, gradient: float = 2.0, at: int = 0) -> Step:
    """Steps whose values are these from step `at` on."""

    def made(step: int) -> list[Kept]:
        is_other = step >= at
        return [
            value("rollout", "tokens", "i64", (2, 2), struct.pack("<4q", 1, 2, 3, token if is_other else 5)),
            f32("reward", "rewards", reward if is_other else 1.0, 0.0),
            f32("advantage", "advantages", advantage if is_other else 0.5, *5 * [-0.5]),
            f32("backward", "w", gradient if is_other else 2.0, 3.0),
        ]

    return made


def golden(directory: Path, steps: Step, *, num_steps: int = 3, norm: float = 4.0, keeps: bool = True) -> Golden:
    with TraceWriter(directory, manifest_of(numerics={"python": "3.12", "machine": "x86_64"}), say=print) as writer:
        for step in range(num_steps):
            values = steps(step)
            told = {"gradient_norm": Float("f32", struct.unpack("<I", struct.pack("<f", norm))[0])}
            told["step_seconds"] = Float("f32", step)
            writer.append(step, [leaf for leaf, _ in values], told, tensors=values if keeps else ())
    return golden_of(read_trace(directory), "sums", "smoke")


@pytest.fixture
def before(tmp_path: Path) -> Golden:
    return golden(tmp_path / "before", step_of())


def test_the_same_bits_are_equal(before: Golden, tmp_path: Path) -> None:
    assert compare_with_golden(before, golden(tmp_path / "now", step_of())).change is Change.EQUAL


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (step_of(gradient=2.0000002, at=1), (Change.NUMERICS, (), "step 1, backward")),
        (step_of(advantage=0.5000001, at=2), (Change.NUMERICS, (), "step 2, advantage")),
        (step_of(token=6, at=1), (Change.BEHAVIOUR, ("tokens flipped, first at step 1",), "step 1, rollout")),
        (step_of(reward=2.0, at=1), (Change.BEHAVIOUR, ("rewards changed, first at step 1",), "step 1, reward")),
        (
            step_of(advantage=-0.5, at=2),
            (Change.BEHAVIOUR, ("signs of advantages changed, first at step 2",), "step 2, advantage"),
        ),
    ],
)
def test_a_change_is_told_from_roots_alone(
    before: Golden, tmp_path: Path, steps: Step, expected: tuple[Change, tuple[str, ...], str]
) -> None:
    found = compare_with_golden(before, golden(tmp_path / "now", steps))
    assert (found.change, found.reasons, found.place) == expected


def test_a_gradient_norm_that_has_moved_further_than_rounding_is_behaviour(before: Golden, tmp_path: Path) -> None:
    found = compare_with_golden(before, golden(tmp_path / "now", step_of(gradient=4.0), norm=8.0))
    assert found.change is Change.BEHAVIOUR
    assert found.reasons == ("the gradient norm of step 0 was 4 and is 8: more than rounding explains",)


def test_signs_that_nobody_knows_count_as_behaviour(tmp_path: Path) -> None:
    a = golden(tmp_path / "a", step_of(), keeps=False)
    b = golden(tmp_path / "b", step_of(advantage=0.5000001), keeps=False)
    assert compare_with_golden(a, a).change is Change.EQUAL
    found = compare_with_golden(a, b)
    assert (found.change, "not known" in found.reasons[0]) == (Change.BEHAVIOUR, True)


def test_another_number_of_steps_and_another_identity(before: Golden, tmp_path: Path) -> None:
    assert compare_with_golden(before, golden(tmp_path / "now", step_of(), num_steps=4)).place == "step 3, rollout"
    other = replace(before, identity={"seed": "8", "lr": "1"})
    found = compare_with_golden(before, other)
    assert (found.change, found.reasons) == (
        Change.CONFIGURATION,
        ("the golden is of another configuration: lr, seed",),
    )


def test_files_hold_everything_and_no_timings(before: Golden, tmp_path: Path) -> None:
    kept = accepted(before, None, WHY)
    directory = golden_directory(tmp_path / "goldens", "scenarios/sums.yaml", "smoke") / before.key
    assert directory.parent.name == "sums.smoke"
    write_golden(directory, kept)
    found = read_golden(directory)
    assert found == kept
    assert found is not None
    assert found.history == (WHY,)
    assert "step_seconds" not in (directory / "curve.jsonl").read_text("utf-8")
    assert other_keys(directory.parent, "another") == [before.key]
    assert other_keys(directory.parent, before.key) == []
    assert read_golden(directory.parent / "none") is None


def test_a_golden_is_rewritten_only_where_it_is_another_and_history_grows(before: Golden, tmp_path: Path) -> None:
    first = accepted(before, None, WHY)
    assert accepted(golden(tmp_path / "again", step_of()), first, replace(WHY, reason="for nothing")) is first
    second = accepted(golden(tmp_path / "other", step_of(token=9)), first, replace(WHY, reason="another"))
    assert [each.reason for each in second.history] == ["the clip is lower", "another"]


def test_the_key_is_that_of_the_numerics(before: Golden) -> None:
    assert replace(before, numerics={"python": "3.13"}).key != before.key
    assert replace(before, numerics=dict(reversed(list(before.numerics.items())))).key == before.key
    assert len(before.key) == 12


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version": 1}', '{"version": 2}'])
def test_what_is_no_golden_is_told(before: Golden, tmp_path: Path, text: str) -> None:
    write_golden(tmp_path / "g", accepted(before, None, WHY))
    (tmp_path / "g" / GOLDEN).write_text(text, encoding="utf-8")
    with pytest.raises(GoldenError, match=GOLDEN):
        read_golden(tmp_path / "g")


def test_half_a_golden_is_none_either(before: Golden, tmp_path: Path) -> None:
    write_golden(tmp_path / "g", accepted(before, None, WHY))
    (tmp_path / "g" / "curve.jsonl").unlink()
    with pytest.raises(GoldenError, match=r"curve\.jsonl"):
        read_golden(tmp_path / "g")
