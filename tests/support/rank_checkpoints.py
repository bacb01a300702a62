"""Checkpoints that four ranks write and read together: functions that each of them calls."""

from pathlib import Path

import pytest
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

from rlcore.checkpoints.checkpoint import load, save
from rlcore.checkpoints.over_ranks import load_over_ranks, load_state, save_over_ranks
from rlcore.checkpoints.state_shards import write_state
from rlcore.trainers.local import LocalTrainer
from rlcore.trainers.ranks import Ranks
from tests.support.rank_failures import error_of
from tests.support.rank_training import (
    NUM_MICROBATCHES,
    Case,
    Trained,
    local_trainer,
    microbatches_of,
    negative_likelihood,
    parallel_trainer,
    shuffled,
    trained,
)

VALUES = {"kl_coef": 0.1, "words": ["a", 1, None]}


def step_of(trainer: LocalTrainer, step: int, ranks: Ranks | None) -> None:
    """Make one update."""
    microbatches = microbatches_of(step)
    own = microbatches if ranks is None else shuffled(microbatches, ranks.size)[ranks.rank]
    trainer.forward_backward(own, negative_likelihood, num_microbatches=NUM_MICROBATCHES)
    trainer.optimizer_step(learning_rate=0.01, max_norm=0.5)


def saved(case: Case, directory: str) -> str:
    """Make one update, save it, and return where."""
    built = parallel_trainer(case)
    if built is None:
        return ""
    trainer, grid = built
    step_of(trainer, 0, grid.world)
    return str(save_over_ranks(Path(directory), 1, {"policy": trainer}, VALUES, keep=2, ranks=grid.world))


def resumed(case: Case, directory: str) -> Trained | None:
    """Resume a trainer, make the second update, and return what came of it."""
    built = parallel_trainer(case)
    if built is None:
        return None
    trainer, grid = built
    found = load_over_ranks(Path(directory), {"policy": trainer}, ranks=grid.world)
    assert found is not None
    assert (found.step, found.values) == (1, VALUES)
    step_of(trainer, 1, grid.world)
    return trained(trainer)


def local_save(directory: str) -> str:
    """Make one update in one process, and save it in the format of ranks."""
    trainer = local_trainer()
    step_of(trainer, 0, None)
    writers = {"policy_state": lambda path: write_state(path, trainer.save(), None)}
    return str(save(Path(directory), 1, {}, VALUES, keep=2, writers=writers))


def local_resume(path: str) -> Trained:
    """Resume in one process, make the second update, and return what came of it."""
    trainer = local_trainer()
    load_state(load(Path(path)), "policy", trainer)
    step_of(trainer, 1, None)
    return trained(trainer)


def two_updates() -> Trained:
    """Make both updates in one process, without a checkpoint."""
    trainer = local_trainer()
    for step in range(2):
        step_of(trainer, step, None)
    return trained(trainer)


def failing_save(case: Case, directory: str, rank: int) -> str:
    """Save where one rank finds the disk full; return the error that this rank met."""
    built = parallel_trainer(case)
    assert built is not None
    trainer, grid = built
    step_of(trainer, 0, grid.world)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        if grid.world.rank == rank:
            patch.setattr(HuggingFaceStorageWriter, "write_data", full)
        return error_of(lambda: save_over_ranks(Path(directory), 2, {"policy": trainer}, {}, keep=2, ranks=grid.world))


def missing_load(case: Case, directory: str) -> tuple[bool, str]:
    """Resume from a directory that is not there, and from one where nothing is whole."""
    built = parallel_trainer(case)
    assert built is not None
    trainer, grid = built
    absent = load_over_ranks(Path(directory) / "absent", {"policy": trainer}, ranks=grid.world)
    error = error_of(lambda: load_over_ranks(Path(directory), {"policy": trainer}, ranks=grid.world))
    return absent is None, error
