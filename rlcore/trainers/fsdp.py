"""Fully sharded weights (torch's FSDP2) whose gradients are added up to the bits of one process.

    pass 0   every rank of a replica: one microbatch, or a dummy ──backward──▶ gradients ──all-to-all──▶ tree
    pass 1   ...
    last     canonical tree ──sum over replicas──▶ this rank's shard of each gradient, fp32

Passes are collective: a rank that has fewer microbatches than another one of its replica makes dummy passes, whose
gradients are dropped.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter  # torch has no public name for it
from torch.distributed.tensor import DTensor

from harness.bits.tensor_digests import digests_of
from rlcore.data.microbatches import Microbatch
from rlcore.errors import InvalidValueError, NonFiniteError
from rlcore.models.decoder import Decoder
from rlcore.numerics.tree_sum import TreeSum
from rlcore.trainers.gradients import (
    Loss,
    MicrobatchLoss,
    Reading,
    full_tensor,
    local_part,
    non_finite_loss,
    squared_rows,
    trained_parameters,
)
from rlcore.trainers.ranks import Assignment, RankGrid, agree, raise_first
from rlcore.trainers.reductions import Replicas, canonical_sum, flat_nodes, owned
from rlcore.weights.canary import policy_logprobs
from rlcore.weights.source import FetchedTensors, LiveWeights, fetched_decoder
from rlcore.weights.target import ParameterSpec

# Nothing here writes into what a model returns.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


class Shards(Replicas):
    """Adds up the gradients of ranks that hold a shard of each weight, or one of several replicas of it (hybrid)."""

    def __init__(self, model: nn.Module, grid: RankGrid, *, is_canonical: bool) -> None:
        super().__init__(model, grid, is_canonical=is_canonical)
        shard_model(model, grid)
        self.assignment: Assignment = ()
        self.rounds: list[tuple[int | None, ...]] = []
        """Microbatch of each rank of this replica in the passes that are left, in lockstep; None for a dummy pass."""
        self._modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        with_own = [module for module in self._modules if module._get_fsdp_state()._fsdp_param_groups]
        sums = [RoundSum(self, module) for module in with_own]
        self._round_sums = [each for each in sums if each.parameters]

    def backward(self, own: Sequence[Microbatch], loss: Loss) -> tuple[tuple[MicrobatchLoss, ...], list[Tensor]]:
        """Make the passes of this rank; return their losses, and its shards of the sums of all ranks' gradients."""
        self.assignment = agree(self.grid.world, [each.number for each in own])
        dummy, found = self._dummy(own), []
        for each in self._round_sums:
            each.reset()
        failed: tuple[int, NonFiniteError] | None = None
        self.rounds = self._rounds()
        for microbatch, _ in zip_longest(own, self.rounds.copy()):
            computed = loss(self.model, microbatch or dummy)
            if microbatch is not None:
                failed = failed or non_finite_loss(computed.loss, microbatch)
            computed.loss.backward()  # type: ignore[no-untyped-call]
            self.rounds.pop(0)
            found.append(computed._replace(loss=computed.loss.detach()))
            for parameter in self.model.parameters():
                parameter.grad = None  # zeros: `RoundSum` has the sum
        raise_first(self.grid.world, failed)
        by_parameter = {parameter: shard for each in self._round_sums for parameter, shard in each.take()}
        return tuple(found[: len(own)]), [by_parameter[each] for each in trained_parameters(self.model).values()]

    def read(self, microbatches: Sequence[Microbatch], reading: Reading) -> list[Tensor]:
        """Read microbatches, in their order."""
        numbers = self.grid.world.gather_objects(tuple(range(len(microbatches))))
        if not any(numbers):
            return []
        self.assignment = tuple(numbers)
        dummy, found = self._dummy(microbatches), []
        for microbatch, _ in zip_longest(microbatches, self._rounds()):
            found.append(reading(self.model, microbatch or dummy))
        for module in self._modules:
            module.reshard()
        return found[: len(microbatches)]

    def norm(self, gradients: Sequence[Tensor]) -> float:
        """Return the norm of all gradients, bitwise that of `global_norm`.

        A shard never splits the rows of a matrix, and a vector is one row, so vectors are made whole.
        """
        rows = [row_sums(local_part(gradient), gradient.shape) for gradient in gradients if gradient.dim() > 1]
        by_rank = self.grid.shard.gather_objects(torch.cat(rows).tolist() if rows else [])
        vectors = [float(squared_rows(full_tensor(gradient))) for gradient in gradients if gradient.dim() < 2]
        return math.sqrt(math.fsum(chain(*by_rank, vectors)))

    def digests(self, named: Mapping[str, Tensor]) -> dict[str, str]:
        """Return the digest of each whole tensor, on every rank; each is computed by one."""
        own = digests_of(owned(named.items(), self.grid))
        return {name: digest for part in self.grid.world.gather_objects(own) for name, digest in part.items()}

    def weights(self) -> LiveWeights:
        """Return the weights, which are made whole one at a time, on every rank: each question is collective."""
        return ShardedWeights(self)

    def _rounds(self) -> list[tuple[int | None, ...]]:
        size = self.grid.shard.size
        first = self.grid.replicate.rank * size
        return list(zip_longest(*self.assignment[first : first + size])) or [(None,) * size]

    def _dummy(self, own: Sequence[Microbatch]) -> Microbatch:
        """Return what this rank reads in dummy passes: its cheapest microbatch, or another rank's if it has none."""
        cheapest = min(own, key=lambda each: each.num_tokens, default=None)
        if not all(self.assignment):
            source = next(rank for rank, numbers in enumerate(self.assignment) if numbers)
            lent = [cheapest]
            dist.broadcast_object_list(lent, group=self.group, group_src=source)
            cheapest = cheapest or lent[0]
        assert cheapest is not None
        return cheapest


