"""Needs of files without one: which files get the default, and what it is."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.machine.inventory import Gpu, Inventory
from harness.process.invocation import Invocation
from harness.runner.collection.collect import Collected
from harness.runner.collection.units import give_needs
from harness.runner.need import Need
from harness.runner.options import RunOptions
from harness.runner.units import NeedSource, Unit
from tests.support.packing_cases import inventory

TWO_KINDS = inventory((1, "A100", 40.0), (1, "H100", 80.0))
MARKED = Need(gpus=2)
UNITS = (
    Unit("plain.py", Need(), NeedSource.IMPORT),
    Unit("imported.py", Need(), NeedSource.IMPORT),
    Unit("marked.py", MARKED, NeedSource.IMPORT),
    Unit("table.py", Need(), NeedSource.TABLE),
    Unit("exclusive.py", Need(exclusive=True), NeedSource.IMPORT),
)


def options(**more: Any) -> RunOptions:
    return RunOptions(Invocation(Path("/"), {}), Path("/"), **more)


def given_needs(gpus: Inventory = TWO_KINDS, **more: Any) -> dict[str, Need]:
    found = give_needs(Collected(UNITS, Path("/"), ()), options(**more), gpus)
    assert [unit.path for unit in found.units] == [unit.path for unit in UNITS]
    return {unit.path: unit.need for unit in found.units}


@pytest.mark.parametrize(
    ("more", "default"),
    [
        ({}, Need()),
        ({"workers_per_gpu": 1}, Need(gpus=1)),
        ({"workers_per_gpu": 4}, Need(gpus=1, memory_gb=10.0, shared=True)),
        ({"workers_per_gpu": 3}, Need(gpus=1, memory_gb=13.333, shared=True)),
    ],
)
def test_files_without_a_need_get_the_default_and_no_other_unit_does(more: dict[str, Any], default: Need) -> None:
    assert given_needs(**more) == {
        "plain.py": default,
        "imported.py": default,
        "marked.py": MARKED,
        "table.py": Need(),
        "exclusive.py": Need(exclusive=True),
    }


@given(memory_gb=st.floats(1.0, 200.0), num_workers=st.integers(2, 40))
def test_the_budgets_of_all_workers_of_a_gpu_fit_on_it(memory_gb: float, num_workers: int) -> None:
    gpus = Inventory(gpus=(Gpu("ID-0", 0, "A", memory_gb),))
    need = given_needs(gpus, workers_per_gpu=num_workers)["plain.py"]
    assert need.shared
    assert num_workers * need.budget_bytes <= round(memory_gb * 1e9)
    assert num_workers * need.memory_gb >= memory_gb - num_workers * 0.002, "no more than a rounding is lost"


def test_a_gpu_of_unknown_memory_cannot_be_divided() -> None:
    with pytest.raises(UsageError) as caught:
        given_needs(Inventory(gpus=(Gpu("ID-0", 0, "A", 0.0),)), workers_per_gpu=2)
    assert "memory-gb" in caught.value.remedy
    assert given_needs(Inventory(gpus=(Gpu("ID-0", 0, "A", 0.0),)), workers_per_gpu=1)["plain.py"] == Need(gpus=1)
