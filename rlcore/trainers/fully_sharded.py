"""The trainer of a rank that holds a shard of each weight (torch's FSDP2), or one of several replicas of it (hybrid).

    round 0   every rank of a replica: one microbatch, or a dummy ──backward──▶ RoundSum of each module
    round 1   ...
    last      RoundSum: sum over rounds and replicas ──▶ gradient shards ──▶ clip by the norm of all, AdamW on shards

Every rank calls every method. Passes are collective: a rank that has fewer microbatches than another one of its
replica makes dummy passes, whose gradients are dropped.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from rlcore.checkpoints.optimizer_state import STEP, optimizer_tensors, restore_optimizer
from rlcore.data.microbatches import Microbatch
from rlcore.errors import CheckpointError, InvalidValueError, NonFiniteError
from rlcore.numerics.probe import num_threads
from rlcore.observability.events import PassBegins
from rlcore.trainers.assignment import Assignment, agree_on_assignment, agree_on_failure
from rlcore.trainers.base import Loss, MicrobatchLoss, Reading, TrainerState
from rlcore.trainers.local import (
    LocalTrainer,
    NonFinite,
    check_loss,
    describe_non_finite,
    first_non_finite,
)
from rlcore.trainers.local_parts import local_part
from rlcore.trainers.rank_grid import RankGrid
from rlcore.trainers.round_sum import Rounds, RoundSum
from rlcore.trainers.sharded_norm import sharded_norm
from rlcore.trainers.sharded_weights import ShardedWeights
from rlcore.trainers.shards import first_row, full_tensor, owned_digests, sharded_like
from rlcore.weights.digests import combined_digest, flat_digest

FORWARD_METHODS = ("hidden",)
"""Methods that read a model's weights beside `forward`, if it has them."""


