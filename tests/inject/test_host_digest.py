"""Many tensors on the host, digested by several threads."""

import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import TraceError
from harness.inject import host_digest
from harness.inject.host_digest import digest_on_host
from harness.inject.tensors import Digested, digest_tensor

LARGE = 64
"""Bytes, in these tests."""


@pytest.fixture
def num_started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of threads that were started, while small tensors count as large and torch has three threads."""
    monkeypatch.setattr(host_digest, "LARGE_BYTES", LARGE)
    monkeypatch.setattr(host_digest, "MIN_SHARED_BYTES", 4 * LARGE)
    started: list[str] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread.name)

    monkeypatch.setattr(threading.Thread, "start", noted)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield started
    torch.set_num_threads(before)


@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 100), max_size=12))
def test_they_are_those_of_one_thread(num_started: list[str], sizes: list[int]) -> None:
    tensors = [torch.arange(size, dtype=torch.float32) + index for index, size in enumerate(sizes)]
    num_started.clear()

    assert digest_on_host(tensors) == [digest_tensor(tensor) for tensor in tensors]

    large = [4 * size for size in sizes if 4 * size >= LARGE]
    wanted = min(3, len(large)) - 1 if sum(large) >= 4 * LARGE else 0
    assert len(num_started) == max(wanted, 0)
    assert not [thread for thread in threading.enumerate() if thread.name == "rlharness digests"]


def test_each_thread_has_its_share(num_started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a thread that does nothing: each waits here until all of them have a tensor."""
    meeting = threading.Barrier(3, timeout=30)

    def together(tensor: torch.Tensor) -> Digested:
        meeting.wait()
        return digest_tensor(tensor)

    monkeypatch.setattr(host_digest, "digest_tensor", together)
    tensors = [torch.ones(100) * number for number in range(6)]

    assert digest_on_host(tensors) == [digest_tensor(tensor) for tensor in tensors]
    assert len(num_started) == 2


def test_an_error_is_raised_where_the_digests_were_asked_for(num_started: list[str]) -> None:
    gone = torch.ones(100)
    gone.untyped_storage().resize_(0)

    with pytest.raises(TraceError, match="without memory"):
        digest_on_host([torch.ones(100), gone, *(torch.ones(90) for _ in range(4))])
    assert not [thread for thread in threading.enumerate() if thread.name == "rlharness digests"]


def test_where_no_thread_can_be_started_the_callers_does_it_all(
    num_started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refused)
    tensors = [torch.ones(100) * number for number in range(6)]

    assert digest_on_host(tensors) == [digest_tensor(tensor) for tensor in tensors]


def test_a_program_of_one_thread_stays_one(num_started: list[str]) -> None:
    torch.set_num_threads(1)

    digest_on_host([torch.ones(1000) for _ in range(4)])

    assert num_started == []
