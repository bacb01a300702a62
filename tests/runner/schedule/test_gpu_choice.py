"""Which GPUs a need is given: NVLink, then small GPUs, then tight groups, then neighbours."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.machine.inventory import Gpu, Inventory
from harness.runner.need import Need
from harness.runner.schedule import gpu_choice
from harness.runner.schedule.gpu_choice import GpuChoice
from tests.support.packing_cases import EIGHT, INVENTORIES, NEEDS, QUICK, inventory

EVERYTHING = 0xFF


def linked(num_gpus: int, *pairs: tuple[int, int, int], model: str = "H200") -> Inventory:
    """Equal GPUs with NVLink: (GPU, GPU, number of links)."""
    return Inventory(
        gpus=tuple(Gpu(f"ID-{i}", i, model, 143.0) for i in range(num_gpus)),
        num_links={frozenset((f"ID-{a}", f"ID-{b}")): number for a, b, number in pairs},
    )


def chosen(choice: GpuChoice, need: Need, free: int = EVERYTHING) -> list[int]:
    return [gpu.index for gpu in choice.gpus_in(choice.choose(need, free & choice.all_gpus))]


def test_linked_cards_are_leased_together() -> None:
    bridges = linked(8, (0, 5, 4), (1, 4, 4), (2, 7, 4), (3, 6, 4))
    assert chosen(GpuChoice(bridges), Need(gpus=2)) in ([0, 5], [1, 4], [2, 7], [3, 6])
    assert chosen(GpuChoice(bridges), Need(gpus=2), free=0b11010110) == [1, 4]
    assert chosen(GpuChoice(bridges), Need(gpus=4)) in ([0, 1, 4, 5], [2, 3, 6, 7])


def test_more_links_are_better_than_neighbours() -> None:
    assert chosen(GpuChoice(linked(4, (0, 1, 1), (1, 3, 2))), Need(gpus=2)) == [1, 3]


def test_cards_that_are_linked_alike_are_taken_by_index() -> None:
    every_pair = [(a, b, 18) for a, b in combinations(range(8), 2)]
    choice = GpuChoice(linked(8, *every_pair))
    assert chosen(choice, Need(gpus=2)) == [0, 1]
    assert chosen(choice, Need(gpus=2), free=0b11011010) == [3, 4]


def test_sets_are_grown_where_they_are_too_many_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    island = [(a, b, 4) for a, b in combinations((1, 4, 6, 7), 2)]
    choice = GpuChoice(linked(8, *island, (0, 2, 1), (2, 3, 1)))
    monkeypatch.setattr(gpu_choice, "MAX_SETS_COMPARED", 5)
    assert chosen(choice, Need(gpus=4)) == [1, 4, 6, 7]


def test_links_count_before_the_value_of_the_cards() -> None:
    both = inventory((2, "A100", 80.0), (2, "H200", 143.0))
    both = Inventory(gpus=both.gpus, num_links={frozenset(("ID-2", "ID-3")): 18})
    assert chosen(GpuChoice(both), Need(gpus=2)) == [2, 3]
    assert chosen(GpuChoice(both), Need(gpus=1)) == [0]


def test_big_cards_are_kept_for_those_who_need_them() -> None:
    choice = GpuChoice(inventory((2, "H200", 143.0), (2, "A100", 80.0)))
    assert chosen(choice, Need(gpus=1)) == [2]
    assert chosen(choice, Need(gpus=2)) == [2, 3]
    assert chosen(choice, Need(gpus=1, memory_gb=100)) == [0]
    assert chosen(choice, Need(gpus=1, model="h200")) == [0]


def test_of_equally_big_cards_those_with_the_fewest_left_over_are_taken() -> None:
    choice = GpuChoice(inventory((3, "H100", 80.0), (2, "A100", 80.0)))
    assert chosen(choice, Need(gpus=1)) == [3]
    assert chosen(choice, Need(gpus=1), free=0b11001) == [0]


def test_models_are_mixed_only_where_allowed_and_then_last() -> None:
    both = inventory((2, "A100", 80.0), (3, "H200", 143.0))
    assert chosen(GpuChoice(both), Need(gpus=4)) == []
    assert len(chosen(GpuChoice(both, mix_models=True), Need(gpus=4))) == 4
    assert chosen(GpuChoice(both, mix_models=True), Need(gpus=3)) == [2, 3, 4]
    assert chosen(GpuChoice(both, mix_models=True), Need(gpus=2), free=0b01111) == [0, 1]


def test_mig_instances_serve_single_leases_only() -> None:
    gpus = tuple(
        Gpu(f"MIG-{i}", i, "H100 MIG 1g.10gb", 10.0, is_mig=True) if i < 2 else Gpu(f"GPU-{i}", i, "H100", 80.0)
        for i in range(4)
    )
    choice = GpuChoice(Inventory(gpus=gpus), mix_models=True)
    assert chosen(choice, Need(gpus=1)) == [0]
    assert chosen(choice, Need(gpus=2)) == [2, 3]
    assert chosen(choice, Need(gpus=3)) == []


@pytest.mark.parametrize(
    ("need", "reason"),
    [
        (Need(gpus=16), "needs 16 GPUs; this run has 8 x H200 143 GB"),
        (Need(gpus=2, model="B200"), "model: 0 of 8 have 'B200' in their name; this run has 8 x H200 143 GB"),
        (Need(gpus=2, memory_gb=180), "memory: 0 of 8 have 180 GB; this run has"),
        (Need(gpus=1, min_capability=(10, 0)), "capability: 0 of 8 have 10.0; this run has"),
        (Need(gpus=8), ""),
    ],
)
def test_the_field_that_fails_is_named(need: Need, reason: str) -> None:
    said = GpuChoice(EIGHT).why_never(need, EVERYTHING)
    assert (said == "") == (reason == "")
    assert reason in said
    assert said == "" or said.startswith(f"needs {need}; ")


def test_what_keeps_a_mixed_inventory_from_serving_is_named() -> None:
    both = GpuChoice(inventory((4, "A100", 80.0), (4, "H200", 143.0)))
    assert "mixed models are not allowed in one lease, and no single model has 8" in both.why_never(
        Need(gpus=8), both.all_gpus
    )
    assert "memory: 0 of 4 have 100 GB" in both.why_never(Need(gpus=2, model="A100", memory_gb=100), both.all_gpus)
    slices = Inventory(gpus=tuple(Gpu(f"MIG-{i}", i, "H100 MIG 1g", 10.0, is_mig=True) for i in range(4)))
    assert "MIG instances cannot be combined" in GpuChoice(slices).why_never(Need(gpus=2), 0b1111)


def test_an_unknown_memory_or_capability_satisfies_no_need_of_it() -> None:
    choice = GpuChoice(Inventory(gpus=(Gpu("ID-0", 0, "odd", 0.0),)))
    assert chosen(choice, Need(gpus=1)) == [0]
    assert chosen(choice, Need(gpus=1, memory_gb=1)) == []
    assert chosen(choice, Need(gpus=1, min_capability=(1, 0))) == []


@QUICK
@given(INVENTORIES, NEEDS.filter(lambda need: need.gpus > 0), st.integers(0, 255), st.booleans())
def test_a_set_is_chosen_wherever_there_is_one(gpus: Inventory, need: Need, free: int, mix_models: bool) -> None:
    """Against every set of free GPUs, tried one by one."""
    choice = GpuChoice(gpus, mix_models)
    free &= choice.all_gpus

    def serves(members: tuple[Gpu, ...]) -> bool:
        adequate = all(
            (need.model or "").lower() in gpu.model.lower() and gpu.memory_gb >= need.memory_gb for gpu in members
        )
        return adequate and (mix_models or len({gpu.model for gpu in members}) == 1)

    possible = [members for members in combinations(choice.gpus_in(free), need.gpus) if serves(members)]
    found = choice.gpus_in(choice.choose(need, free))
    assert (found in possible) if possible else found == ()
    assert bool(choice.why_never(need, free)) == (not possible)
    union = {gpu for members in combinations(choice.gpus, need.gpus) if serves(members) for gpu in members}
    assert set(choice.gpus_in(choice.eligible(need))) == union
