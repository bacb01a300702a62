"""Hosts that meet, played by tasks of one process; in namespaces of their own they meet in test_namespaces."""

import asyncio
import json
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from harness.core.errors import NetworkError, UsageError
from harness.machine.network.among_hosts import parse_peer
from harness.machine.network.host_matching import Hosts, choose
from harness.machine.network.interfaces import HostNetwork
from harness.machine.network.rendezvous import join, listen, meeting_places
from tests.machine.network.machines import interface, network

T = TypeVar("T")
OWN = interface("eth0", "127.0.0.1/8", "127.0.0.3/8")  # addresses of this machine, that can be tried
OTHER = interface("eth1", "127.0.0.2/8")
OF_A_LINK = interface("eth2", "fe80::1%eth2/64")
DOWN = interface("eth3", "10.0.0.1/8", is_up=False)


def named(name: str) -> HostNetwork:
    return network(OWN, OTHER, OF_A_LINK, DOWN, interface("eth4"), host_name=name)


async def meeting(
    *peers: Coroutine[Any, Any, T], num_hosts: int, wait_s: float = 20
) -> tuple[tuple[Hosts, int], list[T], list[str]]:
    """A listener and its `peers`, which are made with `PORT` below, together."""
    said: list[str] = []
    listening = asyncio.create_task(listen(named("alpha"), PORT, num_hosts=num_hosts, wait_s=wait_s, say=said.append))
    joined = await asyncio.gather(*peers)
    return await listening, list(joined), said


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


PORT = _free_port()


def test_all_know_the_same() -> None:
    peers = [join(named(name), ("127.0.0.1", PORT), wait_s=20) for name in ("beta", "gamma")]
    (known, own), joined, said = asyncio.run(meeting(*peers, num_hosts=3))
    assert own == 0
    assert {number for _, number in joined} == {1, 2}
    assert [hosts == known for hosts, _ in joined] == [True, True]
    assert {host.name for host in known.hosts} == {"alpha", "beta", "gamma"}
    for hosts, number in joined:
        assert hosts.hosts[number].name in ("beta", "gamma")
    assert [offer.address for offer in known.hosts[0].offers] == ["127.0.0.1", "127.0.0.2"]
    assert len(known.tried) == 3 * 3 * 2
    assert [tried.problem for tried in known.tried] == [""] * 18
    assert [offer.interface for offer in choose(known)] == ["eth0"] * 3
    where = f"127.0.0.1:{PORT} (this host is also 127.0.0.2:{PORT})"
    assert said[0] == f"waiting for 2 more: rlharness doctor --peer {where}"
    assert len(said) == 3


def test_an_address_at_which_another_host_answers_is_not_this_hosts() -> None:
    async def impostor() -> None:
        """Says hello, and that its probed port is one at which nobody knows its token."""
        strangers = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = strangers.sockets[0].getsockname()[1]
        reader, writer = await call()
        offer = {"interface": "docker0", "address": "127.0.0.1", "family": 4}
        hello = {"k": "hello", "version": 1, "name": "eve", "token": "t", "ports": [port, 0], "offers": [offer]}
        await tell(writer, hello)
        await reader.readline()
        await tell(writer, {"k": "tried", "tried": []})
        await reader.readline()
        writer.close()
        strangers.close()

    (known, _), _, _ = asyncio.run(meeting(impostor(), num_hosts=2))
    assert {t.problem for t in known.tried if t.host == 1} == {"another host answers there"}
    assert {t.problem for t in known.tried if t.host == 0} == {""}


async def call() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for _ in range(1000):
        try:
            return await asyncio.open_connection("127.0.0.1", PORT)
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
    raise AssertionError("nobody listens")


async def tell(writer: asyncio.StreamWriter, message: object) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.0\r\n",
        b"[]\n",
        b'{"k":"hello","version":7,"name":"x","token":"t","ports":[1,0],"offers":[]}\n',
        b'{"k":"hello","version":1}\n',
        b"\xff\n",
        b"",
    ],
)
def test_who_is_none_of_them_is_sent_away(line: bytes) -> None:
    async def stranger() -> None:
        reader, writer = await call()
        writer.write(line)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()

    async def all_of_them() -> tuple[tuple[Hosts, int], list[object], list[str]]:
        async def after() -> object:
            await stranger()
            return await join(named("beta"), ("127.0.0.1", PORT), wait_s=20)

        return await meeting(after(), num_hosts=2)

    (known, _), _, said = asyncio.run(all_of_them())
    assert [host.name for host in known.hosts] == ["alpha", "beta"]
    assert said[1].startswith("rejected a connection from 127.0.0.1")


