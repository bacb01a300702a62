"""`rlharness bisect`: find the commit or package version that changed a run."""

from typing import Any

import click

from harness.cli import options as opt
from harness.process.invocation import Invocation


@click.command(epilog=opt.either("bisect --good v1.0 --bad HEAD -- python train.py"))
@click.argument("scenario", required=False)
@opt.option("--good REV", "Known-good revision.")
@opt.option("--bad REV", "Known-bad descendant of the good revision.")
@opt.option("--packages NAME==A..B", "Search between two versions of a package instead.")
@opt.option("--by bits|METRIC>X", "What makes a run bad: different bits, or a curve value.", default="bits")
@opt.scenario
@opt.setup
@opt.experiment("bisections")
@opt.output
def bisect(invocation: Invocation, output: opt.Output, /, *, by: str, **given: Any) -> int:
    """Find the commit or package version that changed a run.

    Exits with 0 if it is found, 11 if the two ends do not differ as --by states, or 12 if runs fail.
    """
    import asyncio

    from harness.lab.bisect.bisection import BisectOptions, parse_criterion
    from harness.lab.bisect.bisection import bisect as search
    from harness.render.bisect import bisection_json, bisection_text
    from harness.render.run_lines import RunLines

    options = BisectOptions(criterion=parse_criterion(by), given=opt.take_options(given), **given)
    found = asyncio.run(search(options, invocation, opt.new_id(), RunLines()))
    return output.show(found, bisection_text, bisection_json)
