"""Transports to another process of this machine, in chunks so small that the decoders of tests are several."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rlcore.weights.sync import IN_PROCESS
from rlcore.weights.transports.base import Transport
from rlcore.weights.transports.checkpoint import CheckpointTransport
from rlcore.weights.transports.process_group import ProcessGroupTransport
from rlcore.weights.transports.shared_memory import SharedMemoryTransport

TRANSPORTS = ("inline", "shared-memory", "checkpoint", "gloo")
CHUNK_BYTES = 6000
"""The embedding of a decoder is 5,120 bytes, and its queries, keys and values are 8,192: some need a larger block."""


@contextmanager
def opened(name: str, directory: Path) -> Iterator[Transport]:
    """Give a transport by its name."""
    match name:
        case "shared-memory":
            with closing(SharedMemoryTransport(CHUNK_BYTES)) as shared:
                yield shared
        case "checkpoint":
            yield CheckpointTransport(directory, CHUNK_BYTES)
        case "gloo":
            with closing(ProcessGroupTransport(max_chunk_bytes=CHUNK_BYTES, timeout_s=20.0)) as group:
                yield group
        case _:
            yield IN_PROCESS
