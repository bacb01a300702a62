"""A trainer's state in a directory, each rank with a file of its own shards, read back by any number of ranks.

    policy_state/
      shard-00001-model-00001-of-00001.safetensors     rows of weights and moments that rank 0 has, and their offsets
      shard-00002-...                                  rank 1; what several ranks have is written by one of them

torch.distributed.checkpoint divides what is written among the ranks, and finds what each of them reads. Its safetensors
format has no pickle: reading a directory runs no code of it. `rlcore.checkpoints.checkpoint` seals a directory with
checksums, without which a missing file would not be noticed.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from harness.bits.files import check_regular
from rlcore.checkpoints.optimizer_state import STEP
from rlcore.errors import CheckpointError
from rlcore.trainers.base import TrainerState

WEIGHTS, OPTIMIZER = "weights.", "optimizer."
"""Beginnings of the names of tensors in the files."""
_MALFORMED = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError),
    SafetensorError,
)
"""What torch's reader raises for a header that is malformed, or describes what cannot be."""
_REMEDY = "resume from an older checkpoint, or copy this one again"


def write_state(path: Path, state: TrainerState, group: dist.ProcessGroup | None) -> None:
    """Write a state into an existing directory; every rank of the group calls it. None: one process writes alone.

    Raises OSError on every rank if one of them cannot write.
    """
    tensors = {WEIGHTS + name: tensor.detach() for name, tensor in state.weights.items()}
    tensors |= {OPTIMIZER + name: tensor.detach() for name, tensor in state.optimizer.items()}
    writer = HuggingFaceStorageWriter(str(path), save_distributed=True)
    with _quiet(), _failures():
        save(tensors, storage_writer=writer, process_group=group, no_dist=group is None)


def read_state(path: Path, parameters: Mapping[str, nn.Parameter], group: dist.ProcessGroup | None) -> TrainerState:
    """Read a state, divided as these parameters are; every rank of the group calls it. None: one process reads alone.

    What is not of these parameters is read whole, for a trainer to reject. Raises CheckpointError.
    """
    reader = HuggingFaceStorageReader(str(path))
    try:
        num_bytes = _num_bytes(path)
        found = reader.read_metadata().state_dict_metadata
        num_described = sum(map(_described_bytes, found.values()))
    except (OSError, *_MALFORMED) as error:
        raise CheckpointError(f"{path} cannot be read: {error!r:.300}", remedy=_REMEDY) from error
    if num_described > num_bytes:
        raise CheckpointError(
            f"{path} describes {num_described:,} bytes of tensors, and has {num_bytes:,}", remedy=_REMEDY
        )
    if not found:
        raise CheckpointError(f"{path} has no tensor", legal="the state of a trainer, as `write_state` writes it")
    tensors = {name: _empty(name, spec, parameters) for name, spec in found.items()}
    try:
        with _quiet(), _failures():
            load(tensors, storage_reader=reader, process_group=group, no_dist=group is None)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}", remedy=_REMEDY) from error
    return TrainerState(_part(tensors, WEIGHTS), _part(tensors, OPTIMIZER))


def _num_bytes(path: Path) -> int:
    """The bytes of the files with tensors. OSError where one of them is no regular file."""
    files = sorted(path.glob("*.safetensors"))
    for file in files:
        check_regular(file)
    return sum(file.stat().st_size for file in files)


def _described_bytes(spec: object) -> int:
    assert isinstance(spec, TensorStorageMetadata), "files have tensors alone"
    return spec.size.numel() * spec.properties.dtype.itemsize


def _part(tensors: Mapping[str, Tensor], beginning: str) -> dict[str, Tensor]:
    return {name.removeprefix(beginning): tensor for name, tensor in tensors.items() if name.startswith(beginning)}


def _empty(name: str, spec: object, parameters: Mapping[str, nn.Parameter]) -> Tensor:
    """Return memory to read a tensor into: sharded as its parameter is, if it has the same shape."""
    assert isinstance(spec, TensorStorageMetadata), "files have tensors alone"
    dtype = spec.properties.dtype
    of = name.removeprefix(WEIGHTS)
    if name.startswith(OPTIMIZER):
        of, _, kind = name.removeprefix(OPTIMIZER).rpartition(".")
        if kind == STEP:
            return torch.empty(spec.size, dtype=dtype)
    like = parameters.get(of)
    if like is None or like.shape != spec.size:
        return torch.empty(spec.size, dtype=dtype)
    if not isinstance(like, DTensor):
        return torch.empty(spec.size, dtype=dtype, device=like.device)
    local = torch.empty_like(like.to_local(), dtype=dtype)
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch says where one process writes or reads alone, as it was asked to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


@contextmanager
def _failures() -> Iterator[None]:
    """Raise OSError for what any rank failed with, which torch collects."""
    try:
        yield
    except CheckpointException as error:
        told = "; ".join(f"rank {rank}: {failure[0]!r}" for rank, failure in sorted(error.failures.items()))
        raise OSError(told) from error
