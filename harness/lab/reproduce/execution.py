"""Runs the steps of a plan again, with operations once more, and compares them with the recorded ones.

plan ─▶ its steps again (with --op once more, operations recorded) ─▶ comparison with what was recorded
plan of another run ─▶ the same ─▶ comparison of the two
"""

from harness.lab.experiments.out_directory import OutDirectory
from harness.lab.experiments.session import Session, open_session, refuse
from harness.lab.experiments.supervised_runs import Place, Run, TitledDisplay
from harness.lab.reproduce.comparison import judge_other, judge_step
from harness.lab.reproduce.plan import StepPlan
from harness.lab.reproduce.result import Reproduction


async def reproduce(
    plan: StepPlan, other: StepPlan | None, out: OutDirectory, place: Place, display: TitledDisplay
) -> Reproduction:
    """Run the steps of a plan again, and those of another run's, in directories below `out`.

    Raises UsageError where an entry refuses its run before the first step.
    """
    with open_session(place, display) as session:
        runs = await _record(plan, session, out, 1, display)
        is_set_against = other is not None and not session.interrupted_by and bool(runs[0].recording.ranks)
        others = await _record(other, session, out, 2, display) if other and is_set_against else []
        interrupted_by = session.interrupted_by
    repeated = judge_step(plan, runs)
    against = None if other is None or not others else judge_other(repeated, judge_step(other, others))
    return Reproduction(repeated, out.path, against, interrupted_by=interrupted_by)


async def _record(
    plan: StepPlan, session: Session, out: OutDirectory, number: int, display: TitledDisplay
) -> list[Run]:
    """The run of a plan, and the one with operations; UsageError where its entry refuses it before its first step."""
    whose = "" if number == 1 else " of the other run"
    steps = f"step {plan.step}" if plan.first == plan.step else f"steps {plan.first} to {plan.step}"
    envelopes = [plan.envelope, *([plan.with_operations] if plan.has_operations else [])]
    runs: list[Run] = []
    for envelope in envelopes:
        display.title = f"{steps}{whose} again" + ("" if envelope.op_step is None else ", with operations")
        run = await session.record(envelope, out.path, number)
        refuse(run, out)
        display.ended(run)
        runs.append(run)
        if session.interrupted_by or not run.recording.ranks:
            break
    return runs
