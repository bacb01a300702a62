"""Workers: objects that live on a rank, and whose public methods a controller calls through a dispatch table."""

from collections.abc import Mapping
from dataclasses import dataclass
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


class Worker:
    """Base of classes that a group runs on its ranks.

    A subclass declares `dispatch_table` and is checked when it is defined: InvalidValueError says what does not match.
    Methods treat their arguments as read-only. Methods with a leading underscore are the worker's own.
    """

    dispatch_table: ClassVar[Table] = {}
    context: WorkerContext
    """Set before `__init__`."""

    def __init_subclass__(cls) -> None:
        """Check the table."""
        super().__init_subclass__()
        check_table(cls, cls.dispatch_table, Worker)

    def close(self) -> None:
        """Release what the worker holds before its process ends in order. One that is killed does not call it."""


def construct(
    worker: type[Worker], args: tuple[object, ...], kwargs: Mapping[str, object], context: WorkerContext
) -> Worker:
    """Construct the worker of one rank."""
    built = worker.__new__(worker)
    built.context = context
    built.__init__(*args, **kwargs)  # type: ignore[misc]  # its context comes before
    return built
