"""`rlharness replay`: run a scenario or program several times, and compare each bit.

plan ─▶ run 1, run 2, ... (with --trace-ops each once more, its operations recorded) ─▶ verdict ─▶ text or JSON
"""

from typing import Any

import click

from harness.cli import options as opt
from harness.process.invocation import Invocation


@click.command(epilog=opt.either("replay -- python train.py --seed 7"))
@click.argument("scenario", metavar="[SCENARIO]", required=False)
@opt.scenario
@opt.many("--sweep KEY=V1,V2", "For a scenario: values of a runtime setting, which must not affect results.")
@opt.option("--runs num_runs N", "Number of runs.  [default: 2; 1 with --against]", opt.COUNT)
@opt.option("--against DIR", "Compare with the trace in DIR instead of the first run.", opt.PATH)
@opt.experiment("replays")
@opt.option("--step K", "Save the tensors of step K; steps are numbered from 0.", opt.INDEX)
@opt.trace_step
@opt.option("--resume-at K", "Kill a run after K steps, resume it, and report what it lost; K,L kills it again at L.")
@opt.option("--resume-command COMMAND", "Command that resumes it.  [default: resume_command of the scenario]")
@opt.output
def replay(invocation: Invocation, output: opt.Output, /, **given: Any) -> int:
    """Run a scenario or program several times and compare each bit.

    Each run is a fresh process. Exits with 0 if all runs are equal, 10 if they diverge, 11 if they are not comparable,
    or 12 if a recording is incomplete. With --resume-at, it exits with 0 if the resumed run loses nothing, 10 if it
    does, or 11 if there is no comparison.
    """
    from functools import partial

    from harness.lab.experiment.launcher import LaunchContext, Launcher, Run, record_variants, run_experiment
    from harness.lab.replay.replay import ReplayOptions, compare_runs, make_plan
    from harness.lab.replay.resumption import ResumeVerdict, make_resume_plan, record_resumed
    from harness.render.replay import replay_json, replay_text, resume_json, resume_text
    from harness.render.run_lines import RunLines

    options = ReplayOptions(scenario_options=opt.take_options(given), **given)
    own_id = opt.new_id()
    is_resumed = options.resume_at is not None or options.resume_command is not None
    resume = make_resume_plan(options, invocation) if is_resumed else None
    plan = make_plan(invocation, options, own_id)
    place = LaunchContext(invocation.cwd, invocation.environ, own_id, plan.timeout_s)

    async def record(launcher: Launcher) -> list[Run] | ResumeVerdict:
        if resume:
            return await record_resumed(resume, invocation, plan, launcher)
        return await record_variants(launcher, plan.runs(), plan.out, lambda run: not run.recording.num_steps)

    found, interrupted_by = run_experiment(place, RunLines(), record)
    if isinstance(found, ResumeVerdict):
        as_text, as_json = partial(resume_text, plan), partial(resume_json, plan)
        return output.show(found, as_text, as_json)
    compared = compare_runs(plan, found, interrupted_by)
    return output.show(compared, replay_text, replay_json)
