"""The other ranks: a Gloo group of the sentinel's own, over which they exchange a few values now and then.

The group is its own, so that no collective of the program is delayed or reordered. Only the ranks of one domain make
it, at their first comparison. A rank that has died is noticed at once by its closed connection; one that does not come
is waited for as long as the program's own collectives wait.
"""

import platform
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from harness.recording.cuda_state import is_used
from harness.recording.sentinel.sentinel_report import Location


class PeerLost(Exception):
    """Not every rank came to a comparison: one died, or does other work."""


class Peers:
    """The ranks of one domain."""

    def __init__(self, ranks: tuple[int, ...], timeout_s: float | None) -> None:
        self.ranks = ranks
        self._timeout = default_timeout() if timeout_s is None else timedelta(seconds=timeout_s)
        self._group: distributed.ProcessGroup | None = None
        self._locations: tuple[Location, ...] = ()

    @property
    def locations(self) -> tuple[Location, ...]:
        """Where the ranks run, after `meet`."""
        return self._locations

    def meet(self) -> None:
        """Make the group, once; PeerLost if a rank does not come."""
        if self._group is not None:
            return
        try:
            self._group = distributed.new_group(
                list(self.ranks), timeout=self._timeout, backend="gloo", use_local_synchronization=True
            )
        except (RuntimeError, ValueError) as error:
            raise PeerLost(_first_line(error)) from None
        self._locations = tuple(self.gather(this_location()).values())

    def gather(self, value: Any) -> dict[int, Any]:
        """Return the value of each rank, by rank; PeerLost if one of them does not come."""
        answers: list[Any] = [None] * len(self.ranks)
        try:
            distributed.monitored_barrier(group=self._group, timeout=self._timeout, wait_all_ranks=True)
            distributed.all_gather_object(answers, value, group=self._group)
        except RuntimeError as error:  # torch.distributed.DistError is one
            raise PeerLost(_first_line(error)) from None
        return dict(zip(self.ranks, answers, strict=True))

    def broadcast(self, tensor: torch.Tensor | None, source: int) -> torch.Tensor:
        """Return the bytes of the tensor of rank `source`, uint8 on the host; the other ranks may have none."""
        data = torch.empty(0, dtype=torch.uint8)
        if tensor is not None and distributed.get_rank() == source:
            data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).clone()
        num_bytes = torch.tensor([data.numel()])
        try:
            distributed.broadcast(num_bytes, source, group=self._group)
            if distributed.get_rank() != source:
                data = torch.empty(int(num_bytes), dtype=torch.uint8)
            distributed.broadcast(data, source, group=self._group)
        except RuntimeError as error:
            raise PeerLost(_first_line(error)) from None
        return data


def default_timeout() -> timedelta:
    """How long the program's own collectives wait."""
    world = distributed.group.WORLD
    assert world is not None
    timeout: timedelta = world._get_backend(world._device_types[0]).options._timeout
    return timeout


def this_location() -> Location:
    """Where this process runs."""
    device = "CPU"
    if is_used():
        index = torch.cuda.current_device()
        properties: Any = torch.cuda.get_device_properties(index)
        device = f"GPU {index} {properties.name} {getattr(properties, 'uuid', '')}".strip()
    return Location(distributed.get_rank(), platform.node(), device)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason given'}"
