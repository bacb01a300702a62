"""Goldens: what is kept of a trace, what a run is to it, files that survive a round trip, reasons on record."""

import struct
from collections.abc import Callable
from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest

from harness.bits.findings import Finding
from harness.lab.gate.change import Change, GateCode
from harness.lab.gate.gate import fitting_key, nearest_differences
from harness.lab.gate.golden import (
    GOLDEN,
    NORM,
    Acceptance,
    Golden,
    GoldenError,
    accepted,
    compare_with_golden,
    golden_directory,
    golden_of,
    read_goldens,
    write_golden,
)
from harness.trace.curve import NAMES, CurvePoint
from harness.trace.reader import read_trace
from harness.trace.tensor_file import Kept
from harness.trace.values import Float
from harness.trace.writer import TraceWriter
from tests.support.file_limits import largest_file
from tests.support.traces import manifest_of, value

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


def golden(directory: Path, steps: Step, *, num_steps: int = 3, keeps: bool = True) -> Golden:
    with TraceWriter(directory, manifest_of(numerics={"python": "3.12", "machine": "x86_64"}), say=print) as writer:
        for step in range(num_steps):
            values = steps(step)
            told = {"gradient_norm": Float("f32", 0x40800000), "step_seconds": Float("f32", step)}
            writer.append(step, [recorded_value for recorded_value, _ in values], told, tensors=values if keeps else ())
    return golden_of(read_trace(directory), "sums", "smoke")


def test_a_digest_of_a_sync_that_moves_alone_is_behaviour(tmp_path: Path) -> None:
    def synced(digest: bytes) -> Step:
        return lambda step: [*step_of()(step), value("sync", "weights_digest", "text", (2,), digest)]

    one, other = (golden(tmp_path / digest.decode(), synced(digest)) for digest in (b"w1", b"w2"))
    found = compare_with_golden(one, other)
    assert (found.change, found.place) == (Change.BEHAVIOUR, "step 0, sync")
    assert found.reasons == (GateCode.SYNC_MOVED_ALONE(),)


@pytest.fixture
def before(tmp_path: Path) -> Golden:
    return golden(tmp_path / "before", step_of())


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (step_of(gradient=2.0000002, at=1), (Change.NUMERICS, (), "step 1, backward")),
        (step_of(advantage=0.5000001, at=2), (Change.NUMERICS, (), "step 2, advantage")),
        (step_of(token=6, at=1), (Change.BEHAVIOUR, (GateCode.TOKENS_CHANGED(first_step=1),), "step 1, rollout")),
        (step_of(reward=2.0, at=1), (Change.BEHAVIOUR, (GateCode.REWARDS_CHANGED(first_step=1),), "step 1, reward")),
        (
            step_of(advantage=-0.5, at=2),
            (Change.BEHAVIOUR, (GateCode.ADVANTAGE_SIGNS_CHANGED(first_step=2),), "step 2, advantage"),
        ),
    ],
)
def test_a_change_is_told_from_roots_alone(
    before: Golden, tmp_path: Path, steps: Step, expected: tuple[Change, tuple[Finding, ...], str]
) -> None:
    found = compare_with_golden(before, golden(tmp_path / "now", steps))
    assert (found.change, found.reasons, found.place) == expected


def with_curve(made: Golden, *steps: dict[str, float]) -> Golden:
    """The same with other values in its curve, as f32."""
    bits = [{name: Float("f32", struct.unpack("<I", struct.pack("<f", x))[0]) for name, x in s.items()} for s in steps]
    return replace(made, curve=tuple(CurvePoint(step, values, "") for step, values in enumerate(bits)))