class FullyShardedTrainer(LocalTrainer):
    """Trains shards of one model on the ranks of a grid."""

    def __init__(self, local: LocalTrainer, grid: RankGrid, *, is_canonical: bool) -> None:
        """Train the model of `local`, which must be bitwise equal on all ranks, is sharded here, and is used no more.

        `is_canonical` as for `DataParallelTrainer`. Raises InvalidValueError for a model that cannot be sharded, and
        for shards on one rank: those are replicated weights.
        """
        shard_model(local.model, grid)
        super().__init__(
            local.name,
            local.model,
            local.peak_rate,
            section=local._section,
            runtime=local._runtime,
            observers=local._observers,
        )
        self.grid = grid
        self._rounds = Rounds(grid, is_canonical=is_canonical)
        modules = [module for module in self.model.modules() if isinstance(module, FSDPModule)]
        self._sums = [self._sum_of(module) for module in modules if module._get_fsdp_state()._fsdp_param_groups]

    def forward_backward(
        self, microbatches: Sequence[Microbatch], loss: Loss, *, num_microbatches: int | None = None
    ) -> tuple[MicrobatchLoss, ...]:
        """Compute the gradient of the sum of all ranks' losses; return this rank's in the order of microbatches.

        `num_microbatches` is the number over all ranks, None for as many as this rank has. Raises NonFiniteError on
        every rank if a loss is not finite, InvalidValueError on every rank if ranks do not agree.
        """
        self._wake()
        own = sorted(microbatches, key=lambda each: each.number)
        expected = len(own) if num_microbatches is None else num_microbatches
        assignment = agree_on_assignment(self.grid.world, [each.number for each in own], expected)
        dummy = self._dummy(own, list(map(len, assignment.numbers)))
        for each in self._sums:
            each.reset()
        with num_threads(self._runtime.training_threads, "forward", "loss", "backward"), _views_allowed():
            found = self._passes(own, dummy, loss, assignment)
        by_parameter = {parameter: shard for each in self._sums for parameter, shard in each.take()}
        self.gradients = [by_parameter[parameter] for parameter in self.model.parameters()]
        return found

    def read(self, microbatches: Sequence[Microbatch], reading: Reading) -> list[Tensor]:
        """Read microbatches without a gradient; return what was read, in their order. Ranks may have any number."""
        self._wake()
        counts = [int(count) for (count,) in self.grid.world.gather_numbers([len(microbatches)])]
        if not any(counts):
            return []
        dummy, found = self._dummy(microbatches, counts), []
        first = self.grid.replicate.rank * self.grid.shard.size
        with torch.no_grad(), num_threads(self._runtime.training_threads, "reference"), _views_allowed():
            for number in range(max(counts[first : first + self.grid.shard.size])):
                microbatch = microbatches[number] if number < len(microbatches) else dummy
                found.append(reading(self.model, microbatch))
            for module in self.model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
        return found[: len(microbatches)]

    def weights(self) -> ShardedWeights:
        """Return the weights, which are made whole one at a time, on every rank: each question is collective."""
        self._wake()
        return ShardedWeights(self.model, self.grid, self.read)

    def gradient_digest(self) -> str:
        """Return the digest of the gradient of all parameters, as one process has it; collective."""
        assert self.gradients is not None, "forward_backward comes first"
        return flat_digest(map(full_tensor, self.gradients))

    def optimizer_digest(self) -> str:
        """Return the digest of all that the optimizer keeps, as one process has it; collective."""
        self._wake()
        named = optimizer_tensors(self.optimizer, self.model.named_parameters())
        return combined_digest(owned_digests(named.items(), self.grid))

    def load(self, state: TrainerState) -> None:
        """Copy a state, of whole tensors or of shards as these, into the shards and their optimizer.

        Raises CheckpointError if it is of other parameters.
        """
        self.load_weights(state.weights)
        named = dict(self.model.named_parameters())
        shards = {}
        for key, value in state.optimizer.items():
            name, _, kind = key.rpartition(".")
            fits = kind != STEP and name in named and value.shape == named[name].shape
            shards[key] = sharded_like(value, named[name]) if fits else value
        restore_optimizer(self.optimizer, named.items(), shards)

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights, whole or sharded as these, into the shards."""
        self._wake()
        named = dict(self.model.named_parameters())
        if missing := sorted(named.keys() - weights.keys()):
            raise CheckpointError(f"weights without {', '.join(missing)}", legal="every parameter of the model")
        for name, parameter in named.items():
            if weights[name].shape != parameter.shape:
                raise CheckpointError(f"{name} is {list(weights[name].shape)}", legal=f"{list(parameter.shape)}")
        for name, parameter in named.items():
            local_part(parameter).copy_(local_part(sharded_like(weights[name].to(parameter.dtype), parameter)))

    def _sum_of(self, module: FSDPModule) -> RoundSum:
        """Have a module's gradients summed over rounds; torch's setters reach one module each."""
        (group,) = module._get_fsdp_state()._fsdp_param_groups  # nothing public tells the order of the gradients
        found = RoundSum(
            self._rounds, type(module).__name__.removeprefix("FSDP"), [each.sharded_param for each in group.fsdp_params]
        )
        module.set_custom_reduce_scatter(found)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # without it a factor needs an operation that Gloo lacks
        return found

    def _passes(
        self, own: Sequence[Microbatch], dummy: Microbatch, loss: Loss, assignment: Assignment
    ) -> tuple[MicrobatchLoss, ...]:
        """Make the passes of this rank's replica; raises NonFiniteError on every rank, when all have been made."""
        parameters, found = list(self.model.parameters()), []
        failed: tuple[int, NonFiniteError] | None = None
        for number in range(self.grid.of_replica(assignment).num_rounds):
            self._rounds.begin(assignment, number)
            self._observers.emit(PassBegins(parameters))
            part = loss(self.model, own[number] if number < len(own) else dummy)
            if number < len(own) and failed is None:
                try:
                    check_loss(part.loss, own[number])
                except NonFiniteError as error:
                    failed = own[number].number, error
            part.loss.backward()  # type: ignore[no-untyped-call]
            if number < len(own):
                found.append(part._replace(loss=part.loss.detach()))
            for parameter in parameters:
                parameter.grad = None  # zeros: `RoundSum` has the sum
        agree_on_failure(self.grid.world, failed)
        return tuple(found)

    def _dummy(self, own: Sequence[Microbatch], counts: Sequence[int]) -> Microbatch:
        """Return what this rank reads in dummy passes: its cheapest microbatch, or another rank's if it has none."""
        cheapest = min(own, key=lambda each: each.num_tokens, default=None)
        if all(counts):
            assert cheapest is not None
            return cheapest
        source = next((rank for rank, count in enumerate(counts) if count), None)
        if source is None:
            raise InvalidValueError("no rank has a microbatch", legal="one microbatch or more, over all ranks")
        lent = self.grid.world.broadcast(cheapest if self.grid.world.rank == source else None, source)
        return lent if cheapest is None else cheapest

    def _norm(self, gradients: Sequence[Tensor]) -> float:
        return sharded_norm(gradients, self.grid.shard)

    def _own_memory(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        return [local_part(gradient) for gradient in gradients]

    def _first_non_finite(self, named: Sequence[tuple[str, nn.Parameter]]) -> str:
        """Describe the first one of all shards; collective."""
        shard, names = self.grid.shard, [name for name, _ in named]
        found = first_non_finite((name, _ShardGradient(p)) for name, p in named)  # type: ignore[misc]
        place = len(names) if found is None else names.index(found.name)
        first = min(int(other) for (other,) in shard.gather_numbers([place]))
        owners = [rank for rank, (other,) in enumerate(shard.gather_numbers([place])) if other == first]
        if first == len(names):
            return describe_non_finite(None)
        if found is not None:
            row = found.place[0] + first_row(dict(named)[found.name].shape[0], shard)
            found = NonFinite(found.name, found.value, (row, *found.place[1:]))
        return describe_non_finite(shard.broadcast(found, owners[0]))


@contextmanager
def _views_allowed() -> Iterator[None]:
    """Silence torch where a model returns a view: nothing here writes into what a model returns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        yield


class _ShardGradient:
    """A parameter as this rank has it."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.grad = None if parameter.grad is None else local_part(parameter.grad)


def shard_model(model: nn.Module, grid: RankGrid) -> None:
    """Shard a model in place: each member of its lists of layers by itself, and the rest as one.

    Tied weights must be in the rest. Raises InvalidValueError for a parameter without dimensions.
    """
    if grid.shard.size == 1:
        raise InvalidValueError("shards on one rank", legal="2 ranks or more", remedy="replicated weights")
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise InvalidValueError(
                f"{name} has no dimension to be sharded along", legal="1 or more", remedy="replicated weights"
            )
    mesh = DeviceMesh.from_group(grid.shard.group, torch.device(grid.shard.device).type)
    for layers in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for layer in layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    for method in FORWARD_METHODS:
        if hasattr(model, method):
            register_fsdp_forward_method(model, method)
