"""Inherited state of a process of rlharness, read once by the command line and passed down."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path


def discard(line: str) -> None:
    """Drop a note."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """Inherited state of the process, read once by the command line and passed down."""

    cwd: Path
    environ: Mapping[str, str]
    trailing: tuple[str, ...] = ()
    """Everything after `--`: given to every pytest process as it is, or the command that is recorded."""
    is_terminal: bool = False
    """Whether standard output is a terminal that can be redrawn."""
    note: Callable[[str], None] = discard
    """Called with one line that the user should see now, before there is a result."""


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def wants_colour(choice: str, invocation: Invocation) -> bool:
    """`--color always|never`, else NO_COLOR, else FORCE_COLOR, else whether there is a terminal (no-color.org)."""
    if choice != "auto":
        return choice == "always"
    if invocation.environ.get("NO_COLOR"):
        return False
    return bool(invocation.environ.get("FORCE_COLOR")) or invocation.is_terminal


def shadowing(cwd: Path) -> str:
    """The path of another top-level `harness` in `cwd`, which `python -m` imports first; empty where there is none."""
    spec = PathFinder.find_spec("harness", [str(cwd)])
    if spec is None or spec.origin is None:  # a directory without __init__.py gives way to a package
        return ""
    return "" if Path(spec.origin).resolve().parent == Path(__file__).resolve().parents[1] else spec.origin
