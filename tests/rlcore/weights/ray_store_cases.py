"""Syncs through Ray's object store to an actor: the fault table, and honest syncs. test_ray_store runs these tests."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from rlcore.errors import InvalidValueError, WeightSyncError
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import Strategy, following
from rlcore.weights.arrivals import receipt_for
from rlcore.weights.digests import tensor_digests
from rlcore.weights.receipts import ALL_CHECKS, Check
from rlcore.weights.remote import Answerer, Question, RemoteTarget
from rlcore.weights.sync import sync
from rlcore.weights.target import WeightTarget
from rlcore.weights.transports.ray_store import RayStoreTransport, over_actor
from tests.rlcore.weights.faults import FAULTS, Fault
from tests.rlcore.weights.targets import Sharing, Target, learn, policy
from tests.rlcore.weights.test_transports import NUM_SYNCS
from tests.rlcore.weights.transports import CHUNK_BYTES

HERE = [fault for fault in FAULTS if getattr(fault.inject, "args", ()) != (Sharing,)]
"""All but memory that is shared: an actor is given copies."""


class Sampler:
    """An actor with one target at a time."""

    def build(self, kind: Callable[[Decoder], WeightTarget], decoder: Decoder) -> None:
        torch.set_num_threads(1)
        self.target = kind(copy.deepcopy(decoder))
        self.answerer = Answerer(self.target)

    def answer(self, question: Question) -> Any:
        with following(Strategy()):
            return self.answerer(question)

    def call(self, method: str, *given: Any) -> None:
        getattr(self.target, method)(*given)


class ActorTarget(RemoteTarget):
    """A target of the actor, and the methods that faulty ones have besides."""

    def __init__(self, actor: Any) -> None:
        super().__init__(over_actor(actor, timeout_s=60.0))
        self._actor = actor

    def ask(self, method: str, *given: Any) -> None:
        import ray

        ray.get(self._actor.call.remote(method, *given))


@dataclass
class ActorHost:
    """Where targets are made: in an actor."""

    actor: Any
    transport = RayStoreTransport(CHUNK_BYTES)

    def target(self, kind: Callable[[Decoder], WeightTarget], decoder: Decoder) -> ActorTarget:
        import ray

        ray.get(self.actor.build.remote(kind, decoder))
        return ActorTarget(self.actor)


@pytest.fixture(scope="module")
def host() -> Iterator[ActorHost]:
    import ray

    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
    yield ActorHost(ray.remote(Sampler).remote())
    ray.shutdown()


@pytest.fixture(autouse=True)
def at_level_invariant() -> Iterator[None]:
    with following(Strategy()):
        yield


@pytest.mark.parametrize("fault", HERE, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_is_found_by_its_check(fault: Fault, host: ActorHost) -> None:
    with pytest.raises(WeightSyncError) as caught:
        fault.inject(host, ALL_CHECKS)
    assert caught.value.check == fault.check, caught.value


def test_honest_syncs_raise_no_alarm(host: ActorHost) -> None:
    decoder, receipt = policy(), None
    target = host.target(Target, decoder)
    for version in range(1, NUM_SYNCS + 1):
        learn(decoder, seed=version, size=0.05 / version)
        receipt = sync(decoder, target, version, receipt, transport=host.transport, has_learned=receipt is not None)
        assert receipt.canary_distance == 0.0
    assert receipt is not None
    assert target.digests(list(receipt.parameters)) == receipt.parameters


def test_a_target_of_this_process_is_refused(host: ActorHost) -> None:
    with pytest.raises(InvalidValueError, match="to a Target of this process"):
        sync(policy(), Target(policy()), 1, None, transport=host.transport)


class RolloutWorker:
    """Shaped as verl's rollout workers: `update_weights` takes named tensors. Its receipts need one more method."""

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}

    def update_weights(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        self.weights |= {name: tensor.clone() for name, tensor in tensors}

    def digests(self, names: Sequence[str]) -> dict[str, str]:
        return tensor_digests({name: self.weights[name] for name in names if name in self.weights})


@dataclass
class WorkerAnswers:
    """Answers of a worker, for receipts."""

    worker: Any

    def digests(self, names: Sequence[str]) -> Mapping[str, str]:
        import ray

        return dict(ray.get(self.worker.digests.remote(list(names))))


def test_a_worker_shaped_as_verls_gets_receipts_by_one_method(host: ActorHost) -> None:
    import ray

    worker: Any = ray.remote(RolloutWorker)
    worker = worker.options(num_cpus=0).remote()
    decoder = policy()
    tensors = {name: parameter.detach() for name, parameter in decoder.named_parameters()}
    ray.get(worker.update_weights.remote(list(tensors.items())))
    receipt = receipt_for(tensors.items(), WorkerAnswers(worker), 1)
    learn(decoder)
    skipped = [(name, tensor) for name, tensor in tensors.items() if name != "layers.1.qkv"]
    ray.get(worker.update_weights.remote(skipped))
    with pytest.raises(WeightSyncError) as caught:
        receipt_for(tensors.items(), WorkerAnswers(worker), 2, previous=receipt, has_learned=True)
    assert (caught.value.check, caught.value.parameter) == (Check.LIVENESS, "layers.1.qkv")
    ray.get(worker.update_weights.remote(list(tensors.items())))
    assert receipt_for(tensors.items(), WorkerAnswers(worker), 2, previous=receipt).num_changed == len(tensors) - 1
