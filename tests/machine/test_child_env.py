"""The contract of the child's environment: what differs from the parent's, and that nothing else does."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.machine.inventory import Gpu
from harness.process import child_env as contract
from harness.process.child_env import child_env

WRITTEN = {"CUDA_VISIBLE_DEVICES", "TMPDIR", "RLHARNESS_ATTEMPT", "RLHARNESS_LEASE", "MASTER_PORT"}
CACHE = "TORCHINDUCTOR_CACHE_DIR"
PINS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
REMOVED = {"RAY_ADDRESS", "RAY_TMPDIR"}
NAMES = st.one_of(
    st.sampled_from(sorted(WRITTEN | REMOVED | {"PATH", "TMP", "TEMP", "CUDA_DEVICE_ORDER", "MASTER_ADDR"})),
    st.text("ABC_", min_size=1, max_size=4),
)
PARENTS = st.dictionaries(NAMES, st.text(max_size=5))
GPUS = st.none() | st.lists(st.sampled_from("abcd"), unique=True).map(
    lambda letters: tuple(Gpu(f"GPU-{letter}", index, "A", 80.0) for index, letter in enumerate(letters))
)


def of(parent: dict[str, str], gpus: tuple[Gpu, ...] | None) -> dict[str, str]:
    parent = {CACHE: "/cache", **parent}
    child = child_env(parent, gpus=gpus, tmpdir="/tmp/rlh-1/0001", marker="run-0001", master_port=20064)
    return {name: value for name, value in child.items() if name != CACHE}


@settings(derandomize=True)
@given(PARENTS, GPUS)
@example({"RAY_ADDRESS": ""}, ())
def test_nothing_else_changes(parent: dict[str, str], gpus: tuple[Gpu, ...] | None) -> None:
    before = dict(parent)
    child = of(parent, gpus)
    assert parent == before
    assert not REMOVED & child.keys()
    changed = {name for name in parent.keys() | child.keys() if parent.get(name) != child.get(name)}
    assert changed <= WRITTEN | REMOVED
    if gpus is None:
        assert child.get("CUDA_VISIBLE_DEVICES") == parent.get("CUDA_VISIBLE_DEVICES")


def test_the_lease_in_its_order() -> None:
    child = of({"CUDA_VISIBLE_DEVICES": "0,1"}, (Gpu("GPU-b", 1, "A", 80.0), Gpu("GPU-a", 0, "A", 80.0)))
    assert child == {
        "CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a",
        "TMPDIR": "/tmp/rlh-1/0001",
        "RLHARNESS_ATTEMPT": "run-0001",
        "RLHARNESS_LEASE": "run-0001 GPU-b,GPU-a",
        "MASTER_PORT": "20064",
    }


def test_a_unit_of_no_gpus_sees_none_and_a_child_without_a_lease_sees_what_the_parent_sees() -> None:
    assert of({"CUDA_VISIBLE_DEVICES": "0,1"}, ())["CUDA_VISIBLE_DEVICES"] == ""
    assert of({}, ())["CUDA_VISIBLE_DEVICES"] == ""
    assert of({"CUDA_VISIBLE_DEVICES": "0,1"}, None)["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "CUDA_VISIBLE_DEVICES" not in of({}, None)


def test_numbers_in_place_of_uuids_where_every_card_has_one() -> None:
    gpus = (Gpu("GPU-b", 0, "A", 80.0, number=5), Gpu("GPU-a", 1, "A", 80.0, number=3))
    child = child_env({}, gpus=gpus, tmpdir="/t", marker="m", master_port=1, by_number=True)
    assert (child["CUDA_VISIBLE_DEVICES"], child["CUDA_DEVICE_ORDER"]) == ("5,3", "PCI_BUS_ID")
    mig = (Gpu("MIG-b", 0, "A", 80.0, is_mig=True),)
    child = child_env({}, gpus=mig, tmpdir="/t", marker="m", master_port=1, by_number=True)
    assert child["CUDA_VISIBLE_DEVICES"] == "MIG-b"
    assert "CUDA_DEVICE_ORDER" not in child


def test_the_written_contract_names_every_variable() -> None:
    rows = [line for line in (contract.__doc__ or "").splitlines() if line.startswith("| `")]
    sometimes = {"CUDA_DEVICE_ORDER", "RLHARNESS_PREFLIGHT", *PINS, *contract.XDIST}
    assert {row.split("`")[1] for row in rows} == WRITTEN | REMOVED | sometimes


def test_pins_are_set_and_said_to_be_where_there_was_a_preflight() -> None:
    parent = {"NCCL_SOCKET_IFNAME": "eth1"}
    child = child_env(parent, gpus=(), tmpdir="/t", marker="m", master_port=1, pins={"GLOO_SOCKET_IFNAME": "lo"})
    assert child["NCCL_SOCKET_IFNAME"] == "eth1"
    assert child["GLOO_SOCKET_IFNAME"] == "lo"
    assert child["RLHARNESS_PREFLIGHT"] == "done"
    without = child_env(parent, gpus=(), tmpdir="/t", marker="m", master_port=1)
    assert without.keys() & {"RLHARNESS_PREFLIGHT", "GLOO_SOCKET_IFNAME"} == set()
    nothing_wrong = child_env(parent, gpus=(), tmpdir="/t", marker="m", master_port=1, pins={})
    assert nothing_wrong["RLHARNESS_PREFLIGHT"] == "done"


def test_the_lease_of_a_child_is_read_within_it_and_ends_with_it() -> None:
    gpus = (Gpu("GPU-b", 1, "A", 80.0), Gpu("GPU-a", 0, "A", 80.0))
    inner = of({}, gpus)
    assert contract.surrounding_lease(inner) == contract.Surroundings("run-0001", ("GPU-b", "GPU-a"))
    assert contract.surrounding_lease(of(inner, None)) == contract.surrounding_lease(inner)
    for outside in ({}, of(inner, ()), {"RLHARNESS_LEASE": "odd"}):
        assert contract.surrounding_lease(outside) == contract.Surroundings()


def test_compiled_code_is_kept_between_files_where_the_user_has_not_said() -> None:
    def cache(parent: dict[str, str]) -> str:
        return child_env(parent, gpus=(), tmpdir="/t", marker="m", master_port=1)[CACHE]

    assert cache({"TMPDIR": "/big"}).startswith("/big/torchinductor_")
    assert cache({CACHE: "/mine"}) == "/mine"


def test_the_cache_is_where_torch_itself_would_have_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    utils = pytest.importorskip("torch._inductor.runtime.cache_dir_utils")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert child_env({"TMPDIR": str(tmp_path)}, gpus=(), tmpdir="/t", marker="m", master_port=1)[CACHE] == (
        utils.default_cache_dir()
    )
