"""Port blocks: one per slot, never shared, never where connections are numbered."""

import os
import socket
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.process.claims import Claims
from harness.process.ports import BLOCK_SIZE, PortBlocks, block_starts, is_listenable, read_ephemeral_range
from tests.support.foreign_claims import held_by_another_user

LINUX = (32768, 60999)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def claims() -> Iterator[Claims]:
    with Claims() as opened:
        yield opened


@settings(derandomize=True)
@given(st.tuples(st.integers(1, 65535), st.integers(1, 65535)))
def test_blocks_are_apart_from_each_other_and_those_apart_from_connections_come_first(ends: tuple[int, int]) -> None:
    low, high = sorted(ends)
    starts = block_starts((low, high))
    assert all(later - port >= BLOCK_SIZE for port, later in pairwise(sorted(starts)))
    assert 20000 <= min(starts) <= max(starts) + BLOCK_SIZE - 1 <= 65535
    overlaps = [start <= high and low <= start + BLOCK_SIZE - 1 for start in starts]
    assert overlaps == sorted(overlaps)


def test_this_machines_range_is_a_range() -> None:
    low, high = read_ephemeral_range()
    assert 0 < low <= high <= 65535


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_port_somebody_listens_on_is_not_listenable(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no address {address}")
    port = server.getsockname()[1]
    with server:
        assert not is_listenable(port)
    assert is_listenable(port)


def test_a_port_whose_last_connection_waits_out_its_time_is_listenable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the end that closes first is the one that waits
            assert client.recv(1) == b""
    assert is_listenable(port)


def test_a_slot_keeps_its_port_and_shares_it_with_nobody(claims: Claims) -> None:
    with Claims() as other_claims:
        ours, theirs = PortBlocks(claims, LINUX), PortBlocks(other_claims, LINUX)
        ports = [ours.master_port(0), theirs.master_port(0), ours.master_port(1), theirs.master_port(1)]
        assert len(set(ports)) == 4
        assert all((port - 20000) % BLOCK_SIZE == 0 for port in ports)
        assert [ours.master_port(0), theirs.master_port(0)] == ports[:2]


def test_a_slot_moves_when_somebody_sits_on_its_port_and_its_block_is_given_back(claims: Claims) -> None:
    blocks = PortBlocks(claims, LINUX)
    port = blocks.master_port(0)
    with socket.create_server(("127.0.0.1", port)):
        assert blocks.master_port(0) != port
    with Claims() as other_claims:
        assert PortBlocks(other_claims, LINUX).master_port(0) <= port


def test_a_released_block_can_be_had_by_another_run(claims: Claims) -> None:
    blocks = PortBlocks(claims, LINUX)
    port = blocks.master_port(3)
    blocks.release(3)
    blocks.release(3)
    with Claims() as other_claims:
        assert PortBlocks(other_claims, LINUX).master_port(0) <= port


def test_slots_beyond_the_preferred_blocks_get_others_that_do_not_overlap(claims: Claims) -> None:
    """256 slots, as with two runs on 128 cores."""
    blocks = PortBlocks(claims, LINUX)
    ports = sorted(map(blocks.master_port, range(256)))
    assert all(later - port >= BLOCK_SIZE for port, later in pairwise(ports))
    assert sum(port > 60999 for port in ports) > 0, "those outside the range of connections come first"
    assert blocks.notes == ()


def test_a_slot_without_a_block_gets_a_free_port_and_the_run_says_so(
    claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = PortBlocks(claims, LINUX)
    monkeypatch.setattr(blocks, "_starts", blocks._starts[:2])
    ports = list(map(blocks.master_port, range(4)))
    assert len(set(ports)) == 4
    assert all(map(is_listenable, ports))
    assert len(blocks.notes) == 1
    blocks.release(3)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("listens", [True, False])
def test_another_user_who_holds_all_names_keeps_no_run_from_starting(
    monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    starts = tuple(range(20007, 20007 + 4 * BLOCK_SIZE, BLOCK_SIZE))  # which no other run on this machine claims
    names = [f"ports-{port}" for port in starts]
    with held_by_another_user(*names, listens=listens), Claims() as one, Claims() as two:
        first, second = PortBlocks(one, LINUX), PortBlocks(two, LINUX)
        for each in (first, second):
            monkeypatch.setattr(each, "_starts", starts)
        taken = [first.master_port(0), second.master_port(0), first.master_port(1)]
        assert set(taken) < set(starts)
        assert len(set(taken)) == 3, "runs of one user share none among themselves"
        first.release(0)
        assert second.master_port(1) == taken[0]
