"""ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES, read as the ROCm runtime and HIP read them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.machine.visible import Device
from harness.machine.visible_amd import visible_to_hip

pytestmark = pytest.mark.full

UUIDS = ["GPU-00000000000000aa", "GPU-00000000000000ab", "GPU-b200000000000000", "GPU-c300000000000000"]
GPUS = tuple(Device(number, uuid, uuid, "A") for number, uuid in enumerate(UUIDS))
ROCR, HIP, CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
SEEDED = settings(derandomize=True, max_examples=5 * settings().max_examples)


def seen(**environ: str) -> list[tuple[int, int]]:
    """Ordinal and HIP's number of each visible GPU."""
    visible = visible_to_hip(GPUS, environ)
    return [(gpu.ordinal, number) for gpu, number in zip(visible.devices, visible.hip_numbers, strict=True)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", []),
        ("3,1", [3, 1]),
        (" 3 , 1", [3, 1]),
        ("0x2,010,1", [2]),
        ("01,1,2", [1]),
        ("1,1,2", [1]),
        ("1,9,2", [1]),
        ("-1", []),
        ("1a", []),
        ("x", []),
        ("gpu-B2,0", [2, 0]),
        ("GPU-", []),
        ("GPU-00", []),
        (f"{UUIDS[1]},3", [1, 3]),
        (f"{UUIDS[1]}0", []),
    ],
)
def test_rocms_list(value: str, expected: list[int]) -> None:
    assert seen(**{ROCR: value}) == [(ordinal, number) for number, ordinal in enumerate(expected)]


@pytest.mark.parametrize("name", [HIP, CUDA])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", []),
        ("3,1", [3, 1]),
        ("3, 1", [3]),
        ("01", []),
        ("1,1,2", [1, 2]),
        ("1,9,2", [1]),
        ("-1", []),
        ("0,-1,2", [0]),
        (f"{UUIDS[2]},0", [2, 0]),
        ("GPU-00000000000000a", [0]),
        ("GPU-d", []),
        ("NoDevFiles", []),
    ],
)
def test_hips_list(name: str, value: str, expected: list[int]) -> None:
    assert seen(**{name: value}) == [(number, number) for number in expected]


def test_hip_counts_within_rocms_list_and_its_own_variable_goes_first() -> None:
    assert seen() == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert seen(**{ROCR: "3,2", HIP: "1"}) == [(2, 1)]
    assert seen(**{ROCR: "3,2", CUDA: "1,0"}) == [(2, 1), (3, 0)]
    assert seen(**{ROCR: "3,2", HIP: "2"}) == []
    assert seen(**{HIP: "1", CUDA: "0"}) == [(1, 1)]
    assert seen(**{HIP: "", CUDA: "0"}) == [(0, 0)]
    assert seen(**{HIP: "", CUDA: ""}) == seen(**{HIP: ""}) == []


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({ROCR: ""}, "ROCR_VISIBLE_DEVICES='': no GPU"),
        ({ROCR: "1,9"}, "ROCm stops at '9'"),
        ({HIP: ""}, "HIP_VISIBLE_DEVICES='': no GPU"),
        ({CUDA: "1,9"}, "CUDA_VISIBLE_DEVICES='1,9': HIP stops at '9'"),
        ({HIP: "1", CUDA: "0"}, "HIP_VISIBLE_DEVICES='1' counts"),
    ],
)
def test_what_is_not_as_it_seems_is_noted(environ: dict[str, str], said: str) -> None:
    assert said in "; ".join(visible_to_hip(GPUS, environ).notes)


def test_lists_in_order_have_no_note() -> None:
    assert not visible_to_hip(GPUS, {ROCR: "3,2", HIP: "1", CUDA: "1"}).notes


ENTRIES = st.sampled_from(["0", "1", "3", "5", "-1", "", "x", "01", *UUIDS, "GPU-b"])
VALUES = st.none() | st.lists(ENTRIES, max_size=5).map(",".join)


@SEEDED
@given(VALUES, VALUES, VALUES)
def test_numbers_lead_back_to_the_same_gpus(rocr: str | None, hip: str | None, cuda: str | None) -> None:
    environ = {name: value for name, value in ((ROCR, rocr), (HIP, hip), (CUDA, cuda)) if value is not None}
    visible = visible_to_hip(GPUS, environ)
    assert len(visible.devices) == len(visible.hip_numbers) == len(set(visible.devices))
    # What a leased child is given, below the same list of ROCm's, shows it the very GPUs.
    lease = ",".join(map(str, visible.hip_numbers)) or "-1"
    again = visible_to_hip(GPUS, environ | {HIP: lease, CUDA: lease})
    assert (again.devices, again.hip_numbers) == (visible.devices, visible.hip_numbers)
