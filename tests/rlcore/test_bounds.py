"""Numbers and names that are refused, and what the refusal says is legal."""

import math

import pytest

from rlcore.algorithms.arguments import check_choice, check_number
from rlcore.errors import InvalidValueError


@pytest.mark.parametrize(
    ("number", "open_low", "legal"),
    [
        (-0.1, False, "at least 0, at most 1"),
        (1.1, False, "at least 0, at most 1"),
        (0.0, True, "above 0, at most 1"),
        (math.nan, False, "at least 0, at most 1"),
    ],
)
def test_a_number_outside_is_refused(number: float, open_low: bool, legal: str) -> None:
    with pytest.raises(InvalidValueError) as refusal:
        check_number("eps", number, 0.0, 1.0, open_low=open_low)
    assert (refusal.value.what, refusal.value.legal) == (f"eps is {number}", legal)


@pytest.mark.parametrize("number", [0.0, 1.0, 0.5])
def test_bounds_are_legal(number: float) -> None:
    check_number("eps", number, 0.0, 1.0)
    check_number("eps", number, -1.0, open_low=True)


def test_names() -> None:
    check_choice("mode", "a", iter(["a", "b"]))
    with pytest.raises(InvalidValueError) as refusal:
        check_choice("mode", "c", iter(["a", "b"]))
    assert str(refusal.value) == "mode is 'c'\n  legal:  a, b"
