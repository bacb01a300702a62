"""CUDA_VISIBLE_DEVICES, read as CUDA reads it."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.machine.gpu_selection import ORDER_NOTE, Device, matching, visible_devices

SEEDED = settings(derandomize=True, max_examples=5 * settings().max_examples)


def gpu(ordinal: int, uuid: str, model: str = "A") -> Device:
    return Device(ordinal, uuid, uuid, model)


CARDS = (gpu(0, "GPU-aa0"), gpu(1, "GPU-aa1"), gpu(2, "GPU-b2"), gpu(3, "GPU-c3"))
MIG_CARD = (
    Device(0, "GPU-m", "MIG-10", "M", "MIG-GPU-m/1/0"),
    Device(0, "GPU-m", "MIG-11", "M", "MIG-GPU-m/1/1"),
    Device(0, "GPU-m", "MIG-2", "M", "MIG-GPU-m/10/0"),
    gpu(1, "GPU-n", "M"),
)


def uuids(value: str | None, devices: Sequence[Device] = CARDS) -> list[str]:
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    return [device.uuid for device in visible_devices(devices, environ).devices]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ["GPU-aa0", "GPU-aa1", "GPU-b2", "GPU-c3"]),
        ("", []),
        ("NoDevFiles", []),
        ("-1", []),
        ("3,1", ["GPU-c3", "GPU-aa1"]),
        (" 2 , 0", ["GPU-b2", "GPU-aa0"]),
        ("1gpu2,2ampere", ["GPU-aa1", "GPU-b2"]),
        ("0,2,-1,1", ["GPU-aa0", "GPU-b2"]),
        ("0,-1,0", ["GPU-aa0"]),
        ("0,9,1", ["GPU-aa0"]),
        ("0,,1", ["GPU-aa0"]),
        ("0,GPU-b2", ["GPU-aa0"]),
        ("0,0", []),
        ("0,9,0", []),
        ("GPU-c,GPU-aa1", ["GPU-c3", "GPU-aa1"]),
        ("GPU-b2,GPU-aa,GPU-c3", ["GPU-b2"]),
        ("GPU-b2,0", ["GPU-b2"]),
        ("GPU-b2,GPU-b", []),
    ],
)
def test_visible_cards(value: str | None, expected: list[str]) -> None:
    assert uuids(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("MIG-2", ["MIG-2"]),
        ("MIG-11,MIG-10", ["MIG-11", "MIG-10"]),
        ("MIG-1", []),
        ("MIG-GPU-m/1/0", ["MIG-10"]),
        ("MIG-GPU-m/1/1", ["MIG-11"]),
        ("MIG-2,MIG-GPU-m/10/0", []),
        ("MIG-2,GPU-n", ["MIG-2"]),
        ("0", ["MIG-10", "MIG-11", "MIG-2"]),
        ("1,0", ["GPU-n", "MIG-10", "MIG-11", "MIG-2"]),
        ("GPU-m", ["MIG-10", "MIG-11", "MIG-2"]),
    ],
)
def test_visible_mig_instances(value: str, expected: list[str]) -> None:
    assert uuids(value, MIG_CARD) == expected


@pytest.mark.parametrize("value", ["0,9,1", "0,GPU-b2", "GPU-b2,GPU-aa", "GPU-b2,0", "x"])
def test_an_entry_that_is_no_card_is_said(value: str) -> None:
    notes = visible_devices(CARDS, {"CUDA_VISIBLE_DEVICES": value}).notes
    bad = value.split(",")[len(uuids(value))]
    assert any(f"stops at {bad!r}" in note for note in notes)


@pytest.mark.parametrize("value", ["", "NoDevFiles", "0,0", "GPU-b2,GPU-b"])
def test_a_list_that_shows_nothing_is_said(value: str) -> None:
    assert visible_devices(CARDS, {"CUDA_VISIBLE_DEVICES": value}).notes


def test_a_clean_list_needs_no_note() -> None:
    assert visible_devices(CARDS, {"CUDA_VISIBLE_DEVICES": "3,1"}).notes == ()


MIXED = (gpu(0, "GPU-a", "A100"), gpu(1, "GPU-h", "H100"))


@pytest.mark.parametrize(
    ("environ", "is_noted"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, True),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, True),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-h"}, False),
        ({}, False),
    ],
)
def test_numbers_among_mixed_models_are_noted(environ: dict[str, str], is_noted: bool) -> None:
    assert (ORDER_NOTE in visible_devices(MIXED, environ).notes) is is_noted


def test_a_card_that_cannot_be_read_is_no_other_model() -> None:
    assert not visible_devices((CARDS[0], gpu(1, "", "")), {"CUDA_VISIBLE_DEVICES": "0"}).notes


def test_a_card_in_mig_mode_is_one_match_whatever_stands_between_its_instances() -> None:
    shuffled = (MIG_CARD[0], MIG_CARD[3], MIG_CARD[1])
    assert matching(shuffled, "GPU-m") == [(MIG_CARD[0], MIG_CARD[1])]


ENTRIES = st.one_of(
    st.integers(-1, 6).map(str),
    st.sampled_from(["", "1gpu2", " 2", "+3", "x", "GPU-", "GPU-a", "GPU-aa0", "GPU-aa1", "GPU-b", "GPU-c3", "GPU-z"]),
)
VALUES = st.lists(ENTRIES, max_size=6).map(",".join)


@SEEDED
@given(VALUES, st.lists(st.sampled_from(CARDS), unique=True))
def test_nothing_outside_the_list_is_ever_visible(value: str, devices: list[Device]) -> None:
    devices = sorted(devices, key=lambda device: device.ordinal)
    named = [entry.strip() for entry in value.split(",")]
    seen = visible_devices(devices, {"CUDA_VISIBLE_DEVICES": value}).devices
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(devices)
    # The k-th visible GPU is what the k-th entry names: no GPU comes from elsewhere, and the order is kept.
    for entry, device in zip(named, seen, strict=False):
        assert device.uuid.startswith(entry) or int(entry.split("gpu", maxsplit=1)[0]) == device.ordinal


@SEEDED
@given(VALUES, st.integers(0, len(CARDS)))
def test_torch_reads_the_list_alike(value: str, num_gpus: int) -> None:
    cuda = pytest.importorskip("torch.cuda", reason="torch is the oracle here")
    devices = CARDS[:num_gpus]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", value)
        parsed = cuda._parse_visible_devices()
    if parsed and isinstance(parsed[0], str):
        ordinals = cuda._transform_uuid_to_ordinals(parsed, [device.uuid for device in devices])
    else:
        within = [number < num_gpus for number in parsed]
        ordinals = parsed[: within.index(False)] if False in within else parsed
    seen = visible_devices(devices, {"CUDA_VISIBLE_DEVICES": value}).devices
    assert [device.ordinal for device in seen] == ordinals
