"""Each fault of a weight sync is found by its check; with the check switched off it passes: the check is at work.

For targets of this process, and for targets of another one over every transport.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlcore.errors import WeightSyncError
from rlcore.numerics.level import Strategy, following
from rlcore.weights.receipts import ALL_CHECKS, Check
from rlcore.weights.sync import sync
from tests.rlcore.weights.faults import FAULTS, Fault, Here, second_sync
from tests.rlcore.weights.targets import Sharing, Target, policy
from tests.rlcore.weights.transports import TRANSPORTS, opened
from tests.support.remote_sampler import RemoteHost

each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))


@pytest.fixture(autouse=True)
def at_level_invariant() -> Iterator[None]:
    with following(Strategy()):
        yield


@pytest.fixture(scope="module")
def other_process() -> Iterator[RemoteHost]:
    made = RemoteHost()
    yield made
    made.close()


@pytest.fixture(scope="module", params=["here", *TRANSPORTS])
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if request.param == "here":
        yield Here()
        return
    made: RemoteHost = request.getfixturevalue("other_process")
    with opened(request.param, tmp_path_factory.mktemp("chunks")) as made.transport:
        yield made


@pytest.mark.full
@each_fault
def test_a_fault_is_found_by_its_check(fault: Fault, host: Any) -> None:
    with pytest.raises(WeightSyncError) as caught:
        fault.inject(host, ALL_CHECKS)
    assert caught.value.check == fault.check, caught.value


@pytest.mark.full
@each_fault
def test_without_its_check_it_passes_or_another_finds_it(fault: Fault, host: Any) -> None:
    fault.inject(host, ALL_CHECKS - {fault.check} - fault.others)
    if fault.others:
        with pytest.raises(WeightSyncError) as caught:
            fault.inject(host, ALL_CHECKS - {fault.check})
        assert caught.value.check in fault.others, caught.value


def test_every_check_has_a_fault() -> None:
    assert {fault.check for fault in FAULTS} == ALL_CHECKS


def test_the_parameter_is_named(host: Any) -> None:
    for name, parameter in (("a frozen one is skipped", "norm"), ("a part of one is skipped", "layers.1.qkv")):
        fault = next(fault for fault in FAULTS if fault.name == name)
        with pytest.raises(WeightSyncError) as caught:
            fault.inject(host, ALL_CHECKS)
        assert caught.value.parameter == parameter
        assert parameter in str(caught.value)


def test_a_faultless_sync_passes(host: Any) -> None:
    second_sync(lambda carry, weights, target: carry(weights, target), host, ALL_CHECKS)


@pytest.mark.full
def test_memory_that_is_shared_with_another_process_is_found_and_the_policy_restored() -> None:
    host, decoder = RemoteHost(), policy()
    before = {name: parameter.detach().clone() for name, parameter in decoder.named_parameters()}
    try:
        with pytest.raises(WeightSyncError, match="shares memory with the policy") as caught:
            sync(decoder, host.sharing_target(Sharing, decoder), 1, None)
    finally:
        host.close()
    assert (caught.value.check, caught.value.parameter) == (Check.OWNERSHIP, "embedding")
    assert all(torch.equal(parameter, before[name]) for name, parameter in decoder.named_parameters())


@pytest.mark.full
def test_while_it_samples_nothing_is_written() -> None:
    decoder = policy()
    target = Target(policy(seed=2))
    before = {name: parameter.clone() for name, parameter in target.decoder.named_parameters()}
    with pytest.raises(WeightSyncError) as caught, target.sampling():
        sync(decoder, target, 1, None)
    assert caught.value.check == Check.FENCE
    assert all(torch.equal(parameter, before[name]) for name, parameter in target.decoder.named_parameters())
    sync(decoder, target, 1, None)
