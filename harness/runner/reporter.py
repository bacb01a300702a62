"""The interface of a reporter, and the guard that keeps a broken one from costing a run its results."""

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from harness.runner.events import Event
from harness.runner.records.stats import RunState


class Reporter(Protocol):
    """A consumer of a run's events. It reads, and decides nothing."""

    def on_event(self, event: Event, state: RunState) -> None:
        """Handle one event, already folded into `state`; return soon, and change neither."""

    def close(self) -> None:
        """The run is over, in order or not; called once, after which nothing more comes."""


class Guarded:
    """A reporter that is switched off at its first failure, which is reported once; the run continues.

    `say` receives one line; stderr itself may be closed by then. `is_asked`: it writes a file that the user named.
    `is_late`: it has written nothing before the last event.
    """

    def __init__(
        self,
        reporter: Reporter,
        name: str,
        say: Callable[[str], None],
        *,
        is_asked: bool = False,
        is_late: bool = False,
    ) -> None:
        self._reporter = reporter
        self._name = name
        self._say = say
        self.is_asked = is_asked
        self.is_late = is_late
        self.failure: Exception | None = None

    @property
    def loss(self) -> str:
        """Description of the missing output after a failure; empty while the reporter works."""
        return f"{self._name} is incomplete: {self.failure}" if self.failure is not None else ""

    def on_event(self, event: Event, state: RunState) -> None:
        """Pass the event on while the reporter works."""
        if self.failure is None:
            self._try(lambda: self._reporter.on_event(event, state))

    def close(self) -> None:
        """Close the reporter, also one that has failed: it may hold a file or a terminal."""
        self._try(self._reporter.close)

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # a full disk, our own bug: none is worth the run's results
            first = self.failure is None
            self.failure = self.failure or error
            if first:
                complain(self._say, self._name, error)


def complain(say: Callable[[str], None], name: str, error: BaseException) -> None:
    """Report once that `name` is off, if the terminal is still open."""
    with suppress(OSError, ValueError):  # stderr may be the same closed terminal
        say(f"rlharness: {name} is off for the rest of this run ({type(error).__name__}: {error}); the run continues")
