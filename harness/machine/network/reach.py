"""Can this host open a TCP connection to its own addresses? All of them tried at once, with one limit.

The kernel completes a connection to itself without this process's help, so that a busy machine is not taken for a
broken one.
"""

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from harness.machine.fan_out import fan_out
from harness.machine.network.interfaces import Address
from harness.process.clock import Clock

AT_ONCE = 256
"""Probes at a time, each with two sockets: below the usual limit of 1024 open files."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Result of one connection."""

    problem: str = ""
    """Why there was none; empty where there was one."""
    took_s: float = 0.0
    is_ready: bool = True
    """Whether the address could be bound at all; not yet, for a moment, where IPv6 still looks for duplicates."""

    @property
    def is_reached(self) -> bool:
        """Whether there was a connection."""
        return not self.problem


async def reach_own(addresses: Sequence[Address], clock: Clock, *, limit_s: float) -> dict[str, Reach]:
    """Whether each of this host's `addresses` answers to the host itself within `limit_s` seconds, by address."""

    async def probe(address: Address) -> Reach:
        begun_s = clock.monotonic_s()
        problem, is_ready = "", True
        try:
            await _connect_to_itself(address, limit_s)
        except _CannotBind as error:
            problem, is_ready = str(error), False
        except TimeoutError:
            problem = f"no answer within {limit_s:g} s"
        except OSError as error:
            problem = reason(error)
        return Reach(problem, clock.monotonic_s() - begun_s, is_ready)

    found = await fan_out(probe, addresses, limit=AT_ONCE)
    return {address.text: reach for address, reach in zip(addresses, found, strict=True)}


class _CannotBind(Exception):
    """No socket can be opened at an address that the kernel lists."""


async def _connect_to_itself(address: Address, limit_s: float) -> None:
    """Connect to a port opened at `address`; raises what came instead of a connection."""
    with (
        socket.socket(address.family, socket.SOCK_STREAM) as listener,
        socket.socket(address.family, socket.SOCK_STREAM) as caller,
    ):
        try:
            listener.bind(_numeric(address, 0))
            listener.listen(1)
        except OSError as error:
            raise _CannotBind(f"it cannot be bound ({reason(error)})") from None
        caller.setblocking(False)
        target = _numeric(address, listener.getsockname()[1])
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(caller, target), limit_s)


def _numeric(address: Address, port: int) -> tuple[object, ...]:
    """What the socket calls take; for an address of the link, with its scope."""
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    found = socket.getaddrinfo(address.text, port, address.family, socket.SOCK_STREAM, flags=flags)
    return found[0][4]


def reason(error: OSError) -> str:
    """Return the system's message for `error`."""
    if error.errno and not isinstance(error, socket.gaierror):  # asyncio puts a sentence of its own in its place
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error)).lower()
