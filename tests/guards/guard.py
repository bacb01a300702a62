"""A guard compares the head with what is frozen, row by row; it is red if a row is, or if it compared nothing."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Task = TypeVar("Task")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison."""

    name: str
    problem: str = ""
    """What differs from what is frozen; empty if the row is green."""
    missing: str = ""
    """What is not installed, so that the row did not run: neither green nor red."""


@dataclass(frozen=True, slots=True)
class Context:
    """What each guard is given."""

    is_quick: bool
    work: Path
    """An empty directory of the guard's own."""


Guard = Callable[[Context], Iterable[Row]]


@dataclass(frozen=True, slots=True)
class Result:
    """What a guard found."""

    guard: str
    rows: tuple[Row, ...]
    took_s: float

    @property
    def red(self) -> list[str]:
        """Each problem, after the name of its row."""
        found = [f"{row.name}: {row.problem}" for row in self.rows if row.problem]
        return found if any(not row.missing for row in self.rows) else [*found, "nothing was compared"]

    @property
    def missing(self) -> dict[str, list[str]]:
        """What is not installed -> the rows that did not run."""
        kinds = dict.fromkeys(row.missing for row in self.rows if row.missing)
        return {kind: [row.name for row in self.rows if row.missing == kind] for kind in kinds}


def carry_out(name: str, guard: Guard, context: Context, tell: Callable[[str], None]) -> Result:
    """Run one guard to its end; an error in it is a red row."""
    began_s, rows = time.monotonic(), []
    context.work.mkdir(parents=True)
    try:
        for row in guard(context):
            rows.append(row)
            state = f"RED  {row.problem}" if row.problem else f"not installed: {row.missing}" if row.missing else "ok"
            tell(f"{name:<9} {row.name}: {state}")
    except Exception as error:  # the other guards still run
        rows.append(Row("the guard itself", f"{type(error).__name__}: {error}"))
        tell(f"{name:<9} RED  {rows[-1].problem}")
    return Result(name, tuple(rows), time.monotonic() - began_s)


def in_parallel(run: Callable[[Task], Row], tasks: Iterable[Task], num_workers: int = 2) -> Iterator[Row]:
    """Run tasks that wait for processes, a few at a time; rows come in the order of the tasks."""
    with ThreadPoolExecutor(num_workers) as pool:
        yield from pool.map(run, tasks)


def rlharness(
    *arguments: str, cwd: Path, env: Mapping[str, str], python: str = sys.executable, limit_s: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run the command line of this checkout as a user does."""
    return run([python, "-m", "harness", *arguments], cwd=cwd, env=env, limit_s=limit_s)


def run(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], limit_s: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run a command, with both outputs as text."""
    return subprocess.run(
        command,
        check=False,
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def python_of(environment: str) -> str | None:
    """Return the interpreter of verl's, trl's or vllm's environment, or of this one; None if it is not installed."""
    if not environment:
        return sys.executable
    variables = {"verl": "RLHARNESS_VERL_PYTHON", "trl": "RLHARNESS_PEERS_PYTHON", "vllm": "RLHARNESS_VLLM_PYTHON"}
    return os.environ.get(variables[environment]) or None
