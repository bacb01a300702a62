"""States that four ranks write and read together: functions that each of them calls."""

from pathlib import Path

import pytest
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

from rlcore.checkpoint import save
from rlcore.trainers.ranks import Ranks
from rlcore.trainers.trainer import Trainer
from tests.support.rank_training import (
    Case,
    Trained,
    local_trainer,
    microbatches_of,
    negative_likelihood,
    parallel_trainer,
    shuffled,
    trained,
)


def step_of(trainer: Trainer, step: int, ranks: Ranks | None) -> None:
    """Make one update."""
    microbatches = microbatches_of(step)
    own = microbatches if ranks is None else shuffled(microbatches, ranks.size)[ranks.rank]
    trainer.forward_backward(own, negative_likelihood)
    trainer.optimizer_step(learning_rate=0.01, max_norm=0.5)


def saved(case: Case, directory: str) -> None:
    """Make one update, and save it."""
    built = parallel_trainer(case)
    if built is not None:
        trainer, grid = built
        step_of(trainer, 0, grid.world)
        trainer.write_state(Path(directory))


def resumed(case: Case, directory: str) -> Trained | None:
    """Resume a trainer, make the second update, and return what came of it."""
    built = parallel_trainer(case)
    if built is None:
        return None
    trainer, grid = built
    trainer.read_state(Path(directory))
    step_of(trainer, 1, grid.world)
    return trained(trainer)


def local_save(directory: str) -> str:
    """Make one update in one process, and write a checkpoint with its state; return where the state is."""
    trainer = local_trainer()
    step_of(trainer, 0, None)
    written = save(Path(directory), 1, {}, {"policy_state": trainer.write_state}, keep=2)
    return str(written / "policy_state")


def local_resume(directory: str) -> Trained:
    """Resume in one process, make the second update, and return what came of it."""
    trainer = local_trainer()
    trainer.read_state(Path(directory))
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

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError) as caught:
        if grid.world.rank == rank:
            patch.setattr(HuggingFaceStorageWriter, "write_data", full)
        trainer.write_state(Path(directory))
    return str(caught.value)
