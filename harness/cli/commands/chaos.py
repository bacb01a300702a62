"""`rlharness chaos` from arguments to exit code.

plan ─▶ session: hunt on a bench ─▶ text or JSON
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.core.clock import Clock, SystemClock
from harness.core.exit_codes import ExitCode
from harness.core.invocation import Invocation, wants_colour
from harness.lab.chaos.executor import PROGRAM, Bench
from harness.lab.chaos.finding import Chaos
from harness.lab.chaos.plan import ChaosPlan, make_plan
from harness.lab.chaos.search import Hunt
from harness.lab.experiments.program_input import read_input
from harness.lab.experiments.session import open_session
from harness.lab.experiments.supervised_runs import Place
from harness.process.run_directory import new_run_id
from harness.render.chaos import chaos_json, chaos_text
from harness.render.chaos_progress import ChaosLines
from harness.render.console import say, show


def run_chaos(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness chaos`; HarnessError for what the user can mend."""
    clock = SystemClock()
    chaos_id = new_run_id(clock.wall())
    plan = make_plan(invocation, arguments, chaos_id, lambda: read_input(0, say))
    place = Place(PROGRAM, invocation.cwd, invocation.environ, chaos_id, plan.timeout_s, plan.stdin)
    chaos = asyncio.run(_search(plan, place, clock))
    if arguments["json"]:
        show(json.dumps(chaos_json(chaos)))
    else:
        show(chaos_text(chaos, colour=wants_colour(arguments["color"], invocation)))
    return chaos.exit_code


async def _search(plan: ChaosPlan, place: Place, clock: Clock) -> Chaos:
    """The whole search; and the signal that ended it early."""
    lines = ChaosLines(plan, clock)
    with open_session(place, lines) as session:
        bench = Bench(plan, session, place.environ, clock, lines)
        chaos = await Hunt(plan, bench).search()
        return replace(chaos, interrupted_by=session.interrupted_by)
