"""Trainings of ranks that a sentinel watches, each with one of its own; called on every rank."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed

from harness.recording.run_spec import ReplicasDiffer
from harness.recording.sentinel import Sentinel
from tests.support.programs.replicas import train


@dataclass(frozen=True)
class Trained:
    """What became of a training on one rank."""

    ended: str
    """"": it went to its end; else "differ" or "left"."""
    weights: str
    """Digest of this rank's weights, where it went to its end."""
    problem: str
    """Why the sentinel was switched off."""


@dataclass(frozen=True)
class Case:
    """One training."""

    layout: str = "ddp"
    num_steps: int = 6
    flip: str = ""
    every: int = 0
    """Cadence; 0 without a sentinel."""
    with_closure: bool = False
    is_declared: bool = False
    """Whether its parameters are declared as replicas on all ranks."""
    ends_at: int | None = None
    timeout_s: float | None = None


def train_watched(case: Case, directory: str) -> Trained:
    """Train; bundles go to `directory`."""
    sentinel = None
    if case.every:
        sentinel = Sentinel(case.every, Path(directory), case.timeout_s)
        sentinel.install()

    def declare(parameters: Sequence[torch.Tensor]) -> None:
        assert sentinel is not None
        sentinel.replicas.declare(parameters, tuple(range(distributed.get_world_size())))

    ended, weights = "", ""
    try:
        _, tensors = train(
            case.layout,
            case.num_steps,
            case.flip,
            with_closure=case.with_closure,
            ends_at=case.ends_at,
            declare=declare if case.is_declared else None,
        )
        weights = hashlib.sha256(b"".join(each.view(torch.uint8).numpy().tobytes() for each in tensors)).hexdigest()
    except ReplicasDiffer:
        ended = "differ"
    except SystemExit:
        ended = "left"
    finally:
        if sentinel is not None:
            sentinel.stop()
    return Trained(ended, weights, "" if sentinel is None else sentinel.problem)
