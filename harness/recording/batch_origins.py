"""Where a batch of a DataLoader came from: its worker, the generators that shuffle, the seed of the workers.

All of it is of scope CONTEXT: it explains a difference, and is not compared by itself.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from harness.recording.recorder import Observation, look
from harness.trace.chain import Scope
from harness.trace.context import BATCH_ORIGIN, LOADER_SEED

MAIN_PROCESS = -1
"""In place of a worker's number, of a batch that the program's own process has made."""
MAX_SAMPLERS = 4
"""Of samplers that hold a sampler."""


class BatchOrigins:
    """Finds out for each batch where it came from, from the first batch of a worker on."""

    def __init__(self) -> None:
        self._seed: int | None = None
        self._has_workers = False

    def of_batch(self, iterator: Any, tasks: Mapping[int, Any]) -> list[Observation]:
        """Return what to record before the batch that an iterator has just handed out.

        `tasks` are those that its workers had before.
        """
        num_workers = int(getattr(iterator, "_num_workers", 0))
        self._has_workers = self._has_workers or num_workers > 0
        if not self._has_workers:
            return []
        found: list[tuple[str, Any]] = []
        seed = getattr(iterator, "_base_seed", None)
        if num_workers and isinstance(seed, int) and seed != self._seed:
            self._seed = seed
            found.append((LOADER_SEED, seed))
        index, worker = _task(iterator, tasks) if num_workers else (0, MAIN_PROCESS)
        found.append((BATCH_ORIGIN, torch.tensor([index, worker, num_workers], dtype=torch.int32)))
        return [each._replace(tensor=None) for each in look(found, Scope.CONTEXT)]


def tasks_of(iterator: Any) -> dict[int, Any]:
    """Return what a DataLoader's workers were asked for and have not handed out: batch -> (worker, ...)."""
    tasks = getattr(iterator, "_task_info", None)
    return dict(tasks) if isinstance(tasks, dict) else {}


def generators_of(iterator: Any) -> Iterator[torch.Generator]:
    """Yield the generators that a DataLoader's samplers were given; those of torch itself are not among them."""
    sampler = getattr(iterator, "_index_sampler", None)
    for _ in range(MAX_SAMPLERS):
        held = getattr(sampler, "__dict__", {})
        yield from (each for each in held.values() if isinstance(each, torch.Generator))
        sampler = held.get("sampler", held.get("batch_sampler"))
        if sampler is None:
            return


def _task(iterator: Any, tasks: Mapping[int, Any]) -> tuple[int, int]:
    """(batch, worker) of the task that was handed out; (0, MAIN_PROCESS) where torch does not say."""
    done = tasks.keys() - tasks_of(iterator).keys()
    # Workers that have come to their end leave tasks behind, which go with the one that is handed out.
    index = getattr(iterator, "_rcvd_idx", 0) - 1 if getattr(iterator, "_in_order", True) else max(done, default=-1)
    task = tasks.get(index)
    return (index, int(task[0])) if index in done and task else (0, MAIN_PROCESS)
