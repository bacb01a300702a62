"""Goldens: what is kept of a trace, what a run is to it, files that survive a round trip, reasons on record."""

import struct
from collections.abc import Callable
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from harness.lab.gate.change import Change, Comparison, GateCode
from harness.lab.gate.gate import fitting_key, nearest_differences
from harness.lab.gate.golden import (
    GOLDEN,
    NORM,
    Acceptance,
    Golden,
    GoldenError,
    accept,
    compare_with_golden,
    golden_directory,
    key_of,
    numerics_of,
    read_goldens,
    write_golden,
)
from harness.trace.format import CURVE_NAMES, CurvePoint, Kept
from harness.trace.reader import Trace, read_trace
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


def golden(directory: Path, steps: Step, *, num_steps: int = 3, keeps: bool = True) -> Trace:
    with TraceWriter(directory, manifest_of(numerics={"python": "3.12", "machine": "x86_64"}), say=print) as writer:
        for step in range(num_steps):
            values = steps(step)
            told = {"gradient_norm": Float("f32", 0x40800000), "step_seconds": Float("f32", step)}
            writer.append(step, [recorded_value for recorded_value, _ in values], told, tensors=values if keeps else ())
    return read_trace(directory)


def place(found: Comparison) -> str:
    """step 1, backward."""
    first = found.verdict and found.verdict.first
    assert first
    value = first.a or first.b
    return f"step {first.step}" + (f", {value.phase}" if value else "")


def codes(found: Comparison) -> list[tuple[str, int | None]]:
    """The codes of the reasons, with the step in which each shows first."""
    return [(each.code.name, each.values.get("first_step")) for each in found.reasons]


def test_a_digest_of_a_sync_that_moves_alone_is_behaviour(tmp_path: Path) -> None:
    def synced(digest: bytes) -> Step:
        return lambda step: [*step_of()(step), value("sync", "weights_digest", "text", (2,), digest)]

    one, other = (golden(tmp_path / digest.decode(), synced(digest)) for digest in (b"w1", b"w2"))
    found = compare_with_golden(one, other)
    assert (found.change, place(found)) == (Change.BEHAVIOUR, "step 0, sync")
    assert found.reasons == (GateCode.SYNC_MOVED_ALONE(),)


@pytest.fixture
def before(tmp_path: Path) -> Trace:
    return golden(tmp_path / "before", step_of())


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (step_of(gradient=2.0000002, at=1), (Change.NUMERICS, [], "step 1, backward")),
        (step_of(advantage=0.5000001, at=2), (Change.NUMERICS, [], "step 2, advantage")),
        (step_of(token=6, at=1), (Change.BEHAVIOUR, [("TOKENS_CHANGED", 1)], "step 1, rollout")),
        (step_of(reward=2.0, at=1), (Change.BEHAVIOUR, [("REWARDS_CHANGED", 1)], "step 1, reward")),
        (step_of(advantage=-0.5, at=2), (Change.BEHAVIOUR, [("ADVANTAGE_SIGNS_CHANGED", 2)], "step 2, advantage")),
    ],
)
def test_a_change_is_classified(
    before: Trace, tmp_path: Path, steps: Step, expected: tuple[Change, list[tuple[str, int]], str]
) -> None:
    found = compare_with_golden(before, golden(tmp_path / "now", steps))
    assert (found.change, codes(found), place(found)) == expected


def with_curve(made: Trace, *steps: dict[str, float]) -> Trace:
    """The same with other values in its curve, as f32."""
    bits = [{name: Float("f32", struct.unpack("<I", struct.pack("<f", x))[0]) for name, x in s.items()} for s in steps]
    return replace(made, curve=tuple(CurvePoint(step, values, "") for step, values in enumerate(bits)))


@pytest.fixture
def moved(tmp_path: Path) -> Trace:
    """A gradient is another from step 1 on."""
    return golden(tmp_path / "moved", step_of(gradient=4.0, at=1))


@pytest.mark.parametrize("name", CURVE_NAMES)
@pytest.mark.parametrize("at", [1, 2], ids=["where they part", "one step later"])
def test_a_value_of_the_curve_that_has_moved_further_than_rounding_is_behaviour(
    before: Trace, moved: Trace, name: str, at: int
) -> None:
    a = with_curve(before, {name: 4.0}, {name: 4.0}, {name: 4.0})
    b = with_curve(moved, *({name: 8.0 if step == at else 4.0} for step in range(3)))
    found = compare_with_golden(a, b)
    assert (found.change, place(found)) == (Change.BEHAVIOUR, "step 1, backward")
    assert found.reasons == (GateCode.CURVE_BEYOND_ROUNDING(name=name, step=at, base=4.0, head=8.0),)
    assert compare_with_golden(a, with_curve(b, *3 * [{name: 4.000002}])).change is Change.NUMERICS


def test_later_on_rounding_itself_grows_and_is_not_judged(before: Trace, tmp_path: Path) -> None:
    a, b = (golden(tmp_path / side, steps) for side, steps in (("a", step_of()), ("b", step_of(gradient=2.5))))
    same = {"loss": 4.0}
    found = compare_with_golden(with_curve(a, same, same, same), with_curve(b, same, same, {"loss": 8.0}))
    assert found.change is Change.NUMERICS


def test_a_nan_that_came_is_no_rounding_and_one_that_was_there_is_no_change(before: Trace, moved: Trace) -> None:
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


