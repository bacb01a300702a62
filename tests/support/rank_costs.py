"""What is measured of training on ranks: functions that each rank calls, with the seconds that they took."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist

from rlcore.config import OptimizerSection, RuntimeSection
from rlcore.data.microbatches import Microbatch, divide_among_workers
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.tree_sum import complete_subtrees
from rlcore.trainers.ranks import RankGrid, build_grid
from rlcore.trainers.reductions import BUCKET_ELEMENTS, canonical_sum
from rlcore.trainers.trainer import Trainer
from tests.support.rank_questions import policy_loss

CONFIG = DecoderConfig("qwen3", 1031, 136, 4, 4, 2, 34, 368, max_length=64)
NUM_MICROBATCHES = 16
NUM_BUCKETS = 8
"""Buckets of the sum that is measured alone, 4 MiB each."""
Seconds = Mapping[str, float]


def microbatches() -> list[Microbatch]:
    """Return 16 microbatches of two samples."""
    draw = torch.Generator().manual_seed(0)
    tokens = [torch.randint(CONFIG.vocab_size, (2, 33), generator=draw) for _ in range(NUM_MICROBATCHES)]
    return [Microbatch(number, (number,), each, 1) for number, each in enumerate(tokens)]


def trainer_of(grid: RankGrid, *, is_canonical: bool = True) -> Trainer:
    """Build the trainer of a rank."""
    section, runtime = OptimizerSection(learning_rate=1e-3), RuntimeSection(training_threads=1)
    model = Decoder(CONFIG).initialise(0)
    return Trainer("policy", model, 1e-3, section=section, runtime=runtime, grid=grid, is_canonical=is_canonical)


def least_s(calls: Mapping[str, Callable[[], object]], num_rounds: int) -> dict[str, float]:
    """Return the least seconds of collective calls, which take turns, after one of each to warm up."""
    for call in calls.values():
        call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(num_rounds):
        for name, call in calls.items():
            dist.barrier()
            began = perf_counter()
            call()
            found[name].append(perf_counter() - began)
    return {name: min(each) for name, each in found.items()}


def grid_of(num_shards: int) -> RankGrid:
    """Build the grid of all ranks."""
    grid = build_grid(num_shards, timeout_s=600)
    assert grid is not None
    return grid


def steps_s(num_shards: int, num_rounds: int) -> Seconds:
    """Measure an update, by canonical sums and by the library's."""
    grid = grid_of(num_shards)
    own = divide_among_workers(microbatches(), grid.world.size)[grid.world.rank]

    def updates(is_canonical: bool) -> Callable[[], object]:
        trainer = trainer_of(grid, is_canonical=is_canonical)

        def update() -> None:
            trainer.forward_backward(own, policy_loss)
            trainer.optimizer_step(learning_rate=1e-3, max_norm=1.0)

        return update

    return least_s({"canonical": updates(True), "library": updates(False)}, num_rounds)


def sums_s(num_rounds: int) -> Seconds:
    """Measure a sum over ranks: the library's, and ours with neighbours on one rank and with every second of them."""
    world = grid_of(1).world
    count = NUM_MICROBATCHES // world.size

    def sums(add: Callable[[], object]) -> Callable[[], object]:
        return lambda: [add() for _ in range(NUM_BUCKETS)]

    calls = {"library": sums(partial(dist.all_reduce, torch.ones(BUCKET_ELEMENTS), group=world.group))}
    for name, numbers in {
        "neighbours": tuple(tuple(range(rank * count, (rank + 1) * count)) for rank in range(world.size)),
        "scattered": tuple(tuple(range(rank, NUM_MICROBATCHES, world.size)) for rank in range(world.size)),
    }.items():
        own = [torch.ones(BUCKET_ELEMENTS) for _ in complete_subtrees(numbers[world.rank])]
        calls[name] = sums(partial(canonical_sum, world, numbers, own, BUCKET_ELEMENTS))
    return least_s(calls, num_rounds)


def state_s(directory: str, num_rounds: int) -> Seconds:
    """Measure what leaves fully sharded ranks: the weights tensor by tensor, and a checkpoint."""
    grid = grid_of(dist.get_world_size())
    trainer = trainer_of(grid)
    own = divide_among_workers(microbatches(), grid.world.size)[grid.world.rank]
    trainer.forward_backward(own, policy_loss)
    trainer.optimizer_step(learning_rate=1e-3, max_norm=1.0)
    path = Path(directory)

    def stream() -> None:
        for _ in trainer.weights().tensors.values():
            pass

    return least_s(
        {
            "stream": stream,
            "digests": trainer.weights().digests,
            "save": partial(trainer.write_state, path),
            "load": partial(trainer.read_state, path),
        },
        num_rounds,
    )
