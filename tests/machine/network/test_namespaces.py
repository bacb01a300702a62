"""Hosts with broken networks, in network namespaces: what the preflight and the doctor make of them."""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from harness.render.findings import findings_text
from tests.machine.network.pretended import ROOT, environment
from tests.support.finding_checks import as_findings
from tests.support.networks.host import Done, Host, host, why_not
from tests.support.networks.situations import (
    black_holed_host,
    good_host,
    nameless_host,
)

pytestmark = pytest.mark.full

GOLDEN = ROOT / "tests" / "golden"
PREFLIGHT = """
import asyncio, json, os
from harness.process.clock import SystemClock
from harness.machine.network.preflight import preflight
began_s = SystemClock().monotonic_s()
found = asyncio.run(preflight(dict(os.environ), SystemClock()))
took_s = SystemClock().monotonic_s() - began_s
print(json.dumps({"pins": dict(found.pins), "took_s": took_s, "notes": found.notes}))
"""
LONG_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    if reason := why_not():
        pytest.skip(f"no pretended hosts: {reason}")


@pytest.fixture(scope="module")
def good() -> Iterator[Host]:
    with good_host() as one:
        yield one


@pytest.fixture(scope="module")
def black_holed() -> Iterator[Host]:
    with black_holed_host() as one:
        yield one


def harness(one: Host, *argv: str, settings: Mapping[str, str] = {}) -> Done:
    """`rlharness` on a pretended host."""
    return one.run(sys.executable, "-m", "harness", *argv, timeout_s=LONG_S, env=environment(settings))


def looked(one: Host, **settings: str) -> dict[str, Any]:
    """What the preflight finds on a pretended host."""
    done = one.run(sys.executable, "-c", PREFLIGHT, timeout_s=LONG_S, env=environment(settings))
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def shown(output: str, check: str) -> str:
    """The findings of one check out of what `doctor --json` printed, as the doctor prints them."""
    found = json.loads(output.splitlines()[-1])["findings"]
    return findings_text(as_findings(each for each in found if each["check"] == check), took_s=0.0, colour=False) + "\n"


def golden(name: str) -> str:
    return (GOLDEN / f"network_{name}.txt").read_text("utf-8")


# ------------------------------------------------------------------------------------------------------------ one host


def test_a_good_host_is_left_alone(good: Host) -> None:
    found = looked(good)
    assert (found["pins"], found["notes"]) == ({}, [])
    assert found["took_s"] < 1.5


def test_a_black_holed_host_is_found_in_time_and_pinned(black_holed: Host) -> None:
    found = looked(black_holed)
    assert found["took_s"] < 1.5
    pins = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    assert found["pins"] == pins
    (note,) = found["notes"]
    assert "10.77.0.2 (eth0)" in note
    assert looked(black_holed, **pins)["pins"] == {}


def test_a_black_holed_host_of_several_is_not_pinned(black_holed: Host) -> None:
    for settings in ({"MASTER_ADDR": "alpha"}, {"SLURM_NNODES": "2"}):
        found = looked(black_holed, **settings)
        assert found["pins"] == {}
        assert "several nodes take part" in found["notes"][0]
    assert looked(black_holed, MASTER_ADDR="beta")["pins"] != {}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("good", {}),
        ("unknown_interface", {"NCCL_SOCKET_IFNAME": "eth7", "GLOO_SOCKET_IFNAME": "eth7"}),
    ],
)
def test_what_the_doctor_says_of_a_good_host(good: Host, name: str, settings: dict[str, str]) -> None:
    assert shown(harness(good, "doctor", "--json", settings=settings).output, "network") == golden(name)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("black_holed", {}),
        ("black_holed_several_nodes", {"MASTER_ADDR": "alpha"}),
        ("black_holed_as_set", {"NCCL_SOCKET_IFNAME": "eth0"}),
    ],
)
def test_what_the_doctor_says_of_a_black_holed_host(black_holed: Host, name: str, settings: dict[str, str]) -> None:
    done = harness(black_holed, "doctor", "--json", settings=settings)
    assert shown(done.output, "network") == golden(name)
    assert done.exit_code == 1


def test_what_the_doctor_says_of_a_host_without_a_network() -> None:
    with host("gamma", {}) as gamma:
        assert shown(harness(gamma, "doctor", "--json").output, "network") == golden("no_network")
        gamma.set_up("ip", "link", "set", "lo", "down")
        assert shown(harness(gamma, "doctor", "--json").output, "network") == golden("no_loopback")


def test_what_the_doctor_says_of_a_host_whose_name_server_is_silent() -> None:
    with nameless_host() as alpha:
        assert looked(alpha)["took_s"] < 1.5
        assert shown(harness(alpha, "doctor", "--json").output, "network") == golden("nameless")
        alpha.write("hosts", "127.0.0.1 localhost\n127.0.0.1 alpha\n")  # as it is told to
        assert shown(harness(alpha, "doctor", "--json").output, "network").startswith("fine")
