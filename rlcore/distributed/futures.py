"""Results of calls that do not block."""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

Result = TypeVar("Result")


class Pending(Protocol):
    """A call that a backend runs."""

    def is_done(self) -> bool:
        """Whether `results` returns at once."""

    def results(self, timeout_s: float | None) -> dict[int, Any]:
        """Wait, and return the result or the Failure of each rank that ran the call.

        It returns with the first Failure, without the ranks that still run. Raises WorkerDiedError if a process of
        the group ends, and TimeoutError.
        """


class Future(Generic[Result]):
    """The result of a call whose entry does not block.

    A future cannot be an argument of another call: `result` shows where the controller waits.
    """

    def __init__(self, pending: Pending, finish: Callable[[dict[int, Any]], Result]) -> None:
        """Collect the results of a pending call by `finish`; groups build futures."""
        self._pending, self._finish = pending, finish
        self._found: list[Result] = []

    def is_done(self) -> bool:
        """Whether `result` returns at once."""
        return self._pending.is_done()

    def result(self, timeout_s: float | None = None) -> Result:
        """Wait for the call and return what its entry collects, or raise what a worker raised.

        Raises TimeoutError; the call continues, and `result` may be asked again.
        """
        if not self._found:
            self._found.append(self._finish(self._pending.results(timeout_s)))
        return self._found[0]
