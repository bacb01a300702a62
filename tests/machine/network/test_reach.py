"""Connecting to one's own addresses."""

import asyncio
import errno
import socket

from harness.machine.network.interfaces import Address
from harness.machine.network.reach import reach_own, reason
from harness.process.clock import SystemClock


def test_own_addresses_answer_and_others_cannot_be_bound() -> None:
    addresses = [Address("127.0.0.1", socket.AF_INET), Address("192.0.2.77", socket.AF_INET)]
    found = asyncio.run(reach_own(addresses, SystemClock(), limit_s=5))
    assert found["127.0.0.1"].is_reached
    assert 0 < found["127.0.0.1"].took_s < 5
    foreign = found["192.0.2.77"]
    assert (foreign.is_reached, foreign.is_ready) == (False, False)
    assert "cannot be bound" in foreign.problem


def test_no_addresses_at_all() -> None:
    assert asyncio.run(reach_own([], SystemClock(), limit_s=1)) == {}


def test_no_socket_is_left_open() -> None:
    addresses = [Address(f"127.0.0.{n}", socket.AF_INET) for n in range(1, 50)]
    asyncio.run(reach_own(addresses, SystemClock(), limit_s=5))  # an open one is a ResourceWarning, and an error here


def test_reasons_are_the_systems_own_words() -> None:
    assert reason(OSError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.1', 5)")) == "connection refused"
    assert reason(socket.gaierror(socket.EAI_NONAME, "Name or service not known")) == "name or service not known"
    assert reason(OSError("Multiple exceptions: a, b")) == "multiple exceptions: a, b"
