"""Schedules: their ends, no step at a rate of 0, and no torch."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.algorithms.schedules import constant_lr, cosine_lr, linear_lr
from rlcore.errors import InvalidValueError
from tests.rlcore.batches import SEEDED

Schedule = Callable[..., float]


DECAYS: dict[str, Schedule] = {"linear": linear_lr, "cosine": cosine_lr}
every_decay = pytest.mark.parametrize("schedule", DECAYS.values(), ids=DECAYS)


def test_by_hand() -> None:
    def rates(schedule: Schedule, **options: int) -> list[float]:
        return [round(schedule(step, peak=8.0, num_steps=8, **options), 6) for step in range(10)]

    assert [constant_lr(step, peak=8.0, num_warmup_steps=4) for step in range(6)] == [2.0, 4.0, 6.0, 8.0, 8.0, 8.0]
    assert rates(linear_lr) == [8, 7, 6, 5, 4, 3, 2, 1, 0, 0]
    assert rates(linear_lr, num_warmup_steps=4) == [2, 4, 6, 8, 8, 6, 4, 2, 0, 0]
    assert rates(cosine_lr)[4] == 4.0
    assert rates(cosine_lr)[2] == round(4 * (1 + math.cos(math.pi / 4)), 6)


@every_decay
@SEEDED
@given(
    num_steps=st.integers(1, 300),
    warmup=st.integers(0, 300),
    final_ratio=st.floats(0, 1),
    peak=st.floats(1e-8, 1.0),
)
def test_a_decay(schedule: Schedule, num_steps: int, warmup: int, final_ratio: float, peak: float) -> None:
    warmup = min(warmup, num_steps)

    def rate(step: int) -> float:
        return schedule(step, peak=peak, num_steps=num_steps, num_warmup_steps=warmup, final_ratio=final_ratio)

    rates = [rate(step) for step in range(num_steps)]
    assert all(0 < r <= peak * (1 + 1e-12) for r in rates), "no step is taken at a rate of 0"
    assert all(a < b for a, b in pairwise(rates[:warmup]))
    assert all(a >= b for a, b in pairwise(rates[warmup:]))
    if warmup:
        assert rates[warmup - 1] == pytest.approx(peak)
    assert rate(num_steps) == pytest.approx(peak * final_ratio)
    assert rate(num_steps + 7) == rate(num_steps)


def test_a_decay_does_not_end_before_its_warm_up() -> None:
    with pytest.raises(InvalidValueError, match="num_warmup_steps is 4"):
        cosine_lr(0, peak=1.0, num_steps=3, num_warmup_steps=4)
