"""Gradients of fully sharded weights, summed over the passes of an update where FSDP would scatter a sum each pass.

    pass 0   gradients of one module ──all-to-all──▶ this rank's shard of each rank's ──▶ canonical tree
    pass 1   ...
    last     canonical tree ──sum over replicas──▶ what FSDP gives the parameters as their gradient

A rank that has no microbatch in a pass makes a dummy one, since the others wait for it; nothing of it is added.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter  # torch has no public name for it

from rlcore.errors import InvalidValueError
from rlcore.numerics.tree_sum import TreeSum
from rlcore.trainers.assignment import Assignment
from rlcore.trainers.rank_grid import RankGrid
from rlcore.trainers.reductions import canonical_sum, native_sum, node_rows


class Rounds:
    """The passes of an update that the ranks of a replica make in lockstep; all modules see the same one."""

    def __init__(self, grid: RankGrid, *, is_canonical: bool) -> None:
        self.grid = grid
        self.is_canonical = is_canonical
        self.assignment = Assignment(1, ())
        """What all ranks compute in this update."""
        self.numbers: tuple[int | None, ...] = ()
        """Microbatch of each rank of this replica in the pass."""
        self.is_last = False

    def begin(self, assignment: Assignment, number: int) -> None:
        """Begin a pass."""
        own = self.grid.of_replica(assignment)
        self.assignment, self.numbers = assignment, own.in_round(number)
        self.is_last = number == own.num_rounds - 1


class RoundSum(ReduceScatter):  # type: ignore[misc]
    """The sum of one module's gradients over the passes of an update; FSDP calls it after each backward pass."""

    def __init__(self, rounds: Rounds, module: nn.Module, num_elements: int) -> None:
        self._rounds = rounds
        self._module = module
        self._num_elements = num_elements
        self._tree: TreeSum | None = None
        self._running: Tensor | None = None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate a buffer."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: object,
        async_op: bool = False,
    ) -> None:
        """Add a pass; write the sum of all passes in the last one, and zeros before it."""
        if input_tensor.numel() != self._num_elements:
            raise InvalidValueError(
                f"a pass gave {input_tensor.numel()} of the {self._num_elements} gradients of a"
                f" {type(self._module).__name__}, padding included",
                legal="a gradient for every parameter of a sharded model",
                remedy="replicated weights, or a loss that reads every parameter",
            )
        if self._rounds.is_canonical:
            self._add_canonical(input_tensor)
        else:
            self._add_native(input_tensor)
        if self._rounds.is_last:
            output_tensor.copy_(self._total(len(output_tensor)))
        else:
            output_tensor.zero_()

    def reset(self) -> None:
        """Forget what was added: an update that failed leaves nothing for the next one."""
        self._tree = self._running = None

    def _add_canonical(self, gradients: Tensor) -> None:
        """Add this rank's shard of each rank's gradients to the tree, in fp32, in memory of its own."""
        shard = self._rounds.grid.shard
        received = torch.empty_like(gradients)
        dist.all_to_all_single(received, gradients, group=shard.group)
        if self._tree is None:
            self._tree = TreeSum(self._rounds.assignment.num_microbatches)
        for number, row in zip(self._rounds.numbers, received.view(shard.size, -1), strict=True):
            if number is not None:
                self._tree.add(number, row.to(torch.float32, copy=True))

    def _add_native(self, gradients: Tensor) -> None:
        """Let the library add the ranks' gradients, and keep a running sum in fp32."""
        shard = self._rounds.grid.shard
        if self._rounds.numbers[shard.rank] is None:
            gradients.zero_()
        rows = list(gradients.float().view(shard.size, -1))
        own = torch.empty_like(rows[0])
        dist.reduce_scatter(own, rows, group=shard.group)
        self._running = own if self._running is None else self._running.add_(own)

    def _total(self, num_elements: int) -> Tensor:
        """Return the sum over all passes and replicas, and forget it."""
        grid, assignment = self._rounds.grid, self._rounds.assignment
        tree, running = self._tree, self._running
        self.reset()
        if running is not None:
            return native_sum(grid.replicate, running)
        assert tree is not None, "passes come first"
        nodes = list(tree.nodes())
        shape = torch.Size([num_elements])
        return canonical_sum(
            grid.replicate, grid.by_replica(assignment), node_rows([tree], [shape], len(nodes), grid.shard.device)
        )
