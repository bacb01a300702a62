"""The table of leases: nothing twice, nothing lost, exclusive means alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.machine.inventory import Inventory
from harness.runner.need import Need
from harness.runner.schedule.leases import Lease, LeaseTable
from tests.support.packing_cases import EIGHT, INVENTORIES, NEEDS, THOROUGH, inventory

CPU = Need()


def got(lease: Lease | None) -> Lease:
    assert lease is not None
    return lease


def test_a_unit_without_gpus_takes_a_cpu_place_and_no_card() -> None:
    table = LeaseTable(EIGHT, cpu_units=2)
    first = got(table.lease(CPU))
    assert (first.is_cpu, first.gpus, table.num_cpu_free) == (True, (), 1)
    got(table.lease(CPU))
    assert table.lease(CPU) is None
    assert len(got(table.lease(Need(gpus=8))).gpus) == 8
    table.give_back(first)
    assert table.lease(CPU) is not None


def test_an_exclusive_lease_is_alone() -> None:
    table = LeaseTable(EIGHT, cpu_units=2)
    alone = Need(gpus=1, exclusive=True)
    lease = got(table.lease(CPU))
    assert table.lease(alone) is None
    table.give_back(lease)
    exclusive = got(table.lease(alone))
    assert exclusive.exclusive
    assert table.lease(CPU) is None
    assert table.lease(Need(gpus=1)) is None
    table.give_back(exclusive)
    assert table.lease(Need(gpus=8)) is not None


def test_giving_back_what_is_not_out_is_our_bug() -> None:
    table = LeaseTable(EIGHT, cpu_units=2)
    lease = got(table.lease(Need(gpus=2)))
    table.give_back(lease)
    with pytest.raises(AssertionError, match="not leased"):
        table.give_back(lease)
    assert len(table.free_gpus) == 8
    got(table.lease(Need(gpus=2)))  # an equal lease is out: still not the one that was given back
    with pytest.raises(AssertionError, match="not leased"):
        table.give_back(lease)


def test_a_quarantined_card_is_never_leased_again() -> None:
    table = LeaseTable(inventory((3, "H200", 143.0)), cpu_units=1)
    lease = got(table.lease(Need(gpus=2)))
    table.quarantine("ID-1")  # while it is out
    table.quarantine("ID-2")  # while it is free
    table.give_back(lease)
    assert [gpu.gpu_id for gpu in table.free_gpus] == ["ID-0"]
    assert [gpu.gpu_id for gpu in table.quarantined_gpus] == ["ID-1", "ID-2"]
    assert table.lease(Need(gpus=2)) is None
    assert table.why_never(Need(gpus=2)) == "needs 2 GPUs; this run has 1 x H200 143 GB (2 quarantined)"
    assert table.why_never(Need(gpus=1)) == ""
    assert table.fresh().why_never(Need(gpus=3)) == ""


def test_who_keeps_a_file_from_running() -> None:
    table = LeaseTable(inventory((3, "H200", 143.0)), cpu_units=1)
    asks = {"test_a": Need(gpus=1), "test_b": CPU, "test_c": Need(gpus=4)}
    said = table.who_keeps_it(asks)
    assert (
        said
        == "; only test_c asks for that: move it to a file of its own, so that the other tests of this file can run"
    )
    assert table.who_keeps_it({**asks, "test_c": Need(gpus=2)}) == "", "no test alone does"
    assert table.who_keeps_it({"test_c": Need(gpus=4), "test_d": Need(gpus=5)}) == "", "there are no others"
    many = {f"test_{number}": Need(gpus=4) for number in range(7)}
    assert "only test_0, test_1, test_2 and 4 more ask for that" in table.who_keeps_it({**asks, **many, "test_c": CPU})


@pytest.mark.full
@THOROUGH
@given(INVENTORIES, st.integers(0, 3), st.booleans(), st.lists(st.tuples(st.integers(0, 9), NEEDS), max_size=40))
def test_no_card_is_leased_twice_and_none_is_lost(
    gpus: Inventory, cpu_units: int, mix_models: bool, steps: list[tuple[int, Need]]
) -> None:
    """A walk of leases, returns and quarantines, with a ledger kept beside the table."""
    table = LeaseTable(gpus, cpu_units, mix_models)
    out: list[Lease] = []
    quarantined: set[str] = set()
    for deed, need in steps:
        if deed == 0 and gpus.gpus:
            quarantined.add(gpus.gpus[need.gpus % len(gpus.gpus)].gpu_id)
            table.quarantine(gpus.gpus[need.gpus % len(gpus.gpus)].gpu_id)
        elif deed < 4 and out:
            table.give_back(out.pop(deed % len(out)))
        else:
            lease = table.lease(need)
            if lease is None:
                assert table.lease(need) is None, "refused, it stays refused"
            else:
                assert len(lease.gpus) == need.gpus
                assert not {gpu.gpu_id for gpu in lease.gpus} & quarantined
                assert not out or not (need.exclusive or any(other.exclusive for other in out))
                assert mix_models or len({gpu.model for gpu in lease.gpus}) <= 1
                assert not table.why_never(need)
                out.append(lease)
        held = [gpu_id for lease in out for gpu_id in lease.gpu_ids]
        assert len(held) == len(set(held))
        free = {gpu.gpu_id for gpu in table.free_gpus}
        assert free == {gpu.gpu_id for gpu in gpus.gpus} - set(held) - quarantined
        assert table.num_cpu_free == cpu_units - sum(lease.is_cpu for lease in out)
        assert sorted(lease.slot for lease in out) == [lease.slot for lease in table.leases]
        assert len({lease.slot for lease in out}) == len(out)
