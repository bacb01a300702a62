"""The ranks that train together: small values that they exchange.

Every method is collective: each rank of the group calls it, in the same order.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Ranks:
    """The ranks of a process group, which was created with a timeout."""

    def __init__(self, group: dist.ProcessGroup | None = None, device: str = "cpu") -> None:
        found = group or dist.group.WORLD
        assert found is not None, "the process group is initialized"
        self.group = found
        self.device = device
        """Device of what is exchanged: cuda for a group of NCCL."""
        self.rank = dist.get_rank(self.group)
        self.size = dist.get_world_size(self.group)

    def extent(self, value: int) -> tuple[int, int]:
        """Return the smallest and the largest value of all ranks, by one exchange of a fixed size."""
        both = torch.tensor([value, -value], device=self.device)
        dist.all_reduce(both, op=dist.ReduceOp.MIN, group=self.group)
        smallest, largest_negative = both.tolist()
        return smallest, -largest_negative

    def gather(self, own: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, by rank; all have one type and shape."""
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own.contiguous(), group=self.group)
        return found

    def gather_numbers(self, own: Sequence[float]) -> list[list[float]]:
        """Return the numbers of all ranks, by rank; all have as many. Exact: they travel in fp64."""
        own_values = torch.tensor(own, dtype=torch.float64, device=self.device)
        return [values.tolist() for values in self.gather(own_values)]

    def gather_objects(self, own: Any) -> list[Any]:
        """Return the values of all ranks, by rank; they are pickled."""
        found = [None] * self.size
        dist.all_gather_object(found, own, group=self.group)
        return found

    def broadcast(self, value: Any, source: int) -> Any:
        """Return the value of one rank; it is pickled."""
        values = [value]
        dist.broadcast_object_list(values, group=self.group, group_src=source)
        return values[0]
