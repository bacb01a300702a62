"""Faults that are functions still, one collection after the other on its way to faults.yaml."""

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.guards.guard import ROOT
from tests.guards.planted import fault as rows
from tests.guards.planted.fault import Deeds, Fault

LEVEL, RESUME = rows.LEVEL, rows.RESUME
FROZEN: dict[str, str] = json.loads((ROOT / "tests" / "data" / "planted_faults.json").read_text("utf-8"))


class Probe(Deeds):
    """What a fault did in one run."""

    def reached(self, *, has_effect: bool = True) -> None:
        """The code of the fault ran."""
        self.is_reached = True


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
            FROZEN[install.__name__],
            phases,
            (),
            setting,
            leaves,
            is_in_ranks=is_in_ranks,
            is_harmless=is_harmless,
            install=contextmanager(install),
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
