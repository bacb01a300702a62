"""Curves: what a step costs is never compared, what it computes always is."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bits.findings import Finding
from harness.trace.diff import compare_curves, diff
from harness.trace.reader import Trace, read_trace
from harness.trace.values import Float, is_cost
from harness.trace.verdict import Kind, VerdictCode
from harness.trace.writer import TraceWriter
from tests.support.traces import manifest_of, recorded_value, steps_of, trace


def told_by(directory: Path, *lines: Mapping[str, Float]) -> Trace:
    """A trace with these curve values, beside one tensor a step that never differs."""
    with TraceWriter(directory, manifest_of(), say=print) as writer:
        for step, values in enumerate(lines):
            writer.append(step, [recorded_value("backward", "w", step)], values)
    return read_trace(directory)


def curve(directory: Path, *lines: Mapping[str, float]) -> Trace:
    return told_by(directory, *({name: Float.of(value) for name, value in values.items()} for values in lines))


@pytest.mark.parametrize(
    "name",
    [
        "train_runtime",
        "train_samples_per_second",
        "tokens_per_sec",
        "step_time",
        "time/backward",
        "perf/max_memory_allocated_gb",
        "update_s",
        "stepTime",
        "throughput",
        "GPU mem",
        "mfu",
        "timestamp",
    ],
)
def test_costs(name: str) -> None:
    assert is_cost(name)


@pytest.mark.parametrize(
    "name",
    ["loss", "grad_norm", "num_timesteps", "epoch", "kl", "learning_rate", "rewards/mean", "entropies", "lifetimes"],
)
def test_what_is_computed(name: str) -> None:
    assert not is_cost(name)


def test_the_first_step_that_differs_is_told(tmp_path: Path) -> None:
    a = curve(tmp_path / "a", {"loss": 1.0, "step_time": 3.0}, {"loss": 2.0, "kl": 0.1}, {"loss": 3.0})
    b = curve(tmp_path / "b", {"loss": 1.0, "step_time": 4.0}, {"loss": 2.5}, {"loss": 4.0})
    found = compare_curves(a, b)
    assert [(each.step, each.name) for each in found] == [(1, "loss"), (1, "kl")]
    assert (found[0].a, found[0].b, found[1].b) == (Float.of(2.0), Float.of(2.5), None)
    assert compare_curves(a, a) == ()


@pytest.mark.parametrize("digits", ["0.8454363346099854", "0.8454"])
def test_values_of_other_sources_are_no_difference(tmp_path: Path, digits: str) -> None:
    """A line has the digits that somebody printed, a tensor the bits of its own dtype."""
    seen, printed = Float.of(0.8454363346099854, "f32"), Float.of(float(digits))
    a = told_by(tmp_path / "a", {"loss": printed, "kl": printed}, {"loss": seen, "kl": seen})
    b = told_by(tmp_path / "b", *[{"loss": printed, "kl": printed}] * 2)
    verdict = diff(a, b)
    assert (verdict.kind, verdict.curve) == (Kind.EQUAL, ())
    told = VerdictCode.CURVE_DTYPES_DIFFER(step=1, names=("loss", "kl"), a="f32", b="f64")
    assert verdict.notes == ((told,) if digits == "0.8454" else ())
    later = told_by(tmp_path / "c", {"loss": seen}, {"loss": Float.of(2.0)})
    assert [(each.step, each.name) for each in compare_curves(later, b)] == [(0, "kl")]


def test_what_a_run_had_not_logged_when_it_was_ended_is_no_difference(tmp_path: Path) -> None:
    """Ended right after a step, a program has not come to print what it prints of it."""
    a = curve(tmp_path / "a", {"loss": 1.0, "kl": 1.0}, {"loss": 2.0})
    b = curve(tmp_path / "b", {"loss": 1.0, "kl": 1.0}, {"loss": 2.0, "kl": 2.0}, {"loss": 3.0, "kl": 3.0})
    for one, other in ((a, b), (b, a)):
        assert compare_curves(one, other) == ()
    c = curve(tmp_path / "c", {"loss": 1.0, "kl": 1.0}, {"loss": 2.5})
    assert [each.name for each in compare_curves(c, b)] == ["loss"]
    assert [each.name for each in compare_curves(b, b)] == []
    longer = curve(tmp_path / "d", {"loss": 1.0, "kl": 1.0}, {"loss": 2.0}, {"loss": 3.0})
    assert [each.name for each in compare_curves(longer, b)] == ["kl"]


@pytest.mark.parametrize(
    ("num_lines", "told"),
    [
        (None, VerdictCode.CURVE_MISSING(trace="B")),
        (0, VerdictCode.CURVE_MISSING(trace="B")),
        (2, VerdictCode.CURVE_LINES_MISSING(trace="B", steps=(2, 3))),
    ],
)
def test_a_curve_that_is_missing_is_told(tmp_path: Path, num_lines: int | None, told: Finding) -> None:
    whole, shorn = (trace(tmp_path / name, steps_of(4)) for name in "ab")
    path = shorn.directory / "curve.jsonl"
    lines = path.read_text("utf-8").splitlines(keepends=True)
    path.unlink()
    if num_lines is not None:
        path.write_text("".join(lines[:num_lines]), "utf-8")
    a, b = whole, read_trace(shorn.directory)
    assert (diff(a, b).kind, diff(a, b).notes) == (Kind.EQUAL, (told,))
    assert diff(b, a).notes == (replace(told, values={**told.values, "trace": "A"}),)
    assert diff(b, b).notes == (), "where neither has it there was nothing to compare"


def test_on_equal_traces_another_curve_is_a_note(tmp_path: Path) -> None:
    verdict = diff(curve(tmp_path / "a", {"loss": 1.0}), curve(tmp_path / "b", {"loss": 2.0}))
    assert verdict.kind is Kind.EQUAL
    assert verdict.notes == (VerdictCode.CURVE_DIFFERS(step=0, names=("loss",)),)
