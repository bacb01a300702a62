"""A search that runs test files again and again, each time in an interpreter of its own, and records nothing."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from harness.core.clock import SystemClock
from harness.process.claims import Claims
from harness.process.interruption import Interruption
from harness.runner.options import RunOptions
from harness.runner.run_context import RunContext, RunGpus, open_run_context, read_run_gpus

T = TypeVar("T")


async def search_with_probes(
    options: RunOptions,
    search: Callable[[RunContext], Coroutine[Any, Any, T]],
    check_gpus: Callable[[RunGpus], None] = lambda gpus: None,
) -> T | str:
    """Return what `search` finds, or the name of the signal that came first.

    Raises HarnessError for an error of the user, and what `check_gpus` and `search` raise.
    """
    options = replace(options, isolate="interpreter", split=False, retries=0, check_leaning=False, together=())
    with Interruption() as interruption, Claims() as claims:
        gpus = await interruption.unless_interrupted(read_run_gpus(options, claims))
        if gpus is None:
            return interruption.by
        check_gpus(gpus)
        async with open_run_context(options, SystemClock(), gpus, claims, is_run=False) as context:
            found = await interruption.unless_interrupted(search(context))
            return interruption.by if found is None else found
