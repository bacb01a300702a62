"""The runs of a replay, in the order in which they are started."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from harness.lab.experiments.driver import Variant, record_variants
from harness.lab.experiments.launcher import Launcher
from harness.lab.experiments.run import Run
from harness.lab.replay.plan import ReplayPlan


async def record_all(plan: ReplayPlan, launcher: Launcher, *, ended: Callable[[Run], None]) -> list[Run]:
    """Record every run that the plan wants, until one has recorded no step or a signal asks for the end.

    Raises UsageError where the entry of one refuses to begin.
    """
    return await record_variants(
        launcher, variants_of(plan), plan.out, ended=ended, is_useless=lambda run: not run.recording.num_steps
    )


def variants_of(plan: ReplayPlan) -> Iterator[Variant]:
    """Yield each run, and after it the same once more with operations where the plan has a step for them."""
    for number in range(1, plan.num_runs + 1):
        run_spec = plan.spec_of(number)
        yield Variant(run_spec, number)
        if plan.op_step is not None:
            yield Variant(replace(run_spec, op_step=plan.op_step), number)
