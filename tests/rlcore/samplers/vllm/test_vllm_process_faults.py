"""Faults on the way to an engine's process, over shared memory: each is found by its check; honest syncs pass.

Faults of the target itself are those of `test_vllm_weights.py`, whose engine is in this process.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from rlcore.errors import WeightSyncError
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import following
from rlcore.numerics.padding import Padding
from rlcore.weights.receipts import ALL_CHECKS, Check
from rlcore.weights.sync import IN_PROCESS, sync
from rlcore.weights.target import WeightTarget
from tests.rlcore.weights.faults import FAULTS, Fault
from tests.rlcore.weights.targets import Target, learn, policy
from tests.support.vllm_engines import give_weights, need_vllm, process_engine

if TYPE_CHECKING:
    from rlcore.samplers.vllm.process_engine import ProcessEngine

need_vllm()
pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]


class AnotherKind(Exception):
    """A fault of a target that this engine does not have."""


class InOtherProcess:
    """Where targets are made: one engine, with the weights that it is given."""

    transport = IN_PROCESS

    def __init__(self, engine: "ProcessEngine") -> None:
        self.engine = engine

    def target(self, kind: Callable[[Decoder], WeightTarget], decoder: Decoder) -> Any:
        """Return the engine's target; raises AnotherKind for a faulty one."""
        if kind is not Target or decoder.config != policy().config:
            raise AnotherKind
        give_weights(self.engine, decoder)
        return self.engine.build_target()

    sharing_target = target


@pytest.fixture(scope="module")
def host() -> Iterator[InOtherProcess]:
    with process_engine(policy(), concurrency=4) as engine:
        yield InOtherProcess(engine)


@pytest.fixture(autouse=True)
def at_level_invariant() -> Iterator[None]:
    with following(Padding()):
        yield


def is_on_the_way(fault: Fault) -> bool:
    """Whether a fault needs no faulty target."""

    class Asked:
        transport = IN_PROCESS

        def target(self, kind: object, decoder: Decoder) -> Any:
            if kind is not Target or fault.check is Check.HELD:
                raise AnotherKind
            return Target(decoder)

        sharing_target = target

    try:
        with following(Padding()), suppress(WeightSyncError):
            fault.inject(Asked(), ALL_CHECKS)
    except AnotherKind:
        return False
    return True


ON_THE_WAY = [fault for fault in FAULTS if is_on_the_way(fault)]
each_fault = pytest.mark.parametrize("fault", ON_THE_WAY, ids=lambda fault: fault.name.replace(" ", "-"))


@each_fault
def test_a_fault_is_found_by_its_check(fault: Fault, host: InOtherProcess) -> None:
    with pytest.raises(WeightSyncError) as caught:
        fault.inject(host, ALL_CHECKS)
    assert caught.value.check == fault.check, caught.value


@each_fault
def test_without_its_check_it_passes_or_another_finds_it(fault: Fault, host: InOtherProcess) -> None:
    fault.inject(host, ALL_CHECKS - {fault.check} - fault.others)


def test_most_faults_are_on_the_way() -> None:
    assert len(ON_THE_WAY) >= 12
    assert {fault.check for fault in ON_THE_WAY} == {Check.COVERAGE, Check.READ_BACK, Check.LIVENESS, Check.FENCE}


def test_honest_syncs_raise_no_alarm(host: InOtherProcess) -> None:
    decoder, receipt = policy(), None
    target = host.target(Target, decoder)
    for version in range(1, 31):
        learn(decoder, seed=version, size=0.05 / version)
        receipt = sync(decoder, target, version, receipt, has_learned=receipt is not None)
        assert receipt.canary_distance == 0.0
    assert receipt is not None
    assert target.digests(list(receipt.parameters)) == receipt.parameters
