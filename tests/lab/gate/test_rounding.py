"""How far apart kept tensors are: rounding is told from what is more, whatever cancels."""

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.lab.gate.change import HALF_OF_THE_DIGITS, Rounding, earliest_phase, measure_rounding, step_bytes
from harness.trace.format import Kept, Scope
from tests.support.traces import trace_of_values, value


def f32(phase: str, name: str, *values: float) -> Kept:
    return value(phase, name, "f32", (len(values),), struct.pack(f"<{len(values)}f", *values))


def number(phase: str, name: str, x: float) -> Kept:
    return value(phase, name, "f32", (), struct.pack("<f", x))


def measured(tmp_path: Path, a: list[Kept], b: list[Kept], first: str = "backward") -> Rounding:
    traces = trace_of_values(tmp_path / "a", [a]), trace_of_values(tmp_path / "b", [b])
    found = measure_rounding(*traces, 0, first)
    assert found is not None
    return found


def test_last_digits_are_rounding(tmp_path: Path) -> None:
    found = measured(
        tmp_path,
        [f32("backward", "w", 1.0, 2.0), f32("backward", "v", 4.0, 8.0), f32("optimizer", "w", 5.0, 5.0)],
        [f32("backward", "w", 1.0, 2.0), f32("backward", "v", 4.0, 8.000001), f32("optimizer", "w", 5.0, 6.0)],
    )
    assert found.is_rounding
    assert (found.first, found.first_ulp) == ("backward v", 1)
    assert (found.num_compared, found.num_different, found.name) == (3, 2, "optimizer w")
    assert found.max_ulp > 1000
    assert found.share == pytest.approx(1e-6 / 8, rel=0.2)
    assert found.phase == "backward"


def test_what_cancels_may_differ_whole(tmp_path: Path) -> None:
    """A gradient that is 0 but for rounding, beside others; a loss that is a single number."""
    a = [number("loss", "loss", 1e-9), f32("backward", "k_bias", 1e-9, -2e-9), f32("backward", "w", 0.5, 0.25)]
    b = [number("loss", "loss", -3e-9), f32("backward", "k_bias", -1e-9, 2e-9), f32("backward", "w", 0.5, 0.25)]
    found = measured(tmp_path, a, b, "loss")
    assert found.is_rounding
    assert found.first == "loss loss"


def test_a_nan_that_came_is_no_rounding(tmp_path: Path) -> None:
    found = measured(tmp_path, [f32("backward", "w", 1.0, 2.0)], [f32("backward", "w", 1.0000001, float("nan"))])
    assert (found.is_rounding, found.num_nan) == (False, 1)
    assert found.share < 1e-6, "which is not the reason"


def test_what_is_all_zero_on_one_side_has_no_scale(tmp_path: Path) -> None:
    found = measured(tmp_path, [f32("backward", "w", 0.0, 0.0)], [f32("backward", "w", 0.0, 1e-30)])
    assert not found.is_rounding


def test_states_of_generators_are_no_tensors_of_the_step(tmp_path: Path) -> None:
    weight = f32("backward", "w", 1.0, 2.0)
    (recorded_value, data), (_, other) = f32("forward", "random", 1.0, 2.0), f32("forward", "random", 1.0, 9.0)
    states = [
        (recorded_value._replace(scope=Scope.CONTEXT, digest=bytes(each).ljust(16)), each) for each in (data, other)
    ]
    found = measured(tmp_path, [weight, states[0]], [weight, states[1]])
    assert (found.num_compared, found.num_different) == (1, 0)


def test_half_of_the_digits_depends_on_how_many_there_are(tmp_path: Path) -> None:
    def bf16(x: float) -> Kept:
        bits = struct.pack("<f", x)[2:]
        return value("backward", "w", "bf16", (2,), bits + bits)

    assert HALF_OF_THE_DIGITS["f32"] < 0.03 < HALF_OF_THE_DIGITS["bf16"]
    for dtype, make in (("bf16", bf16), ("f32", lambda x: f32("backward", "w", x, x))):
        found = measured(tmp_path / dtype, [make(1.0)], [make(1.03125)])
        assert found.is_rounding == (dtype == "bf16")


def test_nothing_kept_nothing_known(tmp_path: Path) -> None:
    values = [[f32("backward", "w", *range(9))]]
    traces = [trace_of_values(tmp_path / side, values, keeps=False) for side in "ab"]
    assert measure_rounding(traces[0], traces[1], 0, "backward") is None
    assert step_bytes(traces[0], 0) == 9 * 4


def test_what_is_recorded_first_need_not_be_of_the_earliest_phase(tmp_path: Path) -> None:
    """A warm start: its norm, then the first rollout of what it has made."""

    def step(norm: float, logprob: float) -> list[Kept]:
        return [number("optimizer", "norm", norm), f32("rollout", "logprobs", logprob, 2.0), f32("sync", "w", norm)]

    made = step(1.0, 3.0), step(1.5, 3.000001), step(1.5, 3.0)
    traces = [trace_of_values(tmp_path / str(at), [values]) for at, values in enumerate(made)]
    assert earliest_phase(traces[0], traces[1], 0) == "rollout"
    assert earliest_phase(traces[0], traces[2], 0) == "optimizer"
    assert earliest_phase(traces[0], traces[0], 0) == ""


floats = st.floats(0.5, 2.0, width=32)


@settings(derandomize=True, max_examples=30)
@given(st.lists(floats, min_size=2, max_size=20), st.integers(-3, 3), st.sampled_from([1e-20, 1.0, 1e20]))
def test_a_few_ulp_are_rounding_at_every_scale(values: list[float], ulp: int, scale: float) -> None:
    scaled = [x * scale for x in values]
    bits = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *scaled))
    moved = struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}I", *(each + ulp for each in bits)))
    with tempfile.TemporaryDirectory() as directory:
        found = measured(Path(directory), [f32("backward", "w", *scaled)], [f32("backward", "w", *moved)])
    assert found.is_rounding
    assert found.max_ulp == abs(ulp)


def test_infinity_is_no_scale(tmp_path: Path) -> None:
    inf = float("inf")
    found = measured(tmp_path, [f32("backward", "w", inf, 1.0)], [f32("backward", "w", inf, 2.0)])
    assert (found.is_rounding, found.share) == (False, 1.0)
