"""The picture of two curves: whole against goldens, and whatever the curves are it has its size."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.render.curve_picture import HEIGHT, curve_picture
from harness.trace.verdict import Curves
from tests.support.traces import SEEDED

NUM_STEPS = 60
FALLING = tuple(2 * math.exp(-step / 15) for step in range(NUM_STEPS))
PARTED = Curves(
    "loss",
    tuple(range(NUM_STEPS)),
    FALLING,
    tuple(value + max(0, step - 37) / 50 for step, value in enumerate(FALLING)),
)
value = st.one_of(st.none(), st.floats(), st.floats(-1, 1))


@pytest.mark.parametrize(("name", "is_ascii"), [("curve_picture", False), ("curve_picture_ascii", True)])
def test_the_picture_is_the_golden(golden: Callable[[str, str], None], name: str, is_ascii: bool) -> None:
    golden(f"{name}.txt", "\n".join(curve_picture(PARTED, parted=37, width=80, is_ascii=is_ascii)) + "\n")


def test_each_curve_is_where_its_values_are() -> None:
    rising, falling = (0.0, 1.0, 2.0, 3.0, 4.0), (4.0, 3.0, 2.0, 1.0, 0.0)
    lines = curve_picture(Curves("x", tuple(range(5)), rising, falling), parted=None, width=60, is_ascii=True)
    rows = [line.partition("|")[2] for line in lines[1 : HEIGHT + 1]]
    assert (rows[0][0], rows[0].split()[-2:][0][-1], rows[0][-1]) == ("b", "a", "A")
    assert (rows[-1][0], rows[-1].split()[-2:][0][-1], rows[-1][-1]) == ("a", "b", "B")
    assert sum(row.count("*") for row in rows) > 0


def test_nothing_to_see() -> None:
    for curves in (
        Curves("x", (), (), ()),
        Curves("x", (3,), (1.0,), (1.0,)),
        Curves("x", (0, 1), (None, math.nan), (math.inf, None)),
    ):
        assert curve_picture(curves, parted=0, width=80, is_ascii=False) == []


def test_many_steps_are_means() -> None:
    wild = tuple(float(step % 2) for step in range(100_000))
    lines = curve_picture(Curves("x", tuple(range(100_000)), wild, wild), parted=50_000, width=60, is_ascii=False)
    assert "means of" in lines[0]
    assert float(lines[1].split()[0]) < 0.6, "the mean of zeros and ones, not one of them"


@SEEDED
@given(
    st.lists(st.tuples(value, value), max_size=300),
    st.integers(0, 300),
    st.integers(1, 200),
    st.booleans(),
    st.text(max_size=40),
)
def test_the_size_is_kept_whatever_the_curves_are(
    values: list[tuple[float | None, float | None]], parted: int, width: int, is_ascii: bool, name: str
) -> None:
    a, b = ([each[side] for each in values] for side in (0, 1))
    curves = Curves(name, tuple(range(len(values))), tuple(a), tuple(b))
    lines = curve_picture(curves, parted=parted, width=width, is_ascii=is_ascii)
    assert len(lines) in (0, HEIGHT + 3)
    assert all(len(line) <= max(width, 45) for line in lines)
    if is_ascii:
        assert "".join(lines[1:]).isascii()
