"""What a fault is, and how it is put into the engine for as long as a run takes."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from harness.trace.chain import PHASES

RESUME = "resume"
"""Where a fault lies that is no phase's: between the checkpoint and the first step after it."""
LEVEL = "level"
"""The same: what the whole process is told about arithmetic."""
PLACES = (*PHASES, RESUME, LEVEL)


class Probe:
    """What a fault did in one run: whether its code was reached, and the first step in which it made a difference."""

    def __init__(self) -> None:
        self.num_reached = 0
        self.first_effect: int | None = None
        self.step: int | None = None
        """The step that has begun, or the next one; None until it is known with which the run begins."""
        self._is_before_steps = False

    def begin(self, step: int) -> None:
        """A step begins."""
        self.step = step
        if self._is_before_steps and self.first_effect is None:
            self.first_effect = step

    def end(self) -> None:
        """The step ends."""
        assert self.step is not None
        self.step += 1

    def reached(self, *, has_effect: bool = True) -> None:
        """The code of the fault ran; `has_effect` says whether the honest code would have done something else."""
        self.num_reached += 1
        if has_effect and self.first_effect is None:
            self.first_effect = self.step
            self._is_before_steps |= self.step is None


Install = Callable[[Probe], AbstractContextManager[None]]
"""Puts a fault into the engine for as long as it is entered."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    name: str
    source: str
    """The thread it was reported in, or the program it was seen in."""
    about: str
    """What is done wrongly, in a line."""
    phases: tuple[str, ...]
    """Where a right localisation points: phases of a trace, or `resume`."""
    setting: str
    """Of the tiny scenario it is tried in: one in which it makes a difference."""
    leaves: tuple[str, ...]
    """Parts of names of values, one of which has to be named where a value is; any of the phase will do without."""
    install: Install
    is_in_ranks: bool = False
    """Whether it lies in processes that train together: it is then tried in two of them too."""
    is_harmless: bool = False
    """Whether no bit of a run depends on it: right is then that nothing is found."""


def fault(
    source: str,
    about: str,
    *,
    phases: tuple[str, ...],
    setting: str = "grpo",
    leaves: tuple[str, ...] = (),
    is_in_ranks: bool = False,
    is_harmless: bool = False,
) -> Callable[[Callable[[Probe], Iterator[None]]], Fault]:
    """Make a fault of a generator function that patches, yields once, and undoes it; its name is the fault's."""

    def made(install: Callable[[Probe], Iterator[None]]) -> Fault:
        return Fault(
            install.__name__,
            source,
            about,
            phases,
            setting,
            leaves,
            contextmanager(install),
            is_in_ranks=is_in_ranks,
            is_harmless=is_harmless,
        )

    return made


@contextmanager
def replaced(target: str, value: Any) -> Iterator[None]:
    """Put a value in the place of "module:name" or "module:Class.name"; it is put back however this ends.

    AttributeError where there is nothing of that name: the engine has changed, and the fault has to follow.
    """
    owner, name = _owner(target)
    before = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def honest(target: str) -> Any:
    """What stands at "module:name" or "module:Class.name"."""
    owner, name = _owner(target)
    return getattr(owner, name)


def _owner(target: str) -> tuple[Any, str]:
    module, _, path = target.partition(":")
    *classes, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for each in classes:
        owner = getattr(owner, each)
    return owner, name
