"""torch's real Gloo and a real Ray on pretended hosts: they pick what `rules` says, hang as it says; pins mend it."""

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.machine.network.pretended import environment
from tests.support.networks.host import Done, Host, why_not
from tests.support.networks.situations import black_holed_host, two_hosts

pytestmark = pytest.mark.full

PINS = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
ON_A_HOST = {"RAY_AUTH_MODE": "disabled"}
"""Ray would leave a token in the home directory."""
LONG_S = 120.0
OUR_PICKS = """
import asyncio, json, os
from harness.machine.network.interfaces import read_nccl_settings, read_network
from harness.machine.network.interfaces import make_rules
picks = make_rules(asyncio.run(read_network(limit_s=10)), read_nccl_settings(dict(os.environ)))
print(json.dumps({pick.library: pick.address for pick in picks}))
"""
GLOOS_PICK = """
import json, psutil, torch.distributed as distributed
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
listening = [c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
print(json.dumps(listening))
"""
RAYS_PICK = """
import json
from ray.util import get_node_ip_address
print(json.dumps(get_node_ip_address()))
"""


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    if reason := why_not():
        pytest.skip(f"no pretended hosts: {reason}")


@pytest.fixture(scope="module")
def black_holed() -> Iterator[Host]:
    with black_holed_host() as one:
        yield one


def said(one: Host, code: str, **settings: str) -> Any:
    """The JSON that a Python program on a pretended host prints last."""
    done = one.run(sys.executable, "-c", code, timeout_s=LONG_S, env=environment(settings))
    assert done.exit_code == 0, done.output
    return json.loads(done.output.splitlines()[-1])


def program(one: Host, name: str, timeout_s: float, *arguments: str, **settings: str) -> Done:
    """A program of tests/support/networks on a pretended host, with a short TMPDIR of its own."""
    argv = (sys.executable, "-m", f"tests.support.networks.{name}", *arguments)
    return one.run(*argv, timeout_s=timeout_s, env=environment({**ON_A_HOST, "TMPDIR": str(one.directory), **settings}))


def long_after(working: Done) -> float:
    """When a program that has not ended hangs, going by one that has."""
    return max(10.0, 2 * working.took_s)


# ------------------------------------------------------------------------------------------------------- what they pick


@pytest.mark.parametrize(
    "settings", [{}, {"GLOO_SOCKET_IFNAME": "good0"}, {"GLOO_SOCKET_IFNAME": "x"}, {"GLOO_SOCKET_IFNAME": "lo"}]
)
def test_gloo_picks_what_we_say(settings: dict[str, str]) -> None:
    pytest.importorskip("torch")
    with two_hosts() as (alpha, _):
        assert said(alpha, GLOOS_PICK, **settings) == [said(alpha, OUR_PICKS, **settings)["Gloo"]]


def test_ray_picks_what_we_say() -> None:
    pytest.importorskip("ray")
    with two_hosts() as (alpha, _):
        off = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        assert said(alpha, RAYS_PICK) == said(alpha, OUR_PICKS)["Ray"] == "10.77.0.1"
        assert said(alpha, RAYS_PICK, **off) == said(alpha, OUR_PICKS, **off)["Ray"] == "127.0.0.1"
        alpha.set_up("ip", "route", "add", "default", "via", "10.78.0.2")
        assert said(alpha, RAYS_PICK) == said(alpha, OUR_PICKS)["Ray"] == "10.78.0.1"


# ------------------------------------------------------------------------------------------------------ where they hang


def test_gloo_hangs_on_a_black_holed_host_and_works_with_the_pins(black_holed: Host) -> None:
    pytest.importorskip("torch")
    working = program(black_holed, "two_ranks", LONG_S, **PINS)
    assert (working.exit_code, "sum 3" in working.output) == (0, True), working.output
    hanging = program(black_holed, "two_ranks", long_after(working))
    assert (hanging.exit_code, "starting Gloo" in hanging.output) == (None, True), hanging.output


def test_ray_hangs_on_a_black_holed_host_and_works_with_the_pins(black_holed: Host) -> None:
    pytest.importorskip("ray")
    working = program(black_holed, "one_cluster", LONG_S, **PINS)
    assert (working.exit_code, "node 127.0.0.1: 42" in working.output) == (0, True), working.output
    hanging = program(black_holed, "one_cluster", long_after(working))
    assert (hanging.exit_code, "starting Ray" in hanging.output) == (None, True), hanging.output
    assert "node " not in hanging.output


