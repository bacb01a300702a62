"""The text of --gpus."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.errors import InventoryError, UsageError
from harness.machine.gpu_selection import (
    SIM_CAPABILITY,
    Device,
    Selection,
    find_named,
    parse_selection,
)

SEEDED = settings(derandomize=True)
VISIBLE = tuple(Device(n, uuid, uuid, "A") for n, uuid in enumerate(["GPU-aa0", "GPU-aa1", "GPU-b2"]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", Selection()),
        ("none", Selection(0)),
        ("0", Selection(0)),
        (" 4 ", Selection(4)),
        ("3,", Selection(None, ("3",))),
        ("0,2", Selection(None, ("0", "2"))),
        ("00,GPU-b, MIG-GPU-x/1/0", Selection(None, ("0", "GPU-b", "MIG-GPU-x/1/0"))),
        ("GPU-b", Selection(None, ("GPU-b",))),
        ("as-is:0", Selection(None, ("0",), is_as_is=True)),
        ("as-is:00,GPU-b,", Selection(None, ("0", "GPU-b"), is_as_is=True)),
    ],
)
def test_legal_texts(text: str, expected: Selection) -> None:
    assert parse_selection(text) == expected


ILLEGAL_COUNTS = ["", " all", "-1", "1.5", "²", "Auto"]
ILLEGAL_LISTS = [",", "0,,1", "0 1", "0;1", "0,x", "gpu-b", "auto,", "as-is:", "as-is:auto", "as-is:sim:2"]
ILLEGAL_SIMS = ["sim", "sim:", "sim:x", "sim:0", "sim:4x", "sim:4xA,", "sim:2:", "sim:9999"]


@pytest.mark.parametrize("text", [*ILLEGAL_COUNTS, *ILLEGAL_LISTS, *ILLEGAL_SIMS])
def test_an_illegal_text_says_itself_what_is_legal_and_the_remedy(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_selection(text)
    assert repr(text.strip()) in error.value.what
    assert "sim:8" in error.value.legal
    assert error.value.remedy


def pretended(text: str) -> list[tuple[str, str, float]]:
    selection = parse_selection(text)
    assert [gpu.index for gpu in selection.simulated] == list(range(len(selection.simulated)))
    assert {gpu.capability for gpu in selection.simulated} == {SIM_CAPABILITY}
    return [(gpu.gpu_id, gpu.model, gpu.memory_gb) for gpu in selection.simulated]


def test_pretended_cards() -> None:
    assert pretended("sim:2") == [("SIM-0", "sim", 80.0), ("SIM-1", "sim", 80.0)]
    assert pretended("sim:1xA100,1xH100") == [("SIM-0", "A100", 80.0), ("SIM-1", "H100", 80.0)]
    assert pretended("sim:1xA:40,1:24.5") == [("SIM-0", "A", 40.0), ("SIM-1", "sim", 24.5)]


@SEEDED
@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["A", "H100", "NVIDIA H200"])), min_size=1, max_size=5))
def test_pretended_cards_are_as_many_as_asked_for(kinds: list[tuple[int, str]]) -> None:
    gpus = pretended("sim:" + ",".join(f"{count}x{model}" for count, model in kinds))
    assert [model for _, model, _ in gpus] == [model for count, model in kinds for _ in range(count)]
    assert len({gpu_id for gpu_id, _, _ in gpus}) == len(gpus)


def test_named_cards_are_found_in_the_order_they_were_named() -> None:
    assert find_named(Selection(None, ("2", "GPU-aa0")), VISIBLE) == (2, 0)


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (("3",), "no GPU 3"),
        (("GPU-z",), "not one of the GPUs"),
        (("GPU-aa",), "several GPUs"),
        (("0", "GPU-aa0"), "a second time"),
        (("0", "0"), "a second time"),
    ],
)
def test_a_name_that_means_no_one_card(names: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(InventoryError, match=complaint):
        find_named(Selection(None, names), VISIBLE)


def test_a_position_says_which_cards_there_are() -> None:
    with pytest.raises(InventoryError) as error:
        find_named(Selection(None, ("7",)), VISIBLE)
    assert "GPU-b2" in error.value.legal
    with pytest.raises(InventoryError, match="no GPU 0") as error:
        find_named(Selection(None, ("0",)), ())
    assert "no GPU" in error.value.legal


def test_a_card_in_mig_mode_stands_for_its_instances() -> None:
    instances = tuple(Device(0, "GPU-m", f"MIG-{n}", "M", f"MIG-GPU-m/{n}/0") for n in range(2))
    assert find_named(Selection(None, ("GPU-m",)), (VISIBLE[2], *instances)) == (1, 2)
    assert find_named(Selection(None, ("MIG-1",)), instances) == (1,)