def test_a_host_that_is_lost_on_the_way_is_said() -> None:
    async def lost() -> None:
        reader, writer = await call()
        hello = {"k": "hello", "version": 1, "name": "beta", "token": "t", "ports": [9, 0], "offers": []}
        await tell(writer, hello)
        await reader.readline()
        writer.close()

    with pytest.raises(NetworkError, match="beta ended the exchange: it closed the connection"):
        asyncio.run(meeting(lost(), num_hosts=2))


def test_a_listener_that_is_lost_is_said() -> None:
    async def joining() -> None:
        def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            await join(named("beta"), ("127.0.0.1", port), wait_s=5)
        finally:
            server.close()

    with pytest.raises(NetworkError, match=r"127\.0\.0\.1:\d+ ended the exchange: "):
        asyncio.run(joining())


def test_a_listener_that_makes_up_this_hosts_interfaces_is_not_believed() -> None:
    async def joining() -> None:
        async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            told = json.loads(await reader.readline())
            told["offers"][0]["interface"] = "eth0; reboot"
            await tell(writer, {"k": "roster", "you": 0, "hosts": [told]})
            writer.close()

        server = await asyncio.start_server(lie, "127.0.0.1", 0)
        try:
            await join(named("beta"), ("127.0.0.1", server.sockets[0].getsockname()[1]), wait_s=5)
        finally:
            server.close()

    with pytest.raises(NetworkError, match="ended the exchange: the listener mistakes this host for another"):
        asyncio.run(joining())


def test_who_waits_in_vain_says_for_what() -> None:
    with pytest.raises(NetworkError, match=r"0 of 1 other hosts came within 0\.2 s") as waited:
        asyncio.run(meeting(num_hosts=2, wait_s=0.2))
    assert waited.value.remedy.startswith(f"rlharness doctor --peer 127.0.0.1:{PORT}, on each")
    with pytest.raises(NetworkError, match=f"--peer 127.0.0.1:{PORT}: connection refused, for 0.3 s") as refused:
        asyncio.run(join(named("beta"), ("127.0.0.1", PORT), wait_s=0.3))
    assert refused.value.remedy == f"rlharness doctor --listen {PORT}, on 127.0.0.1"


def test_a_port_that_is_taken() -> None:
    async def twice() -> None:
        taken = await asyncio.start_server(lambda reader, writer: None, port=PORT)
        try:
            await listen(named("alpha"), PORT, num_hosts=2, wait_s=1, say=lambda text: None)
        finally:
            taken.close()

    with pytest.raises(NetworkError, match=f"--listen {PORT}: .*address already in use"):
        asyncio.run(twice())


def test_others_are_sent_to_an_address_and_not_to_a_name() -> None:
    docker, wide = interface("docker0", "172.17.0.1/16"), interface("eth0", "10.0.0.5/24", "fd00::5/64")
    six = interface("eth1", "fd00::7/64")
    there = network(docker, wide, six, DOWN, host_name="alpha", outgoing=("10.0.0.5",))
    assert meeting_places(there, 29400) == ("10.0.0.5:29400", "172.17.0.1:29400", "[fd00::7]:29400")
    assert meeting_places(network(six, host_name="alpha"), 1) == ("[fd00::7]:1",)
    assert meeting_places(network(OF_A_LINK, DOWN, host_name="alpha"), 1) == ("alpha:1",)
    for place in meeting_places(there, 29400):
        assert parse_peer(place)[1] == 29400


def test_peers_as_they_are_typed() -> None:
    assert parse_peer("node7:29400") == ("node7", 29400)
    assert parse_peer("[fd00::1]:29400") == ("fd00::1", 29400)
    for text in ("node7", ":29400", "node7:", "node7:0", "node7:65536", "node7:x", ""):
        with pytest.raises(UsageError, match=r"is not HOST:PORT"):
            parse_peer(text)
