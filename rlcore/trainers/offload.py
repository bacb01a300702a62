"""Idle models: weights and optimizer state leave the device, and come back with every bit.

From GPUs, tensors move to host memory, or with a directory to mapped files. From CPUs they move to mapped files, whose
pages the kernel writes to the disk and takes back when memory is short. The files have no name: nothing is left of them
when the process ends, however it ends. Offloaded tensors can be read as before, and keep their strides.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from harness.bits.tensor_digests import tensor_digests
from rlcore.errors import PlacementError
from rlcore.trainers.gradients import is_sharded, local_part

MIN_MAPPED_BYTES = 4096
"""Tensors below one page stay in host memory."""


class OffloadedState:
    """The state of a trainer away from its devices."""

    def __init__(
        self,
        model: nn.Module,
        masters: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        state: Callable[[], dict[str, Tensor]],
        directory: Path | None,
    ) -> None:
        """Move weights and optimizer state away until `wake`; parameters remain the same objects.

        `state` returns all of it by name; `directory` is on a disk with room for it. Raises OSError if the disk is
        full; everything is where it was then.
        """
        own = dict(model.named_parameters())
        self._masters = nn.ParameterList(each for name, each in masters.items() if each is not own[name])
        self._model, self._optimizer, self._state, self._directory = model, optimizer, state, directory
        self._homes: dict[int, torch.device] = {}  # by id of a parameter, and of any other tensor that was moved
        self._digests = self._found()
        try:
            self._move(self._away)
        except BaseException:
            self._move(self._back)
            raise
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()  # the memory that torch keeps for later is for other processes

    def wake(self) -> None:
        """Move everything back. Raises PlacementError for tensors that are not as they were."""
        self._move(self._back)
        found = self._found()
        changed = [name for name, digest in found.items() if digest != self._digests.get(name)]
        if changed:
            raise PlacementError(
                "changed while it was offloaded: "
                + ", ".join(f"{name} ({self._digests.get(name)} became {found[name]})" for name in changed),
                legal="tensors with the digests that they were offloaded with",
                remedy="resume from the last checkpoint; test the memory and the disk of this machine",
            )

    def _found(self) -> dict[str, str]:
        found = {**dict(self._model.named_parameters()), **self._state()}  # a frozen base is no part of the state
        return tensor_digests({name: local_part(tensor.detach()) for name, tensor in found.items()})

    @torch.no_grad()
    def _move(self, move: Callable[[Tensor], Tensor]) -> None:
        """Give every tensor of the state the memory that `move` returns."""
        done: dict[int, tuple[Tensor, Tensor]] = {}

        def once(tensor: Tensor) -> Tensor:
            if id(tensor) not in done:
                done[id(tensor)] = tensor, move(tensor)
            return done[id(tensor)][1]

        for module in (self._model, self._masters):
            cast(Any, module)._apply(once)  # as Module.to does; FSDP2 follows it to its shards; tied ones come twice
        for state in self._optimizer.state.values():
            state.update({kind: once(value) for kind, value in state.items()})

    def _away(self, tensor: Tensor) -> Tensor:
        local = local_part(tensor)
        is_mapped = self._directory is not None and local.nbytes >= MIN_MAPPED_BYTES
        if not local.numel() or (local.device.type == "cpu" and not is_mapped):
            return tensor
        moved = _map(local, self._directory) if is_mapped else torch.empty_like(local, device="cpu")
        found = _like(tensor, moved.copy_(local))
        # A parameter is the same object afterwards. FSDP2 may copy its shard once more, to pad it.
        self._homes[id(tensor if isinstance(tensor, nn.Parameter) else found)] = local.device
        return found

    def _back(self, tensor: Tensor) -> Tensor:
        home = self._homes.pop(id(tensor), None)
        local = local_part(tensor)
        return tensor if home is None else _like(tensor, torch.empty_like(local, device=home).copy_(local))


def _map(tensor: Tensor, directory: Path | None) -> Tensor:
    """Return memory for a tensor in a file of its own, which has no name any more. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        os.posix_fallocate(file.fileno(), 0, tensor.nbytes)  # a full disk is an error here, and a signal later
        flat = torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
    return flat.as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride())


def _like(tensor: Tensor, local: Tensor) -> Tensor:
    """Return a tensor of the kind of another one, with this local memory."""
    if not is_sharded(tensor):
        return local
    from rlcore.trainers.fsdp import sharded_like

    return sharded_like(tensor, local)
