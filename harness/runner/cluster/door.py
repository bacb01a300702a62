"""Agents that dial a run. Few connections without its key are held at a time, since each may fill a buffer."""

import asyncio
from dataclasses import dataclass, field

from harness.runner.cluster.channel import GREETING_S, Channel, greet

MAX_UNKNOWN = 64
"""Connections that have not shown the key; more are closed at once, and agents dial again."""


@dataclass(slots=True)
class Door:
    """Recognizes the agents of one run."""

    key: str
    _num_unknown: int = field(default=0, init=False)

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Channel | None:
        """Return the channel to an agent; None where too many are waited for, and the connection is closed.

        NetworkError for an agent with another key, OSError where the connection breaks.
        """
        if self._num_unknown >= MAX_UNKNOWN:
            writer.close()
            return None
        self._num_unknown += 1
        try:
            channel = await greet(reader, writer, self.key, is_listener=True)
            await channel.receive(GREETING_S)  # a beat: it has the key
        finally:
            self._num_unknown -= 1
        return channel
