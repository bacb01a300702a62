"""Calls of a worker's method, on the worker's side, and errors that travel to the controller with their fields."""

import pickle
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlcore.distributed.worker import Worker
from rlcore.errors import WorkerError

UNREADABLE = "a message of the call cannot be pickled or read"


@dataclass(frozen=True, slots=True)
class Failure:
    """What a method raised, in place of a result."""

    error: bytes | Exception | None
    """The exception, pickled for another process; None if it cannot be."""
    summary: str
    """Its class and message."""
    traceback: str
    """The worker's traceback, as text; empty if the exception itself is here."""

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Return what an exception consists of, for another process."""
        summary = "".join(traceback.format_exception_only(error)).strip()
        return cls(_pickled(error), summary, "".join(traceback.format_exception(error)).rstrip())

    def rebuilt(self, role: str, rank: int, where: str) -> Exception:
        """Return the exception again, with notes that name the worker and give its traceback.

        It is of the same class if that can be pickled, or a WorkerError.
        """
        if isinstance(self.error, bytes):
            error: Exception = pickle.loads(self.error)
        else:
            error = self.error or WorkerError(self.summary, role=role, rank=rank)
        error.add_note(where)
        if self.traceback:
            error.add_note(f"its traceback there:\n{self.traceback}")
        return error


def perform(
    worker: Worker, method: str, arguments: Mapping[str, Any], failure: Callable[[Exception], Failure] = Failure.of
) -> Any:
    """Return the result of a worker's method, or the Failure of what it raised."""
    try:
        return getattr(worker, method)(**arguments)
    except Exception as error:  # it is raised again in the controller
        return failure(error)


def keep(error: Exception) -> Failure:
    """Return a Failure that raises this exception itself, with its traceback, in the process where it was raised."""
    return Failure(error, "", "")


def place(role: str, rank: int, size: int, pid: int, method: str) -> str:
    """Return the note that names the worker of an error: "in worker policy, rank 1 of 4 (pid 77), method step"."""
    return f"in worker {role}, rank {rank} of {size} (pid {pid}), method {method}"


def _pickled(error: Exception) -> bytes | None:
    """Return an exception in bytes from which the same class is built again; None if there are none."""
    try:
        found = pickle.dumps(error)
        return found if type(pickle.loads(found)) is type(error) else None
    except Exception:  # whatever an exception's own __reduce__ or constructor raises
        return None
