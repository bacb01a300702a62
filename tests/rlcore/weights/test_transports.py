"""Transports between processes: honest syncs raise no alarm, and each transport's own faults are found and named."""

import gc
import os
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlcore.errors import InvalidValueError, WeightSyncError
from rlcore.weights.proven_sync import sync
from rlcore.weights.receipts import Check
from rlcore.weights.remote import Answerer
from rlcore.weights.target import NamedTensors
from rlcore.weights.transports.packing import Parcel
from rlcore.weights.transports.process_group import BroadcastChunk, ProcessGroup
from rlcore.weights.transports.shared_memory import SharedChunk, SharedMemory
from tests.rlcore.weights.targets import UNTIED, Target, learn, policy
from tests.rlcore.weights.transports import CHUNK_BYTES, TRANSPORTS
from tests.support.listening_sockets import LOOPBACK, listening_addresses
from tests.support.remote_sampler import RemoteHost

NUM_SYNCS = int(os.environ.get("RLCORE_TEST_SYNCS", "30"))
"""Honest syncs over each transport."""
each_transport = pytest.mark.parametrize("name", TRANSPORTS)
pytestmark = pytest.mark.usefixtures("at_level_invariant")


class Keeping(Target):
    """Keeps the tensors that it is given, in place of copies of them."""

    def write(self, weights: NamedTensors) -> None:
        for name, tensor in weights:
            self._parameters()[name].data = tensor


@pytest.fixture
def host(other_process: RemoteHost) -> RemoteHost:
    other_process.transport = SharedMemory
    return other_process


@pytest.mark.full
@each_transport
def test_honest_syncs_raise_no_alarm(name: str, host: RemoteHost) -> None:
    decoder, receipt = policy(), None
    host.transport = TRANSPORTS[name]
    target = host.target(Target, decoder)
    for version in range(1, NUM_SYNCS + 1):
        learn(decoder, seed=version, size=0.05 / version)
        receipt = sync(decoder, target, version, receipt, has_learned=receipt is not None)
        assert receipt.canary_distance == 0.0
    assert receipt is not None
    assert target.digests(list(receipt.parameters)) == receipt.parameters


@each_transport
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tied_heads_and_other_types_arrive(name: str, dtype: torch.dtype, host: RemoteHost) -> None:
    decoder = policy(UNTIED).to(dtype)
    decoder.head = decoder.embedding
    host.transport = TRANSPORTS[name]
    target = host.target(Target, policy(UNTIED).to(dtype))  # its head is memory of its own
    receipt = sync(decoder, target, 1, None)
    assert receipt.tied == (("embedding", "head"),)
    assert target.digests(["head"])["head"] == receipt.parameters["embedding"]


def test_a_target_that_keeps_the_shared_block_is_found(host: RemoteHost) -> None:
    decoder = policy()
    host.transport = TRANSPORTS["shared-memory"]
    with pytest.raises(WeightSyncError) as caught:
        sync(decoder, host.target(Keeping, decoder), 1, None)
    assert caught.value.check == Check.READ_BACK


def test_the_store_of_a_process_group_listens_at_its_own_address_alone(host: RemoteHost) -> None:
    before, decoder = listening_addresses(), policy()
    host.transport = ProcessGroup
    target = host.target(Target, decoder)
    sync(decoder, target, 1, None)
    found = {address.partition(":")[0] for address in listening_addresses() - before}
    assert LOOPBACK in found
    assert not {each for each in found if not each.strip("0")}, "no address of all interfaces"


def test_a_broadcast_out_of_step_is_found_and_ends_no_group(host: RemoteHost) -> None:
    host.transport = lambda: ProcessGroup(timeout_s=20.0)
    decoder = policy()
    target: Any = host.target(Target, decoder)
    receipt, honest = sync(decoder, target, 1, None), target._ask

    def exchanged(method: str, *given: Any) -> Any:
        if method == "write" and isinstance(given[0], BroadcastChunk):
            same = [entry for entry in given[0].layout if entry.shape == (32,)]
            names = {entry.name: other.name for entry, other in zip(same, same[1:] + same[:1], strict=True)}
            layout = tuple(each._replace(name=names.get(each.name, each.name)) for each in given[0].layout)
            given = (replace(given[0], layout=layout),)
        return honest(method, *given)

    learn(decoder)
    target._ask = exchanged
    with pytest.raises(WeightSyncError) as caught:
        sync(decoder, target, 2, receipt)
    assert caught.value.check == Check.READ_BACK
    target._ask = honest
    assert sync(decoder, target, 2, None).canary_distance == 0.0


def test_a_target_that_fails_in_a_broadcast_ends_the_group(host: RemoteHost) -> None:
    decoder = policy()
    host.transport = lambda: ProcessGroup(max_chunk_bytes=CHUNK_BYTES, timeout_s=3.0)
    target = host.target(Target, decoder)
    with pytest.raises(WeightSyncError, match="written without begin"):
        target.write([("norm", torch.ones(32))])
    sync(decoder, target, 1, None)


@pytest.mark.parametrize(("options", "message"), [
    ({"backend": "mpi"}, "backend 'mpi'"), ({"backend": "nccl"}, "nccl with buffers on cpu"),
])  # fmt: skip
def test_a_backend_that_cannot_send_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        ProcessGroup(**options)  # type: ignore[arg-type]


def test_memory_that_cannot_be_reached_is_reported() -> None:
    parcels: list[Parcel] = []
    transport = SharedMemory(CHUNK_BYTES)
    transport.send([("norm", torch.ones(32))], parcels.append)
    (parcel,) = parcels
    assert isinstance(parcel, SharedChunk)
    assert torch.equal(parcel.open({})["norm"], torch.ones(32))
    for path, message in (("/proc/4194305/fd/3", "No such file"), (f"/proc/{os.getpid()}/fd/0", "is not the block")):
        with pytest.raises(InvalidValueError, match=message) as caught:
            replace(parcel, path=path).open({})
        assert "one PID namespace" in caught.value.legal


def test_blocks_are_given_back() -> None:
    def blocks() -> set[str]:
        gc.collect()
        links = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
        return {os.readlink(each) for each in links if os.path.lexists(each)}

    before, parcels = blocks(), list[Any]()
    transport = SharedMemory(64)
    for size in (32, 64, 128):
        transport.send([("norm", torch.ones(size))], parcels.append)
    (left,) = {each for each in blocks() - before if "rlcore-weights" in each}
    assert parcels[-1].name in left
    del transport
    assert not {each for each in blocks() - before if "rlcore-weights" in each}


def test_a_question_that_targets_do_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="question 'overwrite'"):
        Answerer(Target(policy()))("overwrite", "norm")
