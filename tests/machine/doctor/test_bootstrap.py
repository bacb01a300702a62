"""`doctor --distributed` on hosts whose networks hang at a known layer, with torch's own Gloo.

What is broken on a network needs root and network namespaces."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from harness.render.findings import findings_text
from tests.support.finding_checks import as_findings
from tests.support.networks.host import Host, why_not
from tests.support.networks.situations import black_holed_host, good_host, lossy_host

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(200)

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"
RANKS = ["store", "Gloo", "first collective"]


@pytest.fixture
def namespaces() -> None:
    """Says why no host can be made here, where none can."""
    if reason := why_not():
        pytest.skip(reason)


on_pretended_hosts = pytest.mark.usefixtures("namespaces")


@dataclass(frozen=True)
class Examined:
    """What doctor said of a host."""

    exit_code: int
    findings: dict[str, dict[str, Any]]
    named: set[str]
    """The layers that standard error named while it was still being examined."""

    def of(self, severity: str) -> list[str]:
        return [name for name, finding in self.findings.items() if finding["severity"] == severity]


def as_text(examined: Examined, *layers: str) -> str:
    """What a person reads of these layers, without times, line numbers and what torch logs beside them."""
    findings = []
    for layer in layers:
        printed = dict(examined.findings[layer])
        printed["measured"] = re.sub(r"\d+\.\d+ s", "0.1 s", printed["measured"])
        stood = [line for line in printed["details"] if " stood in " in line]
        findings.append(printed | {"details": [re.sub(r":\d+\)$", ")", line) for line in stood], "exports": {}})
    return findings_text(as_findings(findings), took_s=9.0, colour=False) + "\n"


def examine(host: Host | None, **settings: str) -> Examined:
    """Run it there, or on this machine, with an environment that names no address but for `settings`."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "RAY_", "GLOO_"))}
    words = [sys.executable, "-m", "harness", "doctor", "--distributed", "2", "--json"]
    env = {**own, "PYTHONPATH": str(ROOT), **settings}
    command = words if host is None else host.command(words)
    done = subprocess.run(command, env=env, cwd="/tmp", capture_output=True, text=True, check=False)
    said = [line.removeprefix("rlharness: ").partition(": ") for line in done.stderr.splitlines()]
    named = {layer for layer, _, what in said if " hung " in what or " failed " in what}
    findings = [each for each in json.loads(done.stdout)["findings"] if each["check"] != "network"]
    return Examined(done.returncode, {finding["check"]: finding for finding in findings}, named)


@pytest.mark.full
@on_pretended_hosts
def test_a_good_host_passes_every_layer() -> None:
    with good_host() as host:
        examined = examine(host)
    assert examined.exit_code == ExitCode.OK
    assert examined.of("fine") == RANKS
    assert re.fullmatch(r"2 ranks in \d+\.\d\d s", examined.findings["store"]["measured"])


@pytest.mark.full
@on_pretended_hosts
def test_gloo_is_named_where_the_own_address_swallows_everything() -> None:
    with black_holed_host() as host:
        examined = examine(host)
    assert examined.exit_code == ExitCode.TESTS_FAILED
    assert examined.of("broken") == ["Gloo"]
    assert "first collective" not in examined.findings, "nobody came so far"
    gloo = examined.findings["Gloo"]
    assert gloo["measured"] == "rank 0, rank 1 hung while connecting every pair of ranks through Gloo (2 ranks)"
    assert gloo["exports"] == {"GLOO_SOCKET_IFNAME": "lo"}
    assert gloo["remedy"].endswith("# tried: it passes this layer")
    assert any("init_process_group" in line for line in gloo["details"]), "where the ranks stood"
    assert as_text(examined, "store", "Gloo") == (GOLDEN / "doctor_distributed.txt").read_text()
    assert examined.named == set(examined.of("broken"))


@pytest.mark.full
@on_pretended_hosts
def test_the_store_is_named_where_its_address_does_not_answer() -> None:
    with black_holed_host() as host:
        examined = examine(host, MASTER_ADDR="10.77.0.2")
    assert examined.of("broken") == ["store"]
    assert "10.77.0.2" in examined.findings["store"]["measured"]
    assert examined.findings["store"]["exports"] == {"MASTER_ADDR": "127.0.0.1"}
    assert "Gloo" not in examined.findings


@pytest.mark.full
@on_pretended_hosts
def test_the_first_collective_is_named_where_only_small_packets_pass() -> None:
    with lossy_host() as host:
        examined = examine(host)
    assert examined.of("broken") == ["first collective"]
    assert {"store", "Gloo"} <= set(examined.of("fine"))
    collective = examined.findings["first collective"]
    assert collective["exports"] == {}, "no variable mends it"
    assert "MTU" in collective["remedy"]


class Foreign:
    """Somebody else's listener at a port of loopback; `answers` says what it does with those who come."""

    def __init__(self, manner: str) -> None:
        self._manner = manner
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0 if manner == "full" else 50)
        self._connected: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> "Foreign":
        if self._manner == "full":
            for _ in range(3):
                caller = socket.socket()
                caller.setblocking(False)
                caller.connect_ex(self._listener.getsockname())
                self._connected.append(caller)
        else:
            threading.Thread(target=self._accept, daemon=True).start()
        return self

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was shut down: the test is over
            while True:
                caller, _ = self._listener.accept()
                if self._manner == "silent":
                    self._connected.append(caller)
                else:
                    caller.close()

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for opened in (self._listener, *self._connected):
            opened.close()


@pytest.mark.full
@pytest.mark.parametrize("manner", ["silent", "closes", "full"])
def test_a_port_where_somebody_else_listens_is_named_and_nobody_waited_for(manner: str) -> None:
    with Foreign(manner) as foreign:
        examined = examine(None, MASTER_ADDR="localhost", MASTER_PORT=str(foreign.port))
    store = examined.findings["store"]
    assert store["severity"] == "broken"
    assert f"port: {foreign.port}" in store["measured"]
    assert (store["unsets"], store["exports"]) == (["MASTER_PORT"], {})
    assert store["remedy"] == "unset MASTER_PORT   # tried: it passes this layer"
    assert "rank 1 still waited there" in store["measured"], "it was not left to its own limit"
    assert "store" in examined.named
