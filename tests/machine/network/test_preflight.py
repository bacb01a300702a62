"""The preflight on this machine, in its time, and what a run says of it."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from harness.machine.network.interfaces import GLOO_VARIABLE
from harness.machine.network.preflight import IN_ALL_S, NAMES_S, classify_network, preflight
from harness.process.clock import SystemClock
from tests.machine.network.machines import interface, network, reached


def test_the_notes_of_a_run() -> None:
    host = network(interface("bond0", "10.0.0.1/24"), resolved={"node7": ("10.0.0.1",)}, outgoing=("10.0.0.1",))
    answers = reached(host, "10.0.0.1")
    pinned, unmended = classify_network(host, {GLOO_VARIABLE: "eth7"}, answers).notes
    assert pinned == (
        "this host cannot reach its own address 10.0.0.1 (bond0): every file is given "
        "NCCL_SOCKET_IFNAME=lo RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0"
    )
    assert unmended.startswith("GLOO_SOCKET_IFNAME=eth7: there is no interface named 'eth7'")
    assert classify_network(host, {}, reached(host)).notes == ()


# ------------------------------------------------------------------------------------------------------ on this machine


def test_this_machine_is_looked_at_in_time() -> None:
    began_s = SystemClock().monotonic_s()
    found = asyncio.run(preflight({}, SystemClock()))
    assert SystemClock().monotonic_s() - began_s < 1.5
    assert {pick.library for pick in found.rules} == {"NCCL", "Gloo", "Ray"}
    assert found.findings


def test_a_resolver_that_hangs_does_not_hold_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, let_go = socket.getaddrinfo, threading.Event()

    def hang(*args: Any, **options: Any) -> Any:
        if not options.get("flags", 0) & socket.AI_NUMERICHOST:
            let_go.wait()
        return answer(*args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    began_s = SystemClock().monotonic_s()
    found = asyncio.run(preflight({}, SystemClock()))
    assert SystemClock().monotonic_s() - began_s < IN_ALL_S
    assert any(f"within {NAMES_S:g} s" in finding.measured for finding in found.findings)
    let_go.set()