class RoundSum(ReduceScatter):
    """The sum of one module's gradients over the passes of an update; FSDP calls it after each backward pass.

    What FSDP itself takes for gradients are zeros, which its caller drops: it would round them to the type of the
    parameters before the clip, and add them up in it.
    """

    def __init__(self, shards: Shards, module: FSDPModule) -> None:
        """Take over the sums of a module; torch's setters reach one module each."""
        (group,) = module._get_fsdp_state()._fsdp_param_groups  # nothing public tells the order of the gradients
        self._shards, self._name = shards, type(module).__name__.removeprefix("FSDP")
        sharded: list[nn.Parameter] = [each.sharded_param for each in group.fsdp_params]
        self.parameters = [each for each in sharded if each.requires_grad]
        """Those that have a gradient: FSDP leaves the base of adapters out, and is silent about modules without any."""
        size = shards.grid.shard.size
        self._sizes = [-(-each.shape[0] // size) * each.shape[1:].numel() for each in self.parameters]
        module.set_custom_reduce_scatter(self)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # without it a factor needs an operation that Gloo lacks
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
        if input_tensor.numel() != sum(self._sizes) * self._shards.grid.shard.size:
            raise self._incomplete()
        if self._shards.is_canonical:
            self._add_canonical(input_tensor)
        else:
            self._add_native(input_tensor)
        if len(self._shards.rounds) == 1:
            self._total = self._over_replicas()
        output_tensor.zero_()

    def take(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield the gradient of each parameter, sharded as it is, and forget it. Raises InvalidValueError."""
        total = self._total
        self.reset()
        if total is None:
            raise self._incomplete()
        parts = torch.split(total, self._sizes)
        for parameter, part in zip(self.parameters, parts, strict=True):
            local = local_part(parameter)
            yield parameter, sharded_like(parameter, part[: local.numel()].view(local.shape))

    def reset(self) -> None:
        """Forget what was added: an update that failed leaves nothing for the next one."""
        self._tree = self._running = self._total = None

    def _incomplete(self) -> InvalidValueError:
        return InvalidValueError(
            f"a pass without the gradient of some parameter of {self._name}",
            legal="a gradient for every parameter of a sharded model",
            remedy="replicated weights, or a loss that reads every parameter",
        )

    def _add_canonical(self, gradients: Tensor) -> None:
        """Add this rank's shard of each rank's gradients to the tree, in fp32, in memory of its own."""
        shard = self._shards.grid.shard
        received = torch.empty_like(gradients)
        dist.all_to_all_single(received, gradients, group=shard.group)
        self._tree = self._tree or TreeSum(sum(map(len, self._shards.assignment)))
        for number, row in zip(self._shards.rounds[0], received.view(shard.size, -1), strict=True):
            if number is not None:
                self._tree.add(number, row.to(torch.float32, copy=True))

    def _add_native(self, gradients: Tensor) -> None:
        """Let the library add the ranks' gradients, and keep a running sum in fp32."""
        shard = self._shards.grid.shard
        if self._shards.rounds[0][shard.rank] is None:
            gradients.zero_()
        rows = list(gradients.float().view(shard.size, -1))
        own = torch.empty_like(rows[0])
        dist.reduce_scatter(own, rows, group=shard.group)
        self._running = own if self._running is None else self._running.add_(own)

    def _over_replicas(self) -> Tensor:
        """Return the sum over all passes and replicas, fp32, and forget the passes."""
        grid, tree, running = self._shards.grid, self._tree, self._running
        self.reset()
        if running is not None:
            dist.all_reduce(running, group=grid.replicate.group)
            return running
        assert tree is not None, "passes come first"
        by_replica = grid.by_replica(self._shards.assignment)
        return canonical_sum(grid.replicate, by_replica, flat_nodes([tree]), sum(self._sizes))


class ShardedWeights(LiveWeights):
    """The weights of a sharded model as a sync reads them: whole, one tensor at a time."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.model)
        self._shards = shards

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The whole tensors, by name; each is made whole when it is asked for, in memory of its own."""
        shards = super().tensors
        return FetchedTensors(shards, lambda name: full_tensor(shards[name]))

    def _specs(self) -> dict[str, ParameterSpec]:
        """Return type and shape of each tensor; a sharded one has no memory that another process could share."""
        return {name: ParameterSpec(each.dtype, tuple(each.shape), None) for name, each in super().tensors.items()}

    def digests(self) -> dict[str, str]:
        """Return the digest of each tensor."""
        return self._shards.digests(super().tensors)

    def logprobs(self, tokens: Tensor) -> Tensor:
        """Return what the policy gives each token after the first: [length] -> fp32 [length - 1]."""
        with torch.no_grad():
            (found,) = self._shards.read([Microbatch(0, (0,), tokens.unsqueeze(0), 1)], _canary_logprobs)
        return found

    def decoder(self) -> Decoder:
        """Return a copy of the whole model, on every rank."""
        return fetched_decoder(self)


def shard_model(model: nn.Module, grid: RankGrid) -> None:
    """Shard a model in place: each member of its lists of layers by itself, and the rest as one.

    Tied weights must be in the rest.
    """
    mesh = DeviceMesh.from_group(grid.shard.group, torch.device(grid.shard.device).type)
    for layers in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for layer in layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    if hasattr(model, "hidden"):  # it reads the weights too
        register_fsdp_forward_method(model, "hidden")


def sharded_like(like: Tensor, local: Tensor) -> Tensor:
    """Return a tensor of which this rank has `local`, divided as another one."""
    assert isinstance(like, DTensor)
    mesh, placements = like.device_mesh, like.placements
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())


def row_sums(rows: Tensor, shape: torch.Size) -> Tensor:
    """Return the sum of squares of each row of a shard, as the whole matrix of this shape would give it.

    torch divides the sum of a lone row among threads, and that of one of several rows never.
    """
    if len(rows) == 1 and shape[0] > 1:
        return squared_rows(torch.cat([rows, torch.zeros_like(rows)]))[: shape[1:-1].numel()]
    return squared_rows(rows)


def _canary_logprobs(model: nn.Module, microbatch: Microbatch) -> Tensor:
    return policy_logprobs(cast(Decoder, model), microbatch.tokens[0])
