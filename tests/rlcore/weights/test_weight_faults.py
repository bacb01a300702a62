"""Each fault of a weight sync is found by its check; with the check switched off it passes: the check is at work."""

from collections.abc import Iterator

import pytest
import torch

from rlcore.errors import WeightSyncError
from rlcore.numerics.level import following
from rlcore.numerics.padding import Padding
from rlcore.weights.receipts import ALL_CHECKS, Check
from rlcore.weights.sync import copy_into, sync
from tests.rlcore.weights.faults import FAULTS, Fault, second_sync
from tests.rlcore.weights.holders import Holder, Meta, policy

each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))


@pytest.fixture(autouse=True)
def at_level_invariant() -> Iterator[None]:
    with following(Padding()):
        yield


@each_fault
def test_a_fault_is_found_by_its_check(fault: Fault) -> None:
    with pytest.raises(WeightSyncError) as caught:
        fault.inject(ALL_CHECKS)
    assert caught.value.check == fault.check, caught.value


@each_fault
def test_the_check_alone_finds_it(fault: Fault) -> None:
    with pytest.raises(WeightSyncError) as caught:
        fault.inject(frozenset({fault.check}))
    assert caught.value.check == fault.check, caught.value


@each_fault
def test_without_its_check_it_passes_or_another_finds_it(fault: Fault) -> None:
    fault.inject(ALL_CHECKS - {fault.check} - fault.others)
    if fault.others:
        with pytest.raises(WeightSyncError) as caught:
            fault.inject(ALL_CHECKS - {fault.check})
        assert caught.value.check in fault.others, caught.value


def test_every_check_has_a_fault() -> None:
    assert {fault.check for fault in FAULTS} == ALL_CHECKS


def test_the_parameter_is_named() -> None:
    for name, parameter in (("a frozen one is skipped", "norm"), ("a part of one is skipped", "layers.1.qkv")):
        fault = next(fault for fault in FAULTS if fault.name == name)
        with pytest.raises(WeightSyncError) as caught:
            fault.inject(ALL_CHECKS)
        assert caught.value.parameter == parameter
        assert parameter in str(caught.value)


def test_parameters_without_memory_are_told() -> None:
    decoder = policy()
    with pytest.raises(WeightSyncError, match="embedding has no memory") as caught:
        sync(decoder, Meta(decoder), 1, None)
    assert caught.value.check == Check.COVERAGE
    sync(decoder, Meta(decoder), 1, None, checks=frozenset({Check.CANARY}))  # the copies do nothing


def test_a_faultless_sync_passes() -> None:
    second_sync(copy_into, ALL_CHECKS)


def test_while_it_samples_nothing_is_written() -> None:
    decoder = policy()
    holder = Holder(policy(seed=2))
    before = {name: parameter.clone() for name, parameter in holder.parameters().items()}
    holder.is_sampling = True
    with pytest.raises(WeightSyncError) as caught:
        sync(decoder, holder, 1, None)
    assert caught.value.check == Check.FENCE
    assert all(torch.equal(parameter, before[name]) for name, parameter in holder.parameters().items())
