"""A tensor as a person looks at it."""

import pytest
import torch

from harness.recording.stepping import MAX_ELEMENTS, elements_text, value_range

NAN, INF = float("nan"), float("inf")


def test_few_elements_have_all_their_digits_and_nan_its_bits() -> None:
    assert elements_text(torch.tensor([0.1, NAN])) == "0.1  nan (7fc00000)"
    assert elements_text(torch.tensor(0.1)) == "0.1"
    assert elements_text(torch.arange(8)) == "0  1  2  3  4  5  6  7"


@pytest.mark.parametrize("shape", [(64,), (8, 8), (4, 4, 4), (64, 1)])
def test_up_to_a_limit_all_elements_are_there(shape: tuple[int, ...]) -> None:
    assert MAX_ELEMENTS == 64
    shown = [
        word for line in elements_text(torch.arange(64).reshape(shape)).splitlines() for word in line.split("  ")[1:]
    ]
    assert [int(word) for word in shown if word.strip()] == list(range(64))


def test_of_more_both_ends_are_there_with_their_places() -> None:
    lines = elements_text(torch.arange(65)).splitlines()
    assert lines == ["[0]  0  1  2  3  4  5  6  7", "... 49 more", "[57]  57  58  59  60  61  62  63  64"]
    wide = elements_text(torch.arange(70_000).reshape(7, 10_000).t()).splitlines()
    assert wide[0] == "[0, 0]      0  10000  20000  30000  40000  50000  60000"
    assert wide[2] == "... 69,984 more"
    assert wide[-1].endswith("  69999")


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
