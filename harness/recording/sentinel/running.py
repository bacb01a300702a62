"""The sentinel of this process: there is one, or none."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import distributed

from harness.bits.errors import UsageError
from harness.recording.sentinel.sentinel import Sentinel, SentinelConfig

_running: list[Sentinel] = []


def start_sentinel(config: SentinelConfig, rest: Callable[[bool], None] = lambda _: None) -> Sentinel:
    """Start the sentinel of this process; return the one that runs already."""
    if not _running:
        _running.append(Sentinel(config, rest))
        _running[0].install()
    return _running[0]


def declare_replicas(
    parameters: Iterable[torch.Tensor],
    *,
    every: int,
    directory: str | os.PathLike[str],
    ranks: Sequence[int] | None,
    timeout_s: float | None,
) -> None:
    """Start the sentinel, and have it compare these parameters too; what the arguments mean, `watch_replicas` says."""
    if every < 1:
        raise UsageError(f"every={every}", legal="a number of optimizer steps, 1 or more", remedy="every=10")
    sentinel = start_sentinel(SentinelConfig(every, Path(directory).absolute(), timeout_s))
    if declared := list(parameters):
        if not (distributed.is_available() and distributed.is_initialized()):
            raise UsageError(
                "replicas are declared before torch.distributed is initialized",
                legal="replicas of an initialized process group",
                remedy="call init_process_group first",
            )
        sentinel.replicas.declare(declared, tuple(sorted(ranks or range(distributed.get_world_size()))))
