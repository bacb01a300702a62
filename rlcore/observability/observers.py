"""Observers: what watches a run without being part of it. Recording, phase timing and invariant checks are observers.

    observers = Observers(Phases(), *checks_of_level("invariant"), StepRecorder(recorder))
    with observers.stage("rollout"):
        ...
        observers.emit(RequestsBuilt(requests))

A run computes the same bits with any observers, and with none.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from rlcore.observability.events import Event


class Observer:
    """Watches a run; each method does nothing unless it is overridden."""

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Surround a stage of a step."""
        return nullcontext()

    def observe(self, event: Event) -> None:
        """See an event; raise an EngineError to stop the run."""


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


class Observed(Protocol):
    """Whatever a stage is given that has observers."""

    @property
    def observers(self) -> Observers:
        """Observers of the run."""


StateT = TypeVar("StateT", bound=Observed)
Given = ParamSpec("Given")


def observed(
    stage: Callable[Concatenate[StateT, Given], Event | None],
) -> Callable[Concatenate[StateT, Given], None]:
    """Have the observers of a stage's state see the event that the stage returns, if any."""

    @wraps(stage)
    def and_emit(state: StateT, /, *given: Given.args, **named: Given.kwargs) -> None:
        event = stage(state, *given, **named)
        if event is not None:
            state.observers.emit(event)

    return and_emit
