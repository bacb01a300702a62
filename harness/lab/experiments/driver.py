"""The driver: carries out the runs that an experiment wants, one after another, and the experiment around them.

variants ─▶ launcher: run 1, run 2, ... ─▶ refused? nothing is left │ nothing recorded, or a signal? no more runs
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from harness.lab.experiments.launcher import LaunchContext, Launcher, open_launcher, refuse
from harness.lab.experiments.out_directory import OutDirectory
from harness.lab.experiments.run import Display, Run
from harness.recording.run_spec import RunSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Variant:
    """One run that an experiment wants."""

    run_spec: RunSpec
    number: int = 1
    """Number of the run, which names its directory."""
    title: str = ""
    """What the run is, for a person; empty where the number says it."""


def run_experiment(
    context: LaunchContext, display: Display, experiment: Callable[[Launcher], Awaitable[T]]
) -> tuple[T, str]:
    """Return what an experiment finds with a launcher of its own, and the signal that ended it early, else empty."""

    async def carried_out() -> tuple[T, str]:
        with open_launcher(context, display) as launcher:
            return await experiment(launcher), launcher.interrupted_by

    return asyncio.run(carried_out())


async def record_variants(
    launcher: Launcher,
    variants: Iterable[Variant],
    out: OutDirectory,
    *,
    began: Callable[[Variant], None] = lambda variant: None,
    ended: Callable[[Run], None],
    is_useless: Callable[[Run], bool] = lambda run: not run.recording.ranks,
) -> list[Run]:
    """Record one variant after another below `out`, until one is useless or a signal asks for the end.

    `began` and `ended` are called around each run. Raises UsageError where the entry of one refuses to begin; of that
    run nothing is left.
    """
    runs: list[Run] = []
    for variant in variants:
        began(variant)
        run = await launcher.record(variant.run_spec, out.path, variant.number)
        refuse(run, out)
        ended(run)
        runs.append(run)
        if launcher.interrupted_by or is_useless(run):
            break
    return runs
