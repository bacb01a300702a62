"""The protocol of backends: they start the workers of a group, run calls on ranks, and end what they started."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rlcore.distributed.futures import Pending
from rlcore.distributed.scatter import Scattered
from rlcore.distributed.worker import RESERVED, WorkerSpec
from rlcore.errors import InvalidValueError

DEATH_S = 5.0
"""Longest wait for the other ranks after one has raised: if a peer died, its communication failed first."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What a backend starts: on each of `size` ranks, one worker for each spec."""

    name: str
    """The roles, for messages and names of threads."""
    specs: tuple[WorkerSpec, ...]
    size: int
    environment: Mapping[str, str]
    """Variables that each process has before it imports anything."""

    def __post_init__(self) -> None:
        """Raises InvalidValueError."""
        if self.size < 1:
            raise InvalidValueError(f"size {self.size!r} of group {self.name}", legal="1 or more")
        if taken := [name for name in RESERVED if name in self.environment]:
            raise InvalidValueError(
                f"{', '.join(taken)} in the environment of group {self.name}",
                legal="variables that a group does not set itself, for torch.distributed",
                remedy="leave them out: each rank has its own",
            )


class Started(Protocol):
    """Workers that a backend has started."""

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Process ids by rank, on the host of each."""

    def submit(self, role: str, method: str, call: Scattered) -> Pending:
        """Send a call to its ranks and return at once. Raises WorkerDiedError if a process of the group has ended."""

    def check(self) -> None:
        """Raise WorkerDiedError if a process of the group has ended."""

    def end(self) -> None:
        """End all workers at once, whatever they do. A second call does nothing."""


class Backend(Protocol):
    """Options of a backend, and its way to start workers."""

    def start(self, launch: Launch) -> Started:
        """Start the workers, and return when all are constructed.

        Raises what a constructor raised, WorkerDiedError if a process ended, and WorkerError after a timeout; nothing
        is left running then.
        """
