"""Checkpoints that ranks write and read together, whole or absent as those of one process.

    rank 0   directory ──▶ "write PATH" ──▶ own shards ──▶ checksums of every file, rename ──▶ "written"
    others                 own shards                                                          return

The format is that of `rlcore.checkpoints.checkpoint`, with a directory `NAME_state` for each trainer. It does not
depend on the number of ranks, nor on how their weights are divided: any other trainer reads it, in one process too.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rlcore.checkpoints.checkpoint import Checkpoint, load_newest, save
from rlcore.checkpoints.state_shards import read_state, write_state
from rlcore.errors import CheckpointError, RlcoreError
from rlcore.trainers.local import LocalTrainer
from rlcore.trainers.ranks import Ranks


def save_over_ranks(
    directory: Path,
    step: int,
    trainers: Mapping[str, LocalTrainer],
    values: Mapping[str, Any],
    *,
    keep: int,
    ranks: Ranks,
) -> Path:
    """Write the checkpoint of a step, and remove whole ones beyond the newest `keep`; return its directory.

    Every rank calls it, with its own trainers and the same names; `values` count on rank 0. Raises CheckpointError on
    every rank if one of them cannot write: what was there before is then as it was.
    """
    if ranks.rank != 0:
        return _follow(trainers, ranks)

    def write(name: str, path: Path) -> None:
        ranks.broadcast(("write", name, str(path)), 0)
        write_state(path, trainers[name].save(), ranks.group)

    writers = {f"{name}_state": partial(write, name) for name in trainers}
    try:
        written = save(directory, step, {}, values, keep=keep, writers=writers)
    except RlcoreError as error:
        ranks.broadcast(("failed", error.what, error.remedy), 0)
        raise
    ranks.broadcast(("written", str(written), ""), 0)
    return written


def load_over_ranks(
    directory: Path, trainers: Mapping[str, LocalTrainer], *, ranks: Ranks, at_most: int | None = None
) -> Checkpoint | None:
    """Put the newest whole checkpoint into the trainers, and return it without tensors; None if there is none.

    Rank 0 checks every byte of it, and each rank reads its own shards. With `at_most` it is the newest that is of this
    step or before. Raises CheckpointError on every rank.
    """
    found: Checkpoint | CheckpointError | None = None
    if ranks.rank == 0:
        try:
            found = load_newest(directory, at_most)
        except CheckpointError as error:
            found = error
    told: Checkpoint | tuple[str, str] | None = ranks.broadcast(_plain(found), 0)
    if told is None:
        return None
    if isinstance(told, tuple):
        what, remedy = told
        raise CheckpointError(what, remedy=remedy)
    for name, trainer in trainers.items():
        load_state(told, name, trainer, ranks)
    return told


def load_state(found: Checkpoint, name: str, trainer: LocalTrainer, ranks: Ranks | None = None) -> None:
    """Put the state of a trainer out of a whole checkpoint into it; every rank calls it, or one process alone."""
    path = found.path / f"{name}_state"
    if not path.is_dir():
        raise CheckpointError(f"{found.path} has no {path.name}", legal="a checkpoint that was written over ranks")
    parameters = dict(trainer.model.named_parameters())
    trainer.load(read_state(path, parameters, None if ranks is None else ranks.group))


def _follow(trainers: Mapping[str, LocalTrainer], ranks: Ranks) -> Path:
    """Do what rank 0 says until it has written, or has failed."""
    while True:
        what, first, second = ranks.broadcast(None, 0)
        if what == "written":
            return Path(first)
        if what == "failed":
            raise CheckpointError(first, remedy=second)
        try:
            write_state(Path(second), trainers[first].save(), ranks.group)
        except OSError:
            continue  # rank 0 has met it too, and says so


def _plain(found: Checkpoint | CheckpointError | None) -> Checkpoint | tuple[str, str] | None:
    """Return what can be sent: no error, and no tensors."""
    if isinstance(found, CheckpointError):
        return found.what, found.remedy
    return None if found is None else Checkpoint(found.path, found.step, {}, dict(found.values), found.skipped)
