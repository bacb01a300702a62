"""Hosts with broken networks, in network namespaces: what the preflight and the doctor make of them."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
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
found = asyncio.run(preflight(dict(os.environ), SystemClock()))
print(json.dumps({"pins": dict(found.pins), "took_s": found.took_s, "notes": found.notes}))
"""
DIES_LATE = """
import ctypes, threading
from tests.support.networks import host as hosts

PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
hosts.SETTING_UP_S = 5.0
at_once = hosts.Host.end_all
hosts.Host.end_all = lambda one: threading.Timer(0.5, at_once, [one]).start()
with hosts.host("late", {}) as one:
    done = one.run("sleep", "60", timeout_s=0.1)
print(done.exit_code, flush=True)
"""
"""Adopts orphans, and runs on a host what has not died yet when its time is up and it was told to end."""
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


# -------------------------------------------------------------------------------------------------- the pretended hosts


def test_a_host_has_a_name_and_a_network_of_its_own(good: Host) -> None:
    looking = "hostname; getent hosts alpha; cat /proc/net/dev | grep -c :"
    assert good.run("sh", "-c", looking, timeout_s=LONG_S).output.split() == ["alpha", "10.77.0.1", "alpha", "2"]


def test_what_takes_too_long_is_ended_with_all_it_started(good: Host) -> None:
    assert good.run("sh", "-c", "sleep 4711 & sleep 4712", timeout_s=0.5).exit_code is None
    assert "471" not in good.run("ps", "ax", timeout_s=LONG_S).output


def test_nothing_is_left_when_the_process_that_made_the_host_is_killed(tmp_path: Path) -> None:
    making = (
        "import os, signal\n"
        "from tests.support.networks.situations import good_host\n"
        "with good_host() as one:\n"
        "    print(one.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    settings = {**environment({}), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", making]
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    first = int(done.stdout)
    ended = threading.Event()
    for _ in range(500):
        if not Path(f"/proc/{first}").exists():
            break
        ended.wait(0.02)
    else:
        raise AssertionError("the first process of the host lives on")
    assert list(tmp_path.iterdir()) == []


def test_hosts_come_and_go_without_a_trace() -> None:
    def interfaces() -> str:
        return subprocess.run(["ip", "-oneline", "link"], capture_output=True, text=True, check=True).stdout

    before = interfaces()
    for _ in range(3):
        with host("gamma", {}):
            pass
    assert interfaces() == before


def test_a_host_ends_whose_program_dies_late() -> None:
    """Whoever adopts orphans would be left with a zombie of it, and the host could not end before that is reaped."""
    argv = [sys.executable, "-c", DIES_LATE]
    done = subprocess.run(
        argv, cwd=ROOT, env=environment({}), capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
