"""The transport through a directory that both processes see: each chunk is a safetensors file, deleted once it is read.

No two files have one name, so that a reader with a cache of paths cannot take an older one for the one it is asked for.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlcore.errors import WeightSyncError
from rlcore.weights.receipts import Check
from rlcore.weights.target import WeightTarget
from rlcore.weights.transports.base import NamedTensors
from rlcore.weights.transports.in_process import chunks
from rlcore.weights.transports.parcels import Attachments, parcel_target


@dataclass(frozen=True, slots=True)
class FileChunk:
    """Tensors in a file."""

    path: str

    def open(self, attachments: Attachments) -> Mapping[str, Tensor]:
        """As `Parcel.open`; raises WeightSyncError where the file is missing or damaged."""
        try:
            return load_file(self.path)
        except (OSError, SafetensorError) as error:
            raise WeightSyncError(
                f"the sampler cannot read {self.path}: {error}",
                check=Check.COVERAGE,
                legal="a complete safetensors file",
                remedy="give the transport a directory that both processes see, with room for a chunk",
            ) from error


@dataclass(frozen=True, slots=True)
class CheckpointTransport:
    """Writes to targets that see a directory of the trainer; files are read at once, and not flushed to the disk."""

    directory: Path
    max_chunk_bytes: int = 1 << 30
    """Size of a file; a tensor that is larger is a file by itself."""

    def __call__(self, weights: NamedTensors, target: WeightTarget) -> list[str]:
        """As `Transport.__call__`; raises InvalidValueError for a target of this process."""
        receiver, written = parcel_target(target, "checkpoint"), list[str]()
        self.directory.mkdir(parents=True, exist_ok=True)
        for chunk in chunks(weights, self.max_chunk_bytes):
            path = self.directory.absolute() / f"weights-{uuid.uuid4().hex}.safetensors"
            try:
                save_file(_separate(chunk), path)
                written += receiver.receive(FileChunk(str(path)))
            finally:
                path.unlink(missing_ok=True)
        return written


def _separate(chunk: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors of which no two share memory, as the format demands: tied ones are written twice."""
    found: dict[str, Tensor] = {}
    addresses: set[int] = set()
    for name, tensor in chunk.items():
        plain = tensor.detach().cpu().contiguous()
        found[name] = plain.clone() if plain.untyped_storage().data_ptr() in addresses else plain
        addresses.add(plain.untyped_storage().data_ptr())
    return found