def test_another_number_of_steps_and_another_identity(before: Trace, tmp_path: Path) -> None:
    longer = compare_with_golden(before, golden(tmp_path / "now", step_of(), num_steps=4))
    assert (codes(longer), place(longer)) == ([("STEP_ONLY_AT_HEAD", None)], "step 3")
    found = compare_with_golden(before, with_fingerprint(before, identity={"seed": "8", "lr": "1"}))
    seed = with_fingerprint(before).manifest.fingerprint.identity["seed"]
    assert (found.change, found.reasons) == (
        Change.CONFIGURATION,
        (
            GateCode.SETTING_CHANGED(name="lr", base=None, head="1"),
            GateCode.SETTING_CHANGED(name="seed", base=seed, head="8"),
        ),
    )


def with_fingerprint(trace: Trace, **parts: dict[str, str]) -> Any:
    """The same with other parts of its fingerprint."""
    assert trace.manifest is not None
    fingerprint = replace(trace.manifest.fingerprint, **parts)
    return replace(trace, manifest=replace(trace.manifest, fingerprint=fingerprint))


def test_a_golden_is_a_trace_and_its_history(before: Trace, tmp_path: Path) -> None:
    directory = golden_directory(tmp_path / "goldens", "scenarios/sums.yaml", "smoke") / key_of(before)
    assert directory.parent.name == "sums.smoke"
    (before.directory / "output.log").write_text("printed")
    found, written = accept(before, None, directory, WHY)
    assert (found.change, found.reasons) == (Change.ACCEPTED, (GateCode.GOLDEN_FIRST(),))
    ((key, read),) = read_goldens(directory.parent).items()
    assert (key, read.history, written.history) == (key_of(before), (WHY,), (WHY,))
    assert compare_with_golden(read.trace, before).change is Change.EQUAL
    assert {path.name for path in directory.iterdir()} == {
        *("golden.json", "manifest.json", "curve.jsonl", "rank-0.log", "tensors")
    }
    assert read_goldens(tmp_path / "none") == {}


def test_a_golden_is_rewritten_only_where_it_is_another_and_history_grows(before: Trace, tmp_path: Path) -> None:
    _, first = accept(before, None, tmp_path / "g", WHY)
    again = golden(tmp_path / "again", step_of())
    assert accept(again, first, tmp_path / "g", replace(WHY, reason="for nothing"))[1] is first
    found, second = accept(
        golden(tmp_path / "x", step_of(token=9)), first, tmp_path / "g", replace(WHY, reason="another")
    )
    assert [each.reason for each in second.history] == ["the clip is lower", "another"]
    assert codes(found) == [("GOLDEN_REPLACED", None), ("TOKENS_CHANGED", 0)]
    assert read_goldens(tmp_path)["g"].history == second.history


@pytest.mark.parametrize("num_bytes", [0, 600])
def test_a_full_disk_leaves_the_golden_as_it_was(before: Trace, tmp_path: Path, num_bytes: int) -> None:
    write_golden(tmp_path / "g", Golden(before, (WHY,)))
    names = {path: path.read_bytes() for path in (tmp_path / "g").rglob("*") if path.is_file()}
    other = Golden(golden(tmp_path / "other", step_of(token=9)), (WHY,))
    with largest_file(num_bytes), pytest.raises(GoldenError, match="File too large") as caught:
        write_golden(tmp_path / "g", other)
    assert "--golden" in caught.value.remedy
    assert {path: path.read_bytes() for path in (tmp_path / "g").rglob("*") if path.is_file()} == names
    assert not (tmp_path / "g.new").exists()


def test_a_golden_fits_a_run_that_has_looked_up_a_host_name(before: Trace) -> None:
    numerics = numerics_of(before)
    goldens = {"5d0e": Golden(with_fingerprint(before, numerics={**numerics, "library libnss_sss.so.2": "d6"}), ())}
    assert fitting_key(goldens, before) == "5d0e"
    assert fitting_key({**goldens, key_of(before): Golden(before, ())}, before) == key_of(before)
    other = with_fingerprint(before, numerics={**numerics, "library libm.so.6": "d6"})
    assert fitting_key(goldens, other) == key_of(other)
    assert nearest_differences(goldens.values(), other) == ("library libm.so.6",)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version": 2}', '{"version": 1, "history": []}'])
def test_what_is_no_golden_is_told(before: Trace, tmp_path: Path, text: str) -> None:
    write_golden(tmp_path / "g", Golden(before, (WHY,)))
    (tmp_path / "g" / GOLDEN).write_text(text, encoding="utf-8")
    with pytest.raises(GoldenError, match=GOLDEN) as refused:
        read_goldens(tmp_path)
    assert refused.value.remedy


@pytest.mark.parametrize("name", ["rank-0.log", "manifest.json"])
def test_half_a_golden_is_none_either(before: Trace, tmp_path: Path, name: str) -> None:
    """A file is not committed, since git ignores it."""
    write_golden(tmp_path / "g", Golden(before, (WHY,)))
    (tmp_path / "g" / name).unlink()
    with pytest.raises(GoldenError, match=r"golden\.json cannot be read"):
        read_goldens(tmp_path)


def test_what_cancels_is_judged_beside_one_and_the_gradient_norm_by_itself(before: Trace, moved: Trace) -> None:
    for name in CURVE_NAMES:
        a, b = (with_curve(each, *3 * [{name: x}]) for each, x in ((before, 1e-9), (moved, -3e-9)))
        assert compare_with_golden(a, b).change is (Change.BEHAVIOUR if name == NORM else Change.NUMERICS), name
