"""The machine's network, read for real, and NCCL's own files."""

import asyncio
import errno
import pwd
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from harness.machine.network.interfaces import (
    is_loopback,
    is_numeric,
    reach_own,
    read_interfaces,
    read_nccl_settings,
    read_network,
    reason,
)


def test_loopback_is_read_as_it_is() -> None:
    loopback = next(one for one in read_interfaces() if one.is_loopback)
    assert (loopback.is_up, loopback.addresses[0]) == (True, "127.0.0.1")


def test_ipv4_comes_first() -> None:
    for one in read_interfaces():
        families = [":" in address for address in one.addresses]
        assert families == sorted(families)


def test_names_are_resolved() -> None:
    network = asyncio.run(read_network(("localhost", "no such name"), limit_s=10))
    assert network.resolved["no such name"] == ()
    assert "127.0.0.1" in network.resolved["localhost"]
    assert network.host_name in network.resolved
    assert all(network.interface_of(address) for address in network.outgoing)


def test_one_name_that_takes_too_long_is_left_out_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, let_go = socket.getaddrinfo, threading.Event()

    def slow(host: Any, *args: Any, **options: Any) -> Any:
        if host == "slow":
            let_go.wait()
        return answer(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    network = asyncio.run(read_network(("slow", "localhost"), limit_s=1))
    assert set(network.resolved) == {network.host_name, "localhost"}
    let_go.set()


def test_nccls_files_lie_under_the_environment(tmp_path: Path) -> None:
    user, machine = tmp_path / "user.conf", tmp_path / "machine.conf"
    user.write_text("# a comment=1\nA=user\nB=user\nB=twice\nno equals sign\nC=x=y\n", "utf-8")
    machine.write_text("A=machine\nD=machine\n", "utf-8")
    environ = {"A": "environment", "NCCL_CONF_FILE": str(user)}
    told = read_nccl_settings(environ, str(machine))
    assert told == {**environ, "B": "user", "C": "x=y", "D": "machine"}
    assert read_nccl_settings({"A": "1", "NCCL_CONF_FILE": str(tmp_path / "none")}, str(tmp_path)) == {
        "A": "1",
        "NCCL_CONF_FILE": str(tmp_path / "none"),
    }


def test_a_user_without_an_entry_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert read_nccl_settings({"A": "1"}, str(tmp_path)) == {"A": "1"}


def test_kinds_of_addresses() -> None:
    assert [is_numeric(text) for text in ("10.0.0.1", "fe80::1%eth0", "node7", "")] == [True, True, False, False]
    assert [is_loopback(text) for text in ("127.3.2.1", "::1", "10.0.0.1")] == [True, True, False]


# ---- reach ----


def test_own_addresses_answer_and_others_cannot_be_bound() -> None:
    addresses = ["127.0.0.1", "192.0.2.77"]
    found = asyncio.run(reach_own(addresses, limit_s=5))
    assert found["127.0.0.1"] == ""
    assert "cannot be bound" in found["192.0.2.77"]


def test_no_addresses_at_all() -> None:
    assert asyncio.run(reach_own([], limit_s=1)) == {}


def test_no_socket_is_left_open() -> None:
    addresses = [f"127.0.0.{n}" for n in range(1, 50)]
    asyncio.run(reach_own(addresses, limit_s=5))  # an open one is a ResourceWarning, and an error here


def test_reasons_are_the_systems_own_words() -> None:
    assert reason(OSError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.1', 5)")) == "connection refused"
    assert reason(socket.gaierror(socket.EAI_NONAME, "Name or service not known")) == "name or service not known"
    assert reason(OSError("Multiple exceptions: a, b")) == "multiple exceptions: a, b"
