"""Transports to another process of this machine, in chunks so small that the decoders of tests are several."""

from collections.abc import Callable, Mapping

from rlcore.weights.transports.packing import Transport
from rlcore.weights.transports.process_group import ProcessGroup
from rlcore.weights.transports.shared_memory import SharedMemory

CHUNK_BYTES = 6000
"""The embedding of a decoder is 5,120 bytes, and its queries, keys and values are 8,192: some need a larger block."""
TRANSPORTS: Mapping[str, Callable[[], Transport]] = {
    "shared-memory": lambda: SharedMemory(CHUNK_BYTES),
    "gloo": lambda: ProcessGroup(max_chunk_bytes=CHUNK_BYTES, timeout_s=20.0),
}
