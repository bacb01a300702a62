"""The transport to a target that a call in this process reaches: the target copies the tensors, or sends them on."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from rlcore.weights.target import WeightTarget
from rlcore.weights.transports.base import NamedTensors


@dataclass(frozen=True, slots=True)
class InProcessTransport:
    """Writes tensors in chunks, each by one call of the target."""

    max_chunk_bytes: int = 256 << 20
    """Size of a chunk; a tensor that is larger is a chunk by itself."""

    def __call__(self, weights: NamedTensors, target: WeightTarget) -> list[str]:
        """As `Transport.__call__`."""
        written: list[str] = []
        for chunk in chunks(weights, self.max_chunk_bytes):
            written += target.write(chunk)
        return written


def chunks(weights: NamedTensors, max_bytes: int) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors in their order, together up to `max_bytes`, and at least one at a time."""
    chunk: dict[str, Tensor] = {}
    num_bytes = 0
    for name, tensor in weights:
        if chunk and num_bytes + tensor.nbytes > max_bytes:
            yield chunk
            chunk, num_bytes = {}, 0
        chunk[name] = tensor
        num_bytes += tensor.nbytes
    if chunk:
        yield chunk
