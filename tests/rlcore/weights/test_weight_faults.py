"""Each fault of a weight sync is found by its check: in this process, and in another one over every transport."""

from typing import Any

import pytest
import torch

from rlcore.errors import WeightSyncError
from rlcore.weights.proven_sync import sync
from rlcore.weights.receipts import Check
from tests.rlcore.weights.faults import FAULTS, Fault, Here, second_sync
from tests.rlcore.weights.targets import Sharing, policy
from tests.rlcore.weights.transports import TRANSPORTS
from tests.support.remote_sampler import RemoteHost

pytestmark = pytest.mark.usefixtures("at_level_invariant")


@pytest.fixture(params=["here", *TRANSPORTS])
def host(request: pytest.FixtureRequest) -> Any:
    if request.param == "here":
        return Here()
    made: RemoteHost = request.getfixturevalue("other_process")
    made.transport = TRANSPORTS[request.param]
    return made


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_is_found_by_its_check(fault: Fault, host: Any) -> None:
    with pytest.raises(WeightSyncError) as caught:
        fault.inject(host)
    assert caught.value.check == fault.check, caught.value


def test_every_check_has_a_fault() -> None:
    assert {fault.check for fault in FAULTS} == set(Check)


def test_the_parameter_is_named(host: Any) -> None:
    for name, parameter in (("one is skipped", "layers.0.mlp_norm"), ("a part of one is skipped", "layers.1.qkv")):
        fault = next(fault for fault in FAULTS if fault.name == name)
        with pytest.raises(WeightSyncError) as caught:
            fault.inject(host)
        assert caught.value.parameter == parameter
        assert parameter in str(caught.value)


def test_a_faultless_sync_passes(host: Any) -> None:
    second_sync(lambda write, weights: write(weights), host)


@pytest.mark.full
def test_memory_that_is_shared_with_another_process_is_found_and_the_policy_restored() -> None:
    host, decoder = RemoteHost(), policy()
    before = {name: parameter.detach().clone() for name, parameter in decoder.named_parameters()}
    try:
        with pytest.raises(WeightSyncError, match="is written with the other") as caught:
            sync(decoder, host.sharing_target(Sharing, decoder), 1, None)
    finally:
        host.close()
    assert (caught.value.check, caught.value.parameter) == (Check.OWNERSHIP, "embedding")
    assert all(torch.equal(parameter, before[name]) for name, parameter in decoder.named_parameters())
