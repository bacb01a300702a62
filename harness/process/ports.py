"""Port blocks: every slot of a run has 64 ports of its own, the first of which its attempts see as MASTER_PORT.

Blocks lie outside the range from which the kernel numbers outgoing connections, so that no connection uses one by
chance, and each is claimed machine-wide, so that two runs never share one. Where these are taken, others follow, within
that range too. Where all are taken, an attempt gets one free port: no run fails for want of a block.
"""

import errno
import socket
from collections.abc import Callable
from contextlib import suppress

from harness.bits.errors import UsageError
from harness.process.claims import Claims

BLOCK_SIZE = 64
"""Ports of one block: MASTER_PORT and the ones a test derives from it."""
FIRST_PORT = 20000
"""Where blocks begin by preference: above Ray's default worker ports (10002 to 19999)."""
LAST_PORT = 65535
_EPHEMERAL_FILE = "/proc/sys/net/ipv4/ip_local_port_range"
_DEFAULT_EPHEMERAL = (32768, 60999)
_UNUSABLE = (errno.EADDRINUSE, errno.EACCES)


def read_ephemeral_range() -> tuple[int, int]:
    """First and last port the kernel gives to outgoing connections; Linux's default where it cannot be read."""
    try:
        with open(_EPHEMERAL_FILE, encoding="ascii") as file:
            low, high = map(int, file.read().split())
    except (OSError, ValueError):
        return _DEFAULT_EPHEMERAL
    return low, high


def block_starts(ephemeral: tuple[int, int]) -> tuple[int, ...]:
    """First ports of all blocks, given the first and last ephemeral port: first those outside of that range."""
    low, high = ephemeral
    starts = range(FIRST_PORT, LAST_PORT + 1 - BLOCK_SIZE + 1, BLOCK_SIZE)
    return tuple(sorted(starts, key=lambda port: low - BLOCK_SIZE < port <= high))


def is_listenable(port: int) -> bool:
    """Whether a server could listen on `port` on every address of this machine, IPv4 and IPv6."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            server = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # this kernel has no such family
            continue
        with server:
            # Connections of the slot's last attempt that only wait out their time are no obstacle to a new server.
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind((address, port))
            except OSError as error:
                if error.errno in _UNUSABLE:
                    return False
    return True


class PortBlocks:
    """Gives each slot of a run its block, and a new one if another process uses its first port."""

    def __init__(self, claims: Claims, ephemeral: tuple[int, int]) -> None:
        self._claims = claims
        self._starts = block_starts(ephemeral)
        self._by_slot: dict[int, int] = {}
        self.notes: tuple[str, ...] = ()

    def master_port(self, slot: int) -> int:
        """The first port of the block of `slot`, free at this moment; the same from call to call while it stays free.

        Where every block is taken or in use, one free port, with a note.
        """
        held = self._by_slot.get(slot)
        if held is not None and is_listenable(held):
            return held
        self.release(slot)
        # Blocks that other users hold come last: they share them, and can hold the names of all without using any.
        for claim in (self._claims.try_claim, self._claims.try_claim_past):
            for port in self._starts:
                if port in self._by_slot.values() or not _is_claimed(claim, port):
                    continue
                if is_listenable(port):
                    self._by_slot[slot] = port
                    return port
                self._claims.release(_claim_name(port))
        self.notes = ("all blocks of 64 ports were taken: for some tests, the ports after MASTER_PORT may be in use",)
        with socket.create_server(("", 0)) as server:
            free: int = server.getsockname()[1]
        return free

    def release(self, slot: int) -> None:
        """Give the block of `slot` back, if it has one."""
        port = self._by_slot.pop(slot, None)
        if port is not None:
            self._claims.release(_claim_name(port))


def _is_claimed(claim: Callable[[str], bool], port: int) -> bool:
    with suppress(UsageError, OSError):  # without a cache directory, no block is shared with other users
        return claim(_claim_name(port))
    return False


def _claim_name(port: int) -> str:
    return f"ports-{port}"
