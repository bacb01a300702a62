"""Gradients of fully sharded weights, summed over the passes of an update where FSDP would scatter a sum each pass.

    pass 0   gradients of one module ──all-to-all──▶ this rank's shard of each rank's ──▶ canonical tree
    pass 1   ...
    last     canonical tree ──sum over replicas──▶ this rank's shard of each gradient, fp32

A rank that has no microbatch in a pass makes a dummy one, since the others wait for it; nothing of it is added.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter  # torch has no public name for it
from torch.distributed.tensor import DTensor

from rlcore.errors import InvalidValueError
from rlcore.numerics.tree_sum import TreeSum
from rlcore.trainers.assignment import Assignment
from rlcore.trainers.rank_grid import RankGrid
from rlcore.trainers.reductions import canonical_sum, flat_nodes, native_sum


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


class RoundSum(ReduceScatter):
    """The sum of one module's gradients over the passes of an update; FSDP calls it after each backward pass.

    What FSDP itself takes for gradients are zeros, which its caller drops: it would round them to the type of the
    parameters before the clip, and add them up in it.
    """

    def __init__(self, rounds: Rounds, module: str, parameters: Sequence[nn.Parameter]) -> None:
        self._rounds = rounds
        self._module = module
        self._parameters = parameters
        """Sharded parameters in the order in which FSDP lays their gradients beside each other."""
        size = rounds.grid.shard.size
        self._sizes = [-(-each.shape[0] // size) * each.shape[1:].numel() for each in parameters]
        self._tree: TreeSum | None = None
        self._running: Tensor | None = None
        self._total: Tensor | None = None

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
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
        """Add a pass; with the last one, sum over replicas too."""
        if input_tensor.numel() != sum(self._sizes) * self._rounds.grid.shard.size:
            raise self._incomplete()
        if self._rounds.is_canonical:
            self._add_canonical(input_tensor)
        else:
            self._add_native(input_tensor)
        if self._rounds.is_last:
            self._total = self._over_replicas()
        output_tensor.zero_()

    def take(self) -> Iterator[tuple[nn.Parameter, DTensor]]:
        """Yield the gradient of each parameter, sharded as it is, and forget it. Raises InvalidValueError."""
        if self._total is None:
            raise self._incomplete()
        parts, self._total = torch.split(self._total, self._sizes), None
        for parameter, part in zip(self._parameters, parts, strict=True):
            assert isinstance(parameter, DTensor)
            local = part[: parameter.to_local().numel()].view(parameter.to_local().shape)
            mesh, placements = parameter.device_mesh, parameter.placements
            yield (
                parameter,
                DTensor.from_local(
                    local, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
                ),
            )

    def reset(self) -> None:
        """Forget what was added: an update that failed leaves nothing for the next one."""
        self._tree = self._running = self._total = None

    def _incomplete(self) -> InvalidValueError:
        return InvalidValueError(
            f"a pass without the gradient of some parameter of {self._module}",
            legal="a gradient for every parameter of a sharded model",
            remedy="replicated weights, or a loss that reads every parameter",
        )

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

    def _over_replicas(self) -> Tensor:
        """Return the sum over all passes and replicas, fp32, and forget the passes."""
        grid, assignment = self._rounds.grid, self._rounds.assignment
        tree, running = self._tree, self._running
        self.reset()
        if running is not None:
            return native_sum(grid.replicate, running)
        assert tree is not None, "passes come first"
        return canonical_sum(grid.replicate, grid.by_replica(assignment), flat_nodes([tree]), sum(self._sizes))
