"""Workers in this process: the default. Calls run at once, in the thread of the caller, rank after rank.

Several ranks are possible, for methods that are not collective. Arguments and results are not copied.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlcore.distributed.backends.base import Launch
from rlcore.distributed.calls import Failure, keep, perform
from rlcore.distributed.scatter import Scattered
from rlcore.distributed.worker import Worker, WorkerContext, construct
from rlcore.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class Done:
    """A call that has run."""

    found: dict[int, Any]

    def is_done(self) -> bool:
        """As `Pending.is_done`."""
        return True

    def results(self, timeout_s: float | None) -> dict[int, Any]:
        """As `Pending.results`."""
        return self.found


class LocalWorkers:
    """As `Started`, for workers of this process."""

    def __init__(self, ranks: list[Mapping[str, Worker]]) -> None:
        """Take over the workers of each rank, by role."""
        self._ranks = ranks

    @property
    def process_ids(self) -> tuple[int, ...]:
        """As `Started.process_ids`."""
        return (os.getpid(),) * len(self._ranks)

    def submit(self, role: str, method: str, call: Scattered) -> Done:
        """As `Started.submit`; the call has run when it returns, up to the first rank that failed."""
        found: dict[int, Any] = {}
        for rank in call.ranks:
            found[rank] = perform(self._ranks[rank][role], method, call.arguments_of(rank), keep)
            if isinstance(found[rank], Failure):
                break
        return Done(found)

    def check(self) -> None:
        """As `Started.check`: this process runs."""

    def end(self) -> None:
        """Forget the workers."""
        self._ranks = []


@dataclass(frozen=True, slots=True)
class InProcess:
    """Workers in this process."""

    def start(self, launch: Launch) -> LocalWorkers:
        """As `Backend.start`; raises InvalidValueError if this process has another environment than the launch asks."""
        differing = {name: value for name, value in launch.environment.items() if os.environ.get(name) != value}
        if differing:
            found = ", ".join(f"{name}={os.environ.get(name)!r}" for name in differing)
            raise InvalidValueError(
                f"{found} in this process, where the workers of group {launch.name} run",
                legal=", ".join(f"{name}={value!r}" for name, value in differing.items()),
                remedy="set the variables before this process starts, or run the workers in processes of their own",
            )
        contexts = [WorkerContext("", rank, launch.size, rank) for rank in range(launch.size)]
        return LocalWorkers([construct(launch.specs, context) for context in contexts])
