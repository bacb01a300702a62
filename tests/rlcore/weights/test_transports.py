"""Transports between processes: honest syncs raise no alarm, and each transport's own faults are found and named."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.errors import InvalidValueError, WeightSyncError
from rlcore.numerics.level import Strategy, following
from rlcore.weights.receipts import ALL_CHECKS, Check, Receipt
from rlcore.weights.remote import Answerer, Question
from rlcore.weights.sync import sync
from rlcore.weights.target import WeightTarget
from rlcore.weights.transports.base import NamedTensors
from rlcore.weights.transports.checkpoint import CheckpointTransport, FileChunk
from rlcore.weights.transports.in_process import chunks
from rlcore.weights.transports.parcels import Attachments, Parcel
from rlcore.weights.transports.process_group import BroadcastChunk, ProcessGroupTransport
from rlcore.weights.transports.shared_memory import SharedChunk, SharedMemoryTransport
from tests.rlcore.weights.targets import UNTIED, Target, learn, policy
from tests.rlcore.weights.transports import CHUNK_BYTES, TRANSPORTS, opened
from tests.support.listening_sockets import LOOPBACK, listening_addresses
from tests.support.remote_sampler import RemoteHost

NUM_SYNCS = int(os.environ.get("RLCORE_TEST_SYNCS", "30"))
"""Honest syncs over each transport."""
each_transport = pytest.mark.parametrize("name", TRANSPORTS)


class Keeping(Target):
    """Keeps the tensors that it is given, in place of copies of them."""

    def write(self, chunk: Mapping[str, Tensor]) -> Sequence[str]:
        for name, tensor in chunk.items():
            self._parameters()[name].data = tensor
        return list(chunk)


@pytest.fixture(scope="module")
def host() -> Iterator[RemoteHost]:
    made = RemoteHost()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def at_level_invariant() -> Iterator[None]:
    with following(Strategy()):
        yield


class Tampered:
    """A target to which each parcel is delivered as this function changes it."""

    def __init__(self, target: Any, change: Callable[[Any], Parcel | None]) -> None:
        self._target, self._change = target, change

    def receive(self, parcel: Parcel) -> list[str]:
        changed = self._change(parcel)
        return list(self._target.receive(changed)) if changed is not None else [e.name for e in parcel.layout]  # type: ignore[attr-defined]

    def __getattr__(self, method: str) -> Any:
        return getattr(self._target, method)


@pytest.mark.full
@each_transport
def test_honest_syncs_raise_no_alarm(name: str, host: RemoteHost, tmp_path: Path) -> None:
    decoder, receipt = policy(), None
    with opened(name, tmp_path) as transport:
        target = host.target(Target, decoder)
        for version in range(1, NUM_SYNCS + 1):
            learn(decoder, seed=version, size=0.05 / version)
            receipt = sync(decoder, target, version, receipt, transport=transport, has_learned=receipt is not None)
            assert receipt.canary_distance == 0.0 and set(receipt.checks) == ALL_CHECKS
        assert receipt is not None
        assert target.digests(list(receipt.parameters)) == receipt.parameters
    assert list(tmp_path.iterdir()) == [], "chunks are left on the disk"


@each_transport
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tied_heads_and_other_types_arrive(name: str, dtype: torch.dtype, host: RemoteHost, tmp_path: Path) -> None:
    decoder = policy(UNTIED).to(dtype)
    decoder.head = decoder.embedding
    target = host.target(Target, policy(UNTIED).to(dtype))  # its head is memory of its own
    with opened(name, tmp_path) as transport:
        receipt = sync(decoder, target, 1, None, transport=transport)
    assert receipt.tied == (("embedding", "head"),)
    assert target.digests(["head"])["head"] == receipt.parameters["embedding"]


@pytest.mark.parametrize("name", TRANSPORTS[1:])
def test_a_target_of_this_process_is_refused(name: str, tmp_path: Path) -> None:
    with opened(name, tmp_path) as transport, pytest.raises(InvalidValueError, match="to a Target of this process"):
        sync(policy(), Target(policy()), 1, None, transport=transport)


def test_a_target_that_keeps_the_shared_block_is_found(host: RemoteHost) -> None:
    decoder = policy()
    with closing(SharedMemoryTransport(CHUNK_BYTES)) as transport, pytest.raises(WeightSyncError) as caught:
        sync(decoder, host.target(Keeping, decoder), 1, None, transport=transport)
    assert caught.value.check in {Check.READ_BACK, Check.OWNERSHIP}
    with closing(SharedMemoryTransport(CHUNK_BYTES)) as transport, pytest.raises(WeightSyncError) as caught:
        checks = frozenset({Check.READ_BACK})
        sync(decoder, host.target(Keeping, decoder), 1, None, transport=transport, checks=checks)


def second_sync_tampered(
    host: RemoteHost, transport: Any, change: Callable[[Any], Parcel | None], checks: frozenset[Check] = ALL_CHECKS
) -> WeightSyncError:
    """Return the error of a sync whose parcels are changed after an honest one."""
    decoder = policy()
    target = host.target(Target, decoder)
    receipt: Receipt = sync(decoder, target, 1, None, transport=transport)
    learn(decoder)
    with pytest.raises(WeightSyncError) as caught:
        sync(decoder, Tampered(target, change), 2, receipt, transport=transport, checks=checks)
    return caught.value


def test_a_truncated_file_a_lost_one_and_a_stale_one_are_found(host: RemoteHost, tmp_path: Path) -> None:
    transport, kept = CheckpointTransport(tmp_path, CHUNK_BYTES), tmp_path / "kept"
    kept.mkdir()

    def truncated(parcel: FileChunk) -> FileChunk:
        os.truncate(parcel.path, os.path.getsize(parcel.path) - 1)
        return parcel

    def lost(parcel: FileChunk) -> FileChunk:
        os.unlink(parcel.path)
        return parcel

    for change in (truncated, lost):
        error = second_sync_tampered(host, transport, change)
        assert (error.check, "cannot read" in error.what) == (Check.COVERAGE, True)

    def of_the_first(weights: NamedTensors, target: WeightTarget) -> list[str]:
        """As the transport; keeps files, and reads those of the first sync for ever: a path that is cached."""
        written: list[str] = []
        for number, chunk in enumerate(chunks(weights, CHUNK_BYTES)):
            if not (kept / str(number)).exists():
                torch.save({name: tensor.clone() for name, tensor in chunk.items()}, kept / str(number))
            written += target.write(torch.load(kept / str(number)))
        return written

    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 1, None, transport=of_the_first)
    learn(decoder)
    with pytest.raises(WeightSyncError) as caught:
        sync(decoder, target, 2, first, transport=of_the_first)
    assert caught.value.check == Check.LIVENESS


def test_the_store_of_a_process_group_listens_at_its_own_address_alone(host: RemoteHost) -> None:
    before, decoder = listening_addresses(), policy()
    with closing(ProcessGroupTransport(max_chunk_bytes=1 << 20, timeout_s=20.0)) as transport:
        sync(decoder, host.target(Target, decoder), 1, None, transport=transport)
        found = {address.partition(":")[0] for address in listening_addresses() - before}
        assert LOOPBACK in found
        assert not {each for each in found if not each.strip("0")}, "no address of all interfaces"


def test_a_broadcast_out_of_step_is_found(host: RemoteHost) -> None:
    def exchanged(parcel: Parcel) -> Parcel:
        if not isinstance(parcel, BroadcastChunk):
            return parcel
        same = [entry for entry in parcel.layout if entry.shape == (32,)]
        names = {entry.name: other.name for entry, other in zip(same, same[1:] + same[:1], strict=True)}
        return replace(parcel, layout=tuple(e._replace(name=names.get(e.name, e.name)) for e in parcel.layout))

    with closing(ProcessGroupTransport(max_chunk_bytes=1 << 20, timeout_s=20.0)) as transport:
        error = second_sync_tampered(host, transport, exchanged)
        assert error.check == Check.READ_BACK
        decoder = policy()
        target = host.target(Target, decoder)
        assert sync(decoder, target, 1, None, transport=transport).canary_distance == 0.0, "a new group works"


def test_a_target_that_fails_in_a_broadcast_ends_the_group(host: RemoteHost) -> None:
    decoder = policy()
    target = host.target(Target, decoder)
    with closing(ProcessGroupTransport(max_chunk_bytes=CHUNK_BYTES, timeout_s=3.0)) as transport:
        with pytest.raises(WeightSyncError, match="written without begin"):
            transport([("norm", torch.ones(32))], target)
        sync(decoder, target, 1, None, transport=transport)


@pytest.mark.parametrize(("options", "message"), [
    ({"backend": "mpi"}, "backend 'mpi'"), ({"backend": "nccl"}, "nccl with buffers on cpu"),
])  # fmt: skip
def test_a_backend_that_cannot_send_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        ProcessGroupTransport(**options)  # type: ignore[arg-type]


def test_memory_that_cannot_be_reached_is_reported() -> None:
    parcels: list[SharedChunk] = []

    class Noting(Target):
        def receive(self, parcel: SharedChunk) -> list[str]:
            parcels.append(parcel)
            return []

    with closing(SharedMemoryTransport(CHUNK_BYTES)) as transport:
        transport([("norm", torch.ones(32))], Noting(policy()))
        (parcel,) = parcels
        with closing(Attachments()) as attachments:
            assert torch.equal(parcel.open(attachments)["norm"], torch.ones(32))
        for unreachable, message in (
            (replace(parcel, process=2**22 + 1), "No such file"),
            (replace(parcel, descriptor=0), "is not the block of the trainer"),
        ):
            with pytest.raises(InvalidValueError, match=message) as caught:
                unreachable.open(Attachments())
            assert "one PID namespace" in caught.value.legal


def test_a_question_that_targets_do_not_have_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="question 'overwrite'"):
        Answerer(Target(policy()))(Question("overwrite", ("norm",)))
