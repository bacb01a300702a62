"""Workers: objects that live on a rank, and whose public methods a controller calls through a dispatch table."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from rlcore.distributed.dispatch import Table, check_table

RESERVED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that the group gives its processes before they import torch: `init_process_group` reads them."""
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""With "True", torch's env:// rendezvous connects to the store that the controller holds, and rank 0 starts none."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The position of a worker in its group."""

    role: str
    rank: int
    size: int
    local_rank: int = 0
    """Index among the ranks of its host."""


class Worker:
    """Base of classes that a group runs on its ranks.

    A subclass declares `dispatch_table` and is checked when it is defined: InvalidValueError says what does not match.
    Methods treat their arguments as read-only. Methods with a leading underscore are the worker's own.
    """

    dispatch_table: ClassVar[Table] = {}
    context: WorkerContext
    """Set before `__init__`."""
    colocated: Mapping[str, "Worker"]
    """Workers of this process by role; complete once all of them were constructed."""

    def __init_subclass__(cls, *, is_abstract: bool = False) -> None:
        """Check the table; an abstract class leaves its entries to its subclasses."""
        super().__init_subclass__()
        if not is_abstract:
            check_table(cls, cls.dispatch_table, Worker)

    def close(self) -> None:
        """Release what the worker holds before its process ends in order. One that is killed does not call it."""


@dataclass(frozen=True)
class WorkerSpec:
    """A worker that every rank constructs."""

    role: str
    worker: type[Worker]
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)


def construct(specs: tuple[WorkerSpec, ...], context: WorkerContext) -> dict[str, Worker]:
    """Construct the workers of one rank, in order; `context` is given to each with its role."""
    found: dict[str, Worker] = {}
    for spec in specs:
        worker = spec.worker.__new__(spec.worker)
        worker.context = WorkerContext(spec.role, context.rank, context.size, context.local_rank)
        worker.colocated = found
        worker.__init__(*spec.args, **spec.kwargs)  # type: ignore[misc]  # its context comes before
        found[spec.role] = worker
    return found


def rank_environment(
    rank: int, size: int, local_rank: int, local_size: int, address: tuple[str, int]
) -> dict[str, str]:
    """Return the variables by which torch finds the other ranks."""
    values = (rank, size, local_rank, local_size, *address)
    return {**dict(zip(RESERVED, map(str, values), strict=True)), AGENT_STORE: "True"}


def effective(names: Mapping[str, str]) -> dict[str, str | None]:
    """Return the values that these variables have in this process."""
    return {name: os.environ.get(name) for name in names}
