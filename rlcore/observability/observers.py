"""Observers: what watches a run without being part of it. Recording, phase timing and invariant checks are observers.

    observers = Observers(Phases(), *checks_of_level("invariant"), StepRecorder(recorder))
    with observers.stage("rollout"):
        ...
        observers.emit(RequestsBuilt(requests))

A run computes the same bits with any observers, and with none.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from rlcore.observability.events import Event


class Observer:
    """Watches a run; each method does nothing unless it is overridden."""

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Surround a stage of a step."""
        return nullcontext()

    def observe(self, event: Event) -> None:
        """See an event; raise an RlcoreError to stop the run."""


class Observers(Observer):
    """Several observers as one; each event reaches them in the order given."""

    def __init__(self, *observers: Observer) -> None:
        self.each = observers

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Surround a stage by all observers, the first one outermost."""
        with ExitStack() as stack:
            for observer in self.each:
                stack.enter_context(observer.stage(name))
            yield

    def observe(self, event: Event) -> None:
        """Pass an event on."""
        for observer in self.each:
            observer.observe(event)

    emit = observe