# -------------------------------------------------------------------------------------------------------- between hosts


def together(*calls: Callable[[], Done]) -> list[Done]:
    """What programs that need each other have come to."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(lambda call: call(), calls))


def test_gloo_between_two_hosts_needs_the_interface_that_the_doctor_names(tmp_path: Path) -> None:
    pytest.importorskip("torch")

    def ranks(name: str, timeout_s: float, **settings: str) -> list[Done]:
        store = str(tmp_path / name)
        return together(
            *(
                partial(program, one, "two_ranks", timeout_s, str(rank), store, **settings)
                for rank, one in enumerate((alpha, beta))
            )
        )

    with two_hosts() as (alpha, beta):
        working = ranks("working", LONG_S, GLOO_SOCKET_IFNAME="good0")
        assert [done.exit_code for done in working] == [0, 0], working
        assert "sum 3" in working[0].output
        hanging = ranks("hanging", long_after(working[0]))
        assert [done.exit_code for done in hanging] == [None, None], hanging


def test_ray_between_two_hosts_with_the_addresses_that_the_doctor_names() -> None:
    pytest.importorskip("ray")

    def start(one: Host, *argv: str) -> Done:
        command = (sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", *argv)
        memory = ("--object-store-memory", f"{80 * 2**20}", "--disable-usage-stats")
        settings = {**ON_A_HOST, "TMPDIR": str(one.directory)}
        return one.run(*command, *memory, timeout_s=LONG_S, env=environment(settings))

    with two_hosts() as (alpha, beta):
        head = start(alpha, "--head", "--port=6379", "--include-dashboard=false", "--node-ip-address=10.78.0.1")
        assert head.exit_code == 0, head.output
        joined = start(beta, "--address=10.78.0.1:6379", "--node-ip-address=10.78.0.2")
        assert joined.exit_code == 0, joined.output
        done = program(alpha, "two_nodes", LONG_S, "10.78.0.1:6379")
        assert done.output.splitlines()[-1].split() == ["10.78.0.1", "10.78.0.2", "alpha", "beta"], done.output


# ------------------------------------------------------------------------------------------------------------- in a run

SUITE = """
import subprocess, sys
import pytest

@pytest.mark.gpus(2)
def test_two_ranks_add():
    done = subprocess.run([sys.executable, "-m", "tests.support.networks.two_ranks"], capture_output=True, text=True)
    assert "sum 3" in done.stdout, done.stdout + done.stderr
"""


def rlharness(one: Host, directory: Path, timeout_s: float, **settings: str) -> tuple[list[str], str]:
    """What `rlharness run` of the suite on a pretended host says: of its network, and at its end."""
    (directory / "test_ranks.py").write_text(SUITE, "utf-8")
    (directory / "pytest.ini").write_text("[pytest]\n", "utf-8")
    record = directory / "events.jsonl"
    argv = ("run", "--gpus", "sim:2", "--timeout", f"{timeout_s:g}", "--grace", "1", "--events", str(record))
    command = ("sh", "-c", 'cd "$0" && exec "$@"', str(directory), sys.executable, "-m", "harness", *argv)
    own = {"PYTEST_TIMEOUT": "0", "XDG_CACHE_HOME": str(directory / "cache")}
    done = one.run(*command, timeout_s=2 * LONG_S, env=environment({**settings, **own}))
    events = [json.loads(line) for line in record.read_text("utf-8").splitlines()]
    (outcome,) = [event["result"]["outcome"] for event in events if event["event"] == "unit_finished"]
    notes = [note for event in events for note in event.get("notes", ()) if "cannot reach its own address" in note]
    assert done.output.count("cannot reach its own address") == len(notes)
    return notes, outcome


def test_a_run_on_a_black_holed_host_passes(black_holed: Host, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (note,), outcome = rlharness(black_holed, tmp_path, LONG_S)
    assert outcome == "passed"
    assert note.startswith("this host cannot reach its own address 10.77.0.2 (eth0): every file is given NCCL_SOCKET")


def test_a_run_that_does_not_look_hangs(black_holed: Host, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert rlharness(black_holed, tmp_path, 15, RLHARNESS_PREFLIGHT="done") == ([], "timed_out")