@pytest.fixture
def moved(tmp_path: Path) -> Golden:
    """A gradient is another from step 1 on."""
    return golden(tmp_path / "moved", step_of(gradient=4.0, at=1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", [1, 2], ids=["where they part", "one step later"])
def test_a_value_of_the_curve_that_has_moved_further_than_rounding_is_behaviour(
    before: Golden, moved: Golden, name: str, at: int
) -> None:
    a = with_curve(before, {name: 4.0}, {name: 4.0}, {name: 4.0})
    b = with_curve(moved, *({name: 8.0 if step == at else 4.0} for step in range(3)))
    found = compare_with_golden(a, b)
    assert (found.change, found.place) == (Change.BEHAVIOUR, "step 1, backward")
    assert found.reasons == (GateCode.CURVE_BEYOND_ROUNDING(name=name, step=at, base=4.0, head=8.0),)
    assert compare_with_golden(a, with_curve(b, *3 * [{name: 4.000002}])).change is Change.NUMERICS


def test_later_on_rounding_itself_grows_and_is_not_judged(before: Golden, tmp_path: Path) -> None:
    a, b = (golden(tmp_path / side, steps) for side, steps in (("a", step_of()), ("b", step_of(gradient=2.5))))
    same = {"loss": 4.0}
    found = compare_with_golden(with_curve(a, same, same, same), with_curve(b, same, same, {"loss": 8.0}))
    assert found.change is Change.NUMERICS


def test_a_nan_that_came_is_no_rounding_and_one_that_was_there_is_no_change(before: Golden, moved: Golden) -> None:
    nan = {"loss": float("nan")}
    a, b = with_curve(before, *3 * [{"loss": 1.0}]), with_curve(moved, {"loss": 1.0}, nan, nan)
    (reason,) = compare_with_golden(a, b).reasons
    assert reason.code is GateCode.CURVE_BEYOND_ROUNDING and isnan(reason.values["head"])
    assert (reason.values["name"], reason.values["step"], reason.values["base"]) == ("loss", 1, 1.0)
    assert compare_with_golden(with_curve(before, nan, nan, nan), with_curve(moved, nan, nan, nan)).reasons == ()


def test_signs_that_nobody_knows_count_as_behaviour(tmp_path: Path) -> None:
    a = golden(tmp_path / "a", step_of(), keeps=False)
    b = golden(tmp_path / "b", step_of(advantage=0.5000001), keeps=False)
    assert compare_with_golden(a, a).change is Change.EQUAL
    found = compare_with_golden(a, b)
    assert (found.change, found.reasons) == (Change.BEHAVIOUR, (GateCode.ADVANTAGE_SIGNS_UNKNOWN(),))


def test_another_number_of_steps_and_another_identity(before: Golden, tmp_path: Path) -> None:
    assert compare_with_golden(before, golden(tmp_path / "now", step_of(), num_steps=4)).place == "step 3, rollout"
    other = replace(before, identity={"seed": "8", "lr": "1"})
    found = compare_with_golden(before, other)
    assert (found.change, found.reasons) == (
        Change.CONFIGURATION,
        (
            GateCode.SETTING_CHANGED(name="lr", base=None, head="1"),
            GateCode.SETTING_CHANGED(name="seed", base=before.identity["seed"], head="8"),
        ),
    )


def test_files_hold_everything_and_no_timings(before: Golden, tmp_path: Path) -> None:
    kept = accepted(before, None, WHY)
    directory = golden_directory(tmp_path / "goldens", "scenarios/sums.yaml", "smoke") / before.key
    assert directory.parent.name == "sums.smoke"
    write_golden(directory, kept)
    assert read_goldens(directory.parent) == {before.key: kept}
    assert read_goldens(directory.parent)[before.key].history == (WHY,)
    assert "step_seconds" not in (directory / "curve.jsonl").read_text("utf-8")
    assert read_goldens(tmp_path / "none") == {}


def test_a_golden_is_rewritten_only_where_it_is_another_and_history_grows(before: Golden, tmp_path: Path) -> None:
    first = accepted(before, None, WHY)
    assert accepted(golden(tmp_path / "again", step_of()), first, replace(WHY, reason="for nothing")) is first
    second = accepted(golden(tmp_path / "other", step_of(token=9)), first, replace(WHY, reason="another"))
    assert [each.reason for each in second.history] == ["the clip is lower", "another"]


@pytest.mark.parametrize("num_bytes", [0, 5000])
def test_a_full_disk_leaves_the_golden_as_it_was(
    before: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    """Both of its files, also where the smaller one would fit: it would belong to another curve."""
    write_golden(tmp_path / "g", accepted(before, None, WHY))
    names = {path.name: path.read_bytes() for path in (tmp_path / "g").iterdir()}
    assert len(names[GOLDEN]) < 5000
    other = accepted(golden(tmp_path / "other", step_of(token=9)), None, WHY)
    monkeypatch.setattr("harness.lab.gate.golden.curve_line", lambda point: "x" * 2000)  # within a buffer of 8 KiB
    with largest_file(num_bytes), pytest.raises(GoldenError, match="File too large") as caught:
        write_golden(tmp_path / "g", other)
    assert "--golden" in caught.value.remedy
    assert {path.name: path.read_bytes() for path in (tmp_path / "g").iterdir()} == names


def test_a_golden_fits_a_run_that_has_looked_up_a_host_name(before: Golden) -> None:
    goldens = {"5d0e": replace(before, numerics={**before.numerics, "library libnss_sss.so.2": "d6"})}
    assert fitting_key(goldens, before) == "5d0e"
    assert fitting_key({**goldens, before.key: before}, before) == before.key
    other = replace(before, numerics={**before.numerics, "library libm.so.6": "d6"})
    assert fitting_key(goldens, other) == other.key
    assert nearest_differences(goldens.values(), other) == ("library libm.so.6",)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version": 1}', '{"version": 2}'])
def test_what_is_no_golden_is_told(before: Golden, tmp_path: Path, text: str) -> None:
    write_golden(tmp_path / "g", accepted(before, None, WHY))
    (tmp_path / "g" / GOLDEN).write_text(text, encoding="utf-8")
    with pytest.raises(GoldenError, match=GOLDEN) as refused:
        read_goldens(tmp_path)
    assert refused.value.remedy


@pytest.mark.parametrize("num_lines", [None, 2])
def test_half_a_golden_is_none_either(before: Golden, tmp_path: Path, num_lines: int | None) -> None:
    """Its curve is gone, or cut."""
    write_golden(tmp_path / "g", accepted(before, None, WHY))
    curve = tmp_path / "g" / "curve.jsonl"
    lines = curve.read_text("utf-8").splitlines(keepends=True)
    curve.unlink()
    if num_lines:
        curve.write_text("".join(lines[:num_lines]), "utf-8")
    with pytest.raises(GoldenError, match=r"curve\.jsonl"):
        read_goldens(tmp_path)


def test_what_cancels_is_judged_beside_one_and_the_gradient_norm_by_itself(before: Golden, moved: Golden) -> None:
    for name in NAMES:
        a, b = (with_curve(each, *3 * [{name: x}]) for each, x in ((before, 1e-9), (moved, -3e-9)))
        assert compare_with_golden(a, b).change is (Change.BEHAVIOUR if name == NORM else Change.NUMERICS), name
