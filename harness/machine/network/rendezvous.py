"""Exchange of addresses between several hosts, each of which then tries every address of all hosts.

    listener                                  peers
    control port, probed ports                probed ports
       ──── nonce ────▶ each
       ◀──── hello: name, token, addresses ──── each
    (all there)
       ──── roster: everybody's hello ────▶
    tries every address of everybody          the same
       ◀──── tried ──── each
       ──── all that was tried ────▶
    the same answer from the same facts       the same

Each message is sealed with the key of the meeting (`peer_messages`): only who has it is listened to. A probed port
answers with its host's token. Everything has a limit; nothing here is trusted with more than to say which connections
work.
"""

import asyncio
import re
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from harness.core.errors import NetworkError
from harness.core.fan_out import fan_out
from harness.machine.network.host_matching import Hosts, Offer, PeerHost, Tried
from harness.machine.network.interfaces import HostNetwork
from harness.machine.network.peer_messages import (
    MAX_BYTES,
    MAX_CHARS,
    Seal,
    host_fields,
    read_host,
    read_roster,
    read_tried,
)
from harness.machine.network.reach import reason

TRY_S = 2.0
"""Limit on one connection: a second packet is sent after one second."""
ANSWER_S = 30.0
"""Time for the other hosts to try every address, all at once."""
RETRY_S = 0.2
HELLO_S = 5.0
"""Limit on the first message of a connection."""
AT_ONCE = 128
MAX_UNKNOWN = 64
"""Connections that have not said who they are; more are closed at once."""
NONCE = r"nonce [0-9a-f]{32}\n"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Stream:
    """A connection whose messages are sealed."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    seal: Seal

    async def send(self, kind: str, fields: dict[str, Any]) -> None:
        self.writer.write(self.seal.seal(kind, fields))
        await self.writer.drain()

    async def receive(self, kind: str, limit_s: float) -> dict[str, Any]:
        """The next message; NetworkError where it is of another kind or another key, or does not come."""
        return self.seal.open(await _line(self.reader, kind, limit_s), kind)


async def _line(reader: asyncio.StreamReader, kind: str, limit_s: float) -> bytes:
    try:
        async with asyncio.timeout(limit_s):
            line = await reader.readline()
    except TimeoutError:
        raise NetworkError(f"no {kind} message within {limit_s:g} s") from None
    except ValueError:  # a line without end
        raise NetworkError(f"the message received is not a {kind} message") from None
    if not line:
        raise NetworkError("it closed the connection")
    return line


def new_key() -> str:
    """Return the key of a meeting."""
    return secrets.token_hex(8)


async def listen(
    network: HostNetwork, port: int, *, key: str, num_hosts: int, wait_s: float, say: Say
) -> tuple[Hosts, int]:
    """Wait at `port` for the others of `num_hosts` hosts, and find out who reaches whom; what is known, and 0.

    Raises NetworkError where the port cannot be had, or not all have come within `wait_s` seconds.
    """
    async with _probed(network) as own, AsyncExitStack() as stack:
        arrivals: asyncio.Queue[tuple[PeerHost, _Stream]] = asyncio.Queue()
        num_unknown = 0

        async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal num_unknown
            stack.callback(writer.close)
            if num_unknown >= MAX_UNKNOWN:
                writer.close()
                return
            num_unknown += 1
            try:
                stream = _Stream(reader, writer, Seal(key, secrets.token_hex(16), is_listener=True))
                writer.write(f"nonce {stream.seal.nonce}\n".encode("ascii"))
                host = read_host(await stream.receive("hello", HELLO_S), own)
            except (NetworkError, OSError) as error:  # a port scanner, or another key: not one of ours
                say(f"rejected a connection from {_peer(writer)}: {error}")
                writer.close()
                return
            finally:
                num_unknown -= 1
            say(f"{host.name} is here, from {_peer(writer)}")
            await arrivals.put((host, stream))

        try:
            server = await asyncio.start_server(welcome, port=port, limit=MAX_BYTES)
        except OSError as error:
            raise NetworkError(
                f"--listen {port}: {reason(error)}",
                legal="a TCP port that is free on this host",
                remedy="rlharness doctor --listen PORT, with another port",
            ) from None
        stack.callback(server.close)
        first, *others = meeting_places(network, port)
        beside = f" (this host is also {', '.join(others)})" if others else ""
        say(f"waiting for {num_hosts - 1} more: rlharness doctor --peer {first}/{key}{beside}")
        arrived = await _gather(arrivals, num_hosts - 1, wait_s, port, f"{first}/{key}")
        return await _lead(own, arrived), 0


async def join(network: HostNetwork, peer: tuple[str, int], *, key: str, wait_s: float) -> tuple[Hosts, int]:
    """Meet the host that listens at `peer`; return the facts about all hosts, and this one's index among them.

    Raises NetworkError if no host answers there within `wait_s` seconds, or one with another key.
    """
    async with _probed(network) as own:
        reader, writer = await _call(peer, wait_s)
        try:
            greeting = (await _line(reader, "nonce", HELLO_S)).decode("ascii", "replace")
            if re.fullmatch(NONCE, greeting) is None:
                raise NetworkError("no rlharness doctor of this version listens there")
            stream = _Stream(reader, writer, Seal(key, greeting.split()[1], is_listener=False))
            await stream.send("hello", host_fields(own))
            hosts, number = read_roster(await stream.receive("roster", wait_s + ANSWER_S), own)
            if hosts[number] != own:
                raise NetworkError("the listener mistakes this host for another")
            tried = await _try_all(hosts, number)
            await stream.send("tried", {"tried": [asdict(t) for t in tried]})
            return Hosts(hosts, read_tried(await stream.receive("found", ANSWER_S), len(hosts))), number
        except (OSError, NetworkError) as error:
            raise NetworkError(
                f"{peer[0]}:{peer[1]} ended the exchange: {error}",
                remedy="read the output of rlharness doctor --listen there; its line `waiting for` has the key",
            ) from None
        finally:
            writer.close()


async def _gather(
    arrivals: "asyncio.Queue[tuple[PeerHost, _Stream]]", num_awaited: int, wait_s: float, port: int, place: str
) -> list[tuple[PeerHost, _Stream]]:
    arrived: list[tuple[PeerHost, _Stream]] = []
    try:
        async with asyncio.timeout(wait_s):
            while len(arrived) < num_awaited:
                arrived.append(await arrivals.get())
    except TimeoutError:
        raise NetworkError(
            f"--listen {port}: {len(arrived)} of {num_awaited} other hosts came within {wait_s:g} s",
            legal=f"hosts that can connect to port {port} of this host",
            remedy=f"rlharness doctor --peer {place}, on each; open that port in the firewall",
        ) from None
    return arrived


async def _lead(own: PeerHost, arrived: Sequence[tuple[PeerHost, _Stream]]) -> Hosts:
    """Have every host try every address; NetworkError where one is lost on the way."""
    hosts = (own, *(host for host, _ in arrived))

    async def ask(number: int) -> list[Tried]:
        host, stream = arrived[number - 1]
        try:
            await stream.send("roster", {"you": number, "hosts": [host_fields(each) for each in hosts]})
            return list(read_tried(await stream.receive("tried", ANSWER_S), len(hosts)))
        except (OSError, NetworkError) as error:
            raise NetworkError(
                f"{host.name} ended the exchange: {error}",
                remedy=f"read the output of rlharness doctor --peer on {host.name}",
            ) from None

    parts = await fan_out(lambda n: ask(n) if n else _try_all(hosts, 0), range(len(hosts)), limit=len(hosts))
    found = Hosts(hosts, tuple(tried for part in parts for tried in part))

    async def report(stream: _Stream) -> None:
        with suppress(OSError):  # it was lost after all it had to do: the others are told all the same
            await stream.send("found", {"tried": [asdict(t) for t in found.tried]})
            async with asyncio.timeout(TRY_S):
                await stream.reader.read()  # until it has hung up: then it has everything

    await fan_out(report, [stream for _, stream in arrived], limit=len(hosts))
    return found


# ------------------------------------------------------------------------------------------------------------- probing


async def _try_all(hosts: Sequence[PeerHost], caller: int) -> list[Tried]:
    targets = [(number, offer) for number, host in enumerate(hosts) for offer in host.offers]

    async def one(target: tuple[int, Offer]) -> Tried:
        number, offer = target
        return Tried(caller, number, offer.address, await _problem(hosts[number], offer))

    return await fan_out(one, targets, limit=AT_ONCE)


async def _problem(host: PeerHost, offer: Offer) -> str:
    port = host.ports[0] if offer.family == 4 else host.ports[1]
    try:
        async with asyncio.timeout(TRY_S):
            reader, writer = await asyncio.open_connection(offer.address, port)
            try:
                answer = await reader.readline()
            finally:
                writer.close()
    except TimeoutError:
        return f"no answer within {TRY_S:g} s"
    except OSError as error:
        return reason(error)
    except ValueError:  # a line without end
        return "another host answers there"
    return "" if answer.decode("ascii", errors="replace").strip() == host.token else "another host answers there"


@asynccontextmanager
async def _probed(network: HostNetwork) -> AsyncIterator[PeerHost]:
    """This host, with ports that answer to probes while the context lasts."""
    token = secrets.token_hex(8)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{token}\n".encode("ascii"))
        writer.close()

    async with AsyncExitStack() as stack:
        ports = []
        for anywhere in ("0.0.0.0", "::"):
            try:
                server = await asyncio.start_server(answer, anywhere, 0)
            except OSError:  # this host has no such family
                ports.append(0)
                continue
            stack.callback(server.close)
            ports.append(server.sockets[0].getsockname()[1])
        yield PeerHost(_shown_name(network), token, (ports[0], ports[1]), _offers(network))


def _shown_name(network: HostNetwork) -> str:
    """The name of this host as the others accept one: every other character is an underscore."""
    return re.sub(r"[^\w.:-]", "_", network.host_name)[:MAX_CHARS] or "_"


def meeting_places(network: HostNetwork, port: int) -> tuple[str, ...]:
    """Return the addresses of `port` of this host, "HOST:PORT" each, its address towards the outside first.

    Its name is there only where it has no address but loopback: what a name resolves to here, often 127.0.0.1, says
    nothing of what it resolves to on the others.
    """
    addresses = [offer.address for offer in _offers(network)]
    addresses.sort(key=lambda address: address not in network.outgoing)
    hosts = [f"[{address}]" if ":" in address else address for address in addresses]
    return tuple(f"{host}:{port}" for host in hosts or [network.host_name])


def _offers(network: HostNetwork) -> tuple[Offer, ...]:
    firsts = [(one, one.addresses[0]) for one in network.interfaces if one.is_up and one.addresses]
    return tuple(
        Offer(one.name, first.text, 6 if first.family == socket.AF_INET6 else 4, one.speed_mbps)
        for one, first in firsts
        if not one.is_loopback and "%" not in first.text  # of a link: another host has another name for it
    )


# ------------------------------------------------------------------------------------------------------------ messages


async def _call(peer: tuple[str, int], wait_s: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to `peer`, which may come up later than this host."""
    problem = ""
    try:
        async with asyncio.timeout(wait_s):
            while True:
                try:
                    async with asyncio.timeout(TRY_S):
                        return await asyncio.open_connection(*peer, limit=MAX_BYTES)
                except TimeoutError:
                    problem = "no answer"
                except OSError as error:
                    problem = reason(error)
                await asyncio.sleep(RETRY_S)
    except TimeoutError:
        raise NetworkError(
            f"--peer {peer[0]}:{peer[1]}: {problem or 'no answer'}, for {wait_s:g} s",
            legal="a host on which rlharness doctor --listen waits, and a port that its firewall allows",
            remedy=f"rlharness doctor --listen {peer[1]}, on {peer[0]}",
        ) from None


def _peer(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return str(name[0]) if name else "a disconnected host"
