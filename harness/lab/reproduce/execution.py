"""Runs the steps of a plan again, with operations once more, and compares them with the recorded ones.

plan ─▶ its steps again (with --trace-ops once more, operations recorded) ─▶ comparison with what was recorded
plan of another run ─▶ the same ─▶ comparison of the two
"""

from harness.lab.experiments.driver import Variant, record_variants
from harness.lab.experiments.launcher import LaunchContext, Launcher, open_launcher
from harness.lab.experiments.out_directory import OutDirectory
from harness.lab.experiments.run import Run, TitledDisplay
from harness.lab.reproduce.comparison import classify_other, compare_step
from harness.lab.reproduce.plan import StepPlan
from harness.lab.reproduce.result import Reproduction


async def reproduce(
    plan: StepPlan, other: StepPlan | None, out: OutDirectory, place: LaunchContext, display: TitledDisplay
) -> Reproduction:
    """Run the steps of a plan again, and those of another run's, in directories below `out`.

    Raises UsageError where an entry refuses its run before the first step.
    """
    with open_launcher(place, display) as launcher:
        runs = await _record(plan, launcher, out, 1, display)
        is_set_against = other is not None and not launcher.interrupted_by and bool(runs[0].recording.ranks)
        others = await _record(other, launcher, out, 2, display) if other and is_set_against else []
        interrupted_by = launcher.interrupted_by
    repeated = compare_step(plan, runs)
    against = None if other is None or not others else classify_other(repeated, compare_step(other, others))
    return Reproduction(repeated, out.path, against, interrupted_by=interrupted_by)


async def _record(
    plan: StepPlan, launcher: Launcher, out: OutDirectory, number: int, display: TitledDisplay
) -> list[Run]:
    """Record the run of a plan, and the one with operations; UsageError where its entry refuses to begin."""
    whose = "" if number == 1 else " of the other run"
    steps = f"step {plan.step}" if plan.first == plan.step else f"steps {plan.first} to {plan.step}"
    variants = [Variant(plan.run_spec, number, f"repetition of {steps}{whose}")]
    if plan.has_operations:
        variants.append(Variant(plan.with_operations, number, f"repetition of {steps}{whose}, with operations"))

    def show_title(variant: Variant) -> None:
        display.title = variant.title

    return await record_variants(launcher, variants, out, began=show_title, ended=display.ended)
