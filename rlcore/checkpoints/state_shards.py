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
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from harness.bits.files import check_regular
from rlcore.errors import CheckpointError

if TYPE_CHECKING:
    import torch.distributed as dist

STEP = "step"
_MALFORMED = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError),
    SafetensorError,
)
"""What torch's reader raises for a header that is malformed, or describes what cannot be."""
_REMEDY = "resume from an older checkpoint, or copy this one again"


def write_state(path: Path, state: Mapping[str, Tensor], group: "dist.ProcessGroup | None") -> None:
    """Write a trainer's state into an existing directory; every rank of the group calls it. None: one process alone.

    Raises OSError on every rank if one of them cannot write.
    """
    tensors = {name: tensor.detach() for name, tensor in state.items()}
    if group is None:  # the same format, without torch.distributed, whose import takes seconds
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path / "state.safetensors")
        return
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with _failures():
        save(tensors, storage_writer=HuggingFaceStorageWriter(str(path), save_distributed=True), process_group=group)


def read_state(
    path: Path, parameters: Mapping[str, nn.Parameter], group: "dist.ProcessGroup | None"
) -> dict[str, Tensor]:
    """Read a state, divided as these parameters are; every rank of the group calls it. None: one process reads alone.

    Raises CheckpointError, also for a state of other parameters.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(path))
    try:
        for file in path.glob("*.safetensors"):
            check_regular(file)
        specs: dict[str, Any] = dict(reader.read_metadata().state_dict_metadata)
        _check_state(path, {name: spec.size for name, spec in specs.items()}, parameters)
        found = {name: _empty(name, spec, parameters) for name, spec in specs.items()}
        with _failures():
            load(found, storage_reader=reader, process_group=group, no_dist=group is None)
    except CheckpointError:
        raise
    except (OSError, *_MALFORMED) as error:
        raise CheckpointError(f"{path} cannot be read: {error!r:.300}", remedy=_REMEDY) from error
    return found


def _check_state(path: Path, found: Mapping[str, torch.Size], parameters: Mapping[str, nn.Parameter]) -> None:
    """Check that a state has every parameter, and of each the same kinds of what an optimizer keeps."""
    kinds = {kind for name, _, kind in (each.rpartition(".") for each in found) if name in parameters}
    expected = {name: parameter.shape for name, parameter in parameters.items()}
    for kind in kinds:
        expected |= {f"{name}.{kind}": torch.Size() if kind == STEP else p.shape for name, p in parameters.items()}
    for name in sorted(found.keys() | expected.keys()):
        given, legal = (list(of[name]) if name in of else "absent" for of in (found, expected))
        if given != legal:
            raise CheckpointError(f"{name} of {path} is {given}", legal=f"{legal}, as the model has it")


def _empty(name: str, spec: Any, parameters: Mapping[str, nn.Parameter]) -> Tensor:
    """Return memory to read a tensor into, divided as its parameter; AdamW counts steps on the CPU."""
    dtype, (of, _, kind) = spec.properties.dtype, name.rpartition(".")
    if name not in parameters and kind == STEP:
        return torch.empty(spec.size, dtype=dtype)
    return torch.empty_like(parameters[name if name in parameters else of].detach(), dtype=dtype)


@contextmanager
def _failures() -> Iterator[None]:
    """Raise OSError for what any rank failed with, which torch collects; silence what it says of one process alone."""
    from torch.distributed.checkpoint.api import CheckpointException

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        try:
            yield
        except CheckpointException as error:
            told = "; ".join(f"rank {rank}: {failure[0]!r}" for rank, failure in sorted(error.failures.items()))
            raise OSError(told) from error
