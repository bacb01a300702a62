"""Idle roles: weights and optimizer state leave the device, and come back with every bit.

    state = offload(model, optimizer, directory=Path("scratch"))   # the role is idle; its memory serves others
    state.wake()                                                   # digests are compared: PlacementError names a tensor

From GPUs, tensors move to host memory, or with `directory` to mapped files. From CPUs they move to mapped files, whose
pages the kernel writes to the disk and takes back when memory is short. The files have no name: nothing is left of them
when the process ends, however it ends. Offloaded tensors can be read as before, and keep their strides.
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harness.bits.tensor_digests import tensor_digests
from rlcore.checkpoints.optimizer_state import optimizer_tensors
from rlcore.errors import InvalidValueError, PlacementError
from rlcore.trainers.local_parts import local_part

MIN_MAPPED_BYTES = 4096
"""Tensors below one page stay in host memory."""


class OffloadedState:
    """State of a model and its optimizer that is away from its devices; made by `offload`."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, directory: Path | None) -> None:
        self._model, self._optimizer = model, optimizer
        self._homes: dict[int, torch.device] = {}  # by id of a parameter, and of any other tensor that was moved
        self._addresses: set[int] = set()
        self.digests = tensor_digests(state_tensors(model, optimizer))
        """By name, when the state was offloaded."""
        try:
            _move(model, optimizer, partial(self._away, directory))
        except BaseException:
            _move(model, optimizer, self._back)
            raise
        self.is_awake = False
        found = state_tensors(model, optimizer).values()
        self.num_bytes = sum(each.nbytes for each in found if each.data_ptr() in self._addresses)
        """Bytes that left their devices, or are in files."""
        _return_cached_memory()

    def wake(self) -> None:
        """Move everything back. Raises PlacementError for tensors that are not as they were, and if it is awake."""
        if self.is_awake:
            raise PlacementError("the state is awake", remedy="offload it again before the next wake")
        _move(self._model, self._optimizer, self._back)
        self.is_awake = True
        found = tensor_digests(state_tensors(self._model, self._optimizer))
        changed = [name for name in sorted(found.keys() | self.digests.keys()) if _differ(name, found, self.digests)]
        if changed:
            raise PlacementError(
                "changed while it was offloaded: "
                + ", ".join(f"{name} ({self.digests.get(name)} became {found.get(name)})" for name in changed),
                legal="tensors with the digests that they were offloaded with",
                remedy="resume from the last checkpoint; test the memory and the disk of this machine",
            )

    def _away(self, directory: Path | None, tensor: Tensor) -> Tensor:
        local = local_part(tensor)
        is_mapped = directory is not None and local.nbytes >= MIN_MAPPED_BYTES
        if not local.numel() or (local.device.type == "cpu" and not is_mapped):
            return tensor
        moved = _map(local, directory) if is_mapped else torch.empty_like(local, device="cpu")
        found = _like(tensor, moved.copy_(local))
        # A parameter is the same object afterwards. FSDP2 may copy its shard once more, to pad it.
        self._homes[id(tensor if isinstance(tensor, nn.Parameter) else found)] = local.device
        self._addresses.add(moved.data_ptr())
        return found

    def _back(self, tensor: Tensor) -> Tensor:
        home = self._homes.pop(id(tensor), None)
        local = local_part(tensor)
        return tensor if home is None else _like(tensor, torch.empty_like(local, device=home).copy_(local))


def offload(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, directory: Path | None = None
) -> OffloadedState:
    """Move weights, buffers and optimizer state away until `wake`; parameters remain the same objects.

    `directory` is on a disk with room for them. Raises InvalidValueError if nothing would be freed, for a gradient that
    has not been used, and OSError if the disk is full; everything is where it was then.
    """
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            raise InvalidValueError(
                f"weights.{name} has a gradient",
                legal="a role between two updates",
                remedy="make the optimizer's step and zero_grad(set_to_none=True) first",
            )
    tensors = state_tensors(model, optimizer)
    if directory is None and all(tensor.device.type == "cpu" for tensor in tensors.values()):
        raise InvalidValueError(
            "offload from cpu to host memory, which frees nothing",
            legal="a state on a GPU, or a directory on a disk",
            remedy="directory=PATH",
        )
    return OffloadedState(model, optimizer, directory)


def state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Tensor]:
    """Return the live tensors of a state by name, local ones of shards: "weights.NAME", "optimizer.NAME.KIND"."""
    named = [*model.named_parameters(), *model.named_buffers()]
    tensors = {f"weights.{name}": local_part(tensor.detach()) for name, tensor in named}
    if optimizer is not None:
        for name, tensor in optimizer_tensors(optimizer, model.named_parameters()).items():
            tensors[f"optimizer.{name}"] = local_part(tensor)
    return tensors


@torch.no_grad()
def _move(model: nn.Module, optimizer: torch.optim.Optimizer | None, move: Callable[[Tensor], Tensor]) -> None:
    """Give every tensor of a state the memory that `move` returns."""
    done: dict[int, tuple[Tensor, Tensor]] = {}

    def once(tensor: Tensor) -> Tensor:
        if id(tensor) not in done:
            done[id(tensor)] = tensor, move(tensor)
        return done[id(tensor)][1]

    module: Any = model
    module._apply(once)  # as Module.to does; FSDP2 follows it to its shards; tied ones are visited twice
    if optimizer is not None:
        for state in optimizer.state.values():
            state.update({kind: move(value) for kind, value in state.items() if isinstance(value, Tensor)})


def _map(tensor: Tensor, directory: Path | None) -> Tensor:
    """Return memory for a tensor in a file of its own, which has no name any more. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        os.posix_fallocate(file.fileno(), 0, tensor.nbytes)  # a full disk is an error here, and a signal later
        flat = torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
    return flat.as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride())


def _like(tensor: Tensor, local: Tensor) -> Tensor:
    """Return a tensor of the kind of another one, with this local memory."""
    if not isinstance(tensor, DTensor):
        return local
    return DTensor.from_local(
        local, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def _differ(name: str, found: dict[str, str], expected: dict[str, str]) -> bool:
    return found.get(name) != expected.get(name)


def _return_cached_memory() -> None:
    """Give the memory that torch keeps for later back to the driver: it is for other processes."""
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        cuda.empty_cache()
