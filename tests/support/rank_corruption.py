"""Trainers on ranks of which one has a bit flipped in its memory; called on each of four ranks."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from harness.bits.tensor_digests import tensor_digest
from rlcore.data.microbatches import divide_among_workers
from rlcore.errors import ReplicaError
from rlcore.trainers.gradients import local_part
from rlcore.trainers.ranks import RankGrid
from rlcore.trainers.trainer import Trainer
from tests.support.rank_training import grid_of, local_trainer, microbatches_of, negative_likelihood


@dataclass(frozen=True)
class Corruption:
    """A training with a bit flipped on one rank."""

    num_shards: int = 1
    num_updates: int = 4
    every: int = 0
    """Cadence; 0 without a sentinel."""
    kind: str = ""
    """weight, moment or gradient; empty for none."""
    update: int = 0
    rank: int = 0
    index: int = 0
    """Of the parameter."""
    bit: int = 0


class Outcome(NamedTuple):
    """What became of it on one rank."""

    num_updates: int
    """Whole updates."""
    weights: dict[str, str]
    """Digests of what this rank holds."""
    ranks: tuple[int, ...]
    """Ranks that the sentinel named."""
    names: tuple[str, ...]
    what: str


def flip(tensor: Tensor, bit: int) -> None:
    """Change one bit of this rank's memory, which torch does not know of."""
    memory = local_part(tensor.detach()).reshape(-1).view(torch.uint8).numpy()
    if memory.size:
        bit %= 8 * memory.size
        memory[bit // 8] ^= 1 << bit % 8


def corrupted_training(case: Corruption) -> Outcome:
    """Train with the fault."""
    grid = grid_of(case.num_shards)
    assert grid is not None
    trainer = local_trainer(grid=grid, sentinel_every=case.every)
    for update in range(case.num_updates):
        is_hit = (update, grid.world.rank) == (case.update, case.rank)
        parameter = list(trainer.model.parameters())[case.index]
        if is_hit and case.kind == "weight":
            flip(parameter, case.bit)
        if is_hit and case.kind == "moment":
            flip(trainer.optimizer.state[parameter]["exp_avg"], case.bit)
        try:
            backward(trainer, update, grid)
            if is_hit and case.kind == "gradient":
                assert trainer.gradients is not None
                flip(trainer.gradients[case.index], case.bit)
            trainer.optimizer_step(learning_rate=0.01, max_norm=0.5)
        except ReplicaError as error:
            return Outcome(update, held(trainer), error.ranks, error.names, error.what)
    return Outcome(case.num_updates, held(trainer), (), (), "")


def backward(trainer: Trainer, update: int, grid: RankGrid) -> None:
    """Make the passes of an update on this rank."""
    own = divide_among_workers(microbatches_of(update), grid.world.size)[grid.world.rank]
    trainer.forward_backward(own, negative_likelihood)


def held(trainer: Trainer) -> dict[str, str]:
    """Digests of what this rank holds of the weights."""
    return {name: tensor_digest(local_part(p.detach())) for name, p in trainer.model.named_parameters()}
