"""A connection between a run and an agent: every line is sealed with the key of the run, and checked before it is read.

    agent                                 run
      ◀──── nonce of the run ────
      ───── nonce of the agent ──▶
      ◀──── sealed lines (HMAC-SHA256 over key, both nonces, sender and count) ────▶

Both ends choose a nonce, so neither can be shown the lines of an earlier connection. What is sealed is not secret: the
channel carries no environment of the run and no key, only orders, files of attempts and sources.
"""

import asyncio
import errno
import os
import re
import secrets
from dataclasses import dataclass

from harness.core.errors import NetworkError
from harness.machine.network.peer_messages import Seal
from harness.machine.network.reach import reason
from harness.runner.cluster.messages import MAX_MESSAGE_BYTES, Message, from_text, to_text

GREETING_S = 10.0
DIAL_RETRY_S = 0.2
BEAT_S = 2.0
"""Each end sends something at least this often."""
SILENCE_S = 60.0
"""An end that has not been heard for so long is lost."""
MAX_UNKNOWN = 64
"""Connections that have not shown the key; more are closed at once, since each may fill a buffer. Agents dial again."""
NONCE = re.compile(r"rlharness agent ([0-9a-f]{32})\n")


def new_key() -> str:
    """Return the key of a run."""
    return secrets.token_hex(16)


@dataclass(slots=True)
class Channel:
    """One end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    seal: Seal

    async def send(self, message: Message) -> None:
        """Send a message, and wait while the other end is slow; OSError where the connection is gone."""
        self.post(message)
        await self.writer.drain()

    def post(self, message: Message) -> None:
        """Send a message without waiting."""
        if not self.writer.is_closing():
            self.writer.write(self.seal.seal_text(to_text(message)))

    async def receive(self, limit_s: float = SILENCE_S) -> Message:
        """Return the next message; NetworkError where none comes in time, or one that is not sealed as it must be."""
        try:
            async with asyncio.timeout(limit_s):
                line = await self.reader.readline()
        except TimeoutError:
            raise NetworkError(f"nothing was heard for {limit_s:g} s") from None
        except ValueError:  # a line without end
            raise NetworkError(f"a message is longer than {MAX_MESSAGE_BYTES} bytes") from None
        except OSError as error:
            raise NetworkError(f"the connection broke: {reason(error)}") from None
        if not line.endswith(b"\n"):
            raise NetworkError("the connection was closed")
        return from_text(self.seal.open_text(line, "next"))

    def close(self) -> None:
        """Close the connection, without waiting for what is not sent yet."""
        self.writer.close()


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str, *, is_listener: bool) -> Channel:
    """Exchange nonces; NetworkError where the other end is no rlharness, OSError where it closes the connection."""
    own = secrets.token_hex(16)
    writer.write(f"rlharness agent {own}\n".encode("ascii"))
    try:
        async with asyncio.timeout(GREETING_S):
            line = await reader.readline()
    except (TimeoutError, ValueError):  # silence, or a line without end
        line = b"?"
    if not line:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    match = NONCE.fullmatch(line.decode("ascii", "replace"))
    if match is None:
        raise NetworkError("no rlharness of this version answers there")
    nonces = (own, match[1]) if is_listener else (match[1], own)
    return Channel(reader, writer, Seal(key, "".join(nonces), is_listener=is_listener))


class Door:
    """Lets in who has the key of a run."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._num_unknown = 0

    async def enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Channel | None:
        """Return the channel to an agent; None while MAX_UNKNOWN others wait, whose connections are closed.

        NetworkError or OSError for anybody without the key.
        """
        if self._num_unknown >= MAX_UNKNOWN:
            writer.close()
            return None
        self._num_unknown += 1
        try:
            channel = await greet(reader, writer, self._key, is_listener=True)
            await channel.receive(GREETING_S)  # a beat
        finally:
            self._num_unknown -= 1
        return channel


async def dial(address: tuple[str, int], key: str, wait_s: float) -> Channel:
    """Connect to the run that listens at `address`; NetworkError where none answers within `wait_s` seconds."""
    problem = "no answer"
    try:
        async with asyncio.timeout(wait_s):
            while True:
                try:
                    return await _dial_once(address, key)
                except OSError as error:
                    problem = reason(error)
                await asyncio.sleep(DIAL_RETRY_S)
    except TimeoutError:
        raise NetworkError(
            f"{address[0]}:{address[1]}: {problem}, for {wait_s:g} s",
            legal="the address at which rlharness run --cluster waits",
            remedy="start the run first, and let this host reach that port",
        ) from None


async def _dial_once(address: tuple[str, int], key: str) -> Channel:
    """Connect once; OSError if no run listens, or if it closes the connection, as it does while many dial."""
    reader, writer = await asyncio.open_connection(*address, limit=MAX_MESSAGE_BYTES)
    try:
        return await greet(reader, writer, key, is_listener=False)
    except (NetworkError, OSError):
        writer.close()
        raise
