"""A tensor as a person looks at it."""

import torch

from harness.recording.stepping import MAX_ELEMENTS, elements_text, value_range

NAN, INF = float("nan"), float("inf")


def test_few_elements_have_all_their_digits_and_nan_its_bits() -> None:
    assert elements_text(torch.tensor([0.1, NAN])) == "0.1  nan (7fc00000)"
    assert elements_text(torch.tensor(0.1)) == "0.1"
    assert elements_text(torch.arange(8)) == "0  1  2  3  4  5  6  7"


def test_of_many_both_ends_are_there() -> None:
    assert elements_text(torch.arange(6).reshape(3, 2)).splitlines() == ["0  1", "2  3", "4  5"]
    assert len(elements_text(torch.arange(MAX_ELEMENTS)).split()) == MAX_ELEMENTS
    lines = elements_text(torch.arange(65)).splitlines()
    assert lines == ["0  1  2  3  4  5  6  7", "... 49 more", "57  58  59  60  61  62  63  64"]


def test_a_range_is_that_of_the_finite_elements() -> None:
    assert value_range(torch.tensor([NAN, INF, -INF, 1.0, 3.0])) == {
        "nan": 1,
        "inf": 2,
        "min": 1.0,
        "max": 3.0,
        "mean": 2.0,
    }
    assert value_range(torch.tensor([NAN])) == {"nan": 1, "inf": 0}
    assert value_range(torch.tensor([True, False]))["mean"] == 0.5
    assert value_range(torch.zeros(0)) == value_range(torch.tensor([1j])) == {}
    assert value_range(torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)) == {}
