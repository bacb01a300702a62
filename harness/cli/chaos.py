"""`rlharness chaos`: perturb settings that should not affect results."""

import math
from typing import TYPE_CHECKING, Any

import click

from harness.cli import options as opt
from harness.process.invocation import Invocation

if TYPE_CHECKING:
    from harness.lab.chaos.search import ChaosOptions

OF_FACTORS = ("count", "seed", "factors", "repeats", "only")
"""Options without --vary."""


@click.command(epilog=opt.either("chaos --vary G=1,4 -- python train.py --accum {G}"))
@click.argument("scenario", required=False)
@opt.option("--count N", "Number of perturbations to try.  [default: 20]", opt.COUNT)
@opt.option("--seed S", "Seed for drawing perturbations.  [default: 0]", opt.INDEX)
@opt.option("--factors NAME,NAME", "Perturb only these: threads, hash_seed, a runtime setting.  [default: all]")
@opt.option("--repeats R", "Equal runs after which a perturbation counts as harmless.  [default: 3]", opt.COUNT)
@opt.many("--only FACTOR=VALUE", "Run only this perturbation, e.g. threads=2, or several combined.")
@opt.option("--steps num_steps N", "Of a scenario, or with --vary: run only the first N steps.", opt.COUNT)
@opt.many("--vary NAME=BASE,OTHER", "A setting that should change only rounding; its values replace {NAME}.")
@opt.option("--bits has_bits", "With --vary: fail if a value changes any bit.")
@opt.option("--max-seconds max_s S", "Start no new run after S seconds.", opt.ABOVE_0_S, default=math.inf)
@opt.scenario
@opt.experiment("chaos")
@opt.output
def chaos(invocation: Invocation, output: opt.Output, /, **given: Any) -> int:
    """Perturb settings that should not affect results.

    Minimizes any perturbation that does affect them. Exits with 0 if no perturbation changes a bit, 10 if one does,
    or 12 if a run fails. With --vary, rounding is allowed; exits with 11 if random numbers hide the answer.
    """
    from collections.abc import Callable
    from dataclasses import replace

    from harness.lab.chaos.search import Chaos, ChaosExecutor, PerturbationSearch, make_plan
    from harness.lab.chaos.vary import Varied, VaryPlan, VarySearch, make_vary_plan
    from harness.lab.experiment.launcher import LaunchContext, Launcher, run_experiment
    from harness.process.clock import SystemClock
    from harness.render.chaos import chaos_json, chaos_text, varied_json, varied_text
    from harness.render.run_lines import RunLines

    options, clock = chaos_options(given), SystemClock()
    own_id = opt.new_id()
    as_text: Callable[..., str] = varied_text if options.vary else chaos_text
    as_json: Callable[[Any], Any] = varied_json if options.vary else chaos_json
    plan = (make_vary_plan if options.vary else make_plan)(invocation, options, own_id)

    async def search(launcher: Launcher) -> Chaos | Varied:
        if isinstance(plan, VaryPlan):
            return await VarySearch(plan, launcher, invocation.environ, clock).search()
        return await PerturbationSearch(plan, ChaosExecutor(plan, launcher, invocation.environ, clock)).search()

    context = LaunchContext(invocation.cwd, invocation.environ, own_id, options.timeout_s)
    found, interrupted_by = run_experiment(context, RunLines(), search)
    found = replace(found, interrupted_by=interrupted_by)
    return output.show(found, as_text, as_json)


def chaos_options(given: dict[str, Any]) -> "ChaosOptions":
    """Return the options that were given."""
    from harness.lab.chaos.search import ChaosOptions

    of_factors = {name: value for name in OF_FACTORS if (value := given.pop(name)) not in (None, ())}
    return ChaosOptions(scenario_options=opt.take_options(given), of_factors=of_factors, **given)
