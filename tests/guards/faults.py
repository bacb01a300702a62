"""Planted faults: each is found by the means that found it when it was frozen, or by an earlier one.

python -m tests.guards.faults NAME...     tries single faults
"""

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.bits.exit_codes import ExitCode
from tests.guards.guard import ROOT, Context, Row, rlharness
from tests.guards.planted.fault import FAULTS, Fault, named
from tests.guards.planted.honest_pairs import alarms, left_behind
from tests.guards.planted.settings import payload
from tests.guards.planted.trials import CHAOS, ENGINE, GATE, NOTHING, REPLAY, Finding, findings
from tests.guards.planted.workers import Workers

MEANS = (ENGINE, REPLAY, CHAOS, GATE, NOTHING)
"""In the order in which a user has them."""
SEED = "a dozen"
NUM_DRAWN, NUM_PAIRS_QUICK = 12, 10
NUM_PAIRS = 40
LEAST_LOCALISED = 0.9
SCENARIO = """
about: the engine with a fault in it
entry: tests.guards.planted.entry:run
determinism: invariant
gpus: 0
sizes: {smoke: {}, full: {}}
runtime_sections: [runtime, output, fault]
config: %s
"""


def rows(context: Context) -> Iterator[Row]:
    """Try the faults, or a drawn dozen of them, then honest pairs, in which nothing may be found."""
    yield typed(context.work)
    if context.is_quick:
        yield from tried(drawn(), NUM_PAIRS_QUICK, context.work)
    else:
        yield from tried(FAULTS, NUM_PAIRS, context.work)


def drawn() -> list[Fault]:
    """Return a dozen faults, always the same, of those that need neither several ranks nor many steps."""
    quick = [
        fault
        for fault in FAULTS
        if not fault.is_in_ranks and fault.setting != "long" and (fault.is_harmless or fault.finder != NOTHING)
    ]
    return random.Random(SEED).sample(quick, NUM_DRAWN)


def tried(faults: Sequence[Fault], num_pairs: int, work: Path) -> Iterator[Row]:
    """Yield a row for each fault, then those of all of them."""
    num_localised = 0
    with Workers(work) as workers:
        goldens = workers.goldens(fault.setting for fault in faults)
        for found in findings(workers, faults, goldens):
            num_localised += found.is_localised
            yield Row(found.fault.name, problem(found))
        if len(faults) == len(FAULTS):
            is_red = num_localised < LEAST_LOCALISED * len(faults)
            yield Row("phases", f"{num_localised} of {len(faults)} are right" if is_red else "")
        yield Row("honest runs after all faults", "; ".join(left_behind(goldens, workers)))
        yield Row(f"{num_pairs} honest pairs", "; ".join(alarms(num_pairs, workers)))


def problem(finding: Finding) -> str:
    """Return why a finding is worse than the frozen one; empty if it is not."""
    found = f"found by {finding.check}"
    if finding.check == NOTHING and not finding.is_reached:
        return "the code of the fault did not run"
    if not finding.is_designed:
        return f"found by no check, {finding.how}: {finding.what}"
    if finding.fault.is_harmless and finding.check != NOTHING:
        return f"no bit depends on it, and it was {found}: {finding.how}"
    if MEANS.index(finding.check) > MEANS.index(finding.fault.finder):
        return f"{found}{f' ({finding.how})' if finding.how else ''}, and by {finding.fault.finder} when it was frozen"
    return ""


def typed(work: Path) -> Row:
    """Let a user's command find a fault."""
    config = json.dumps({**payload("grpo"), "fault": {}})
    (work / "faulty.yaml").write_text(SCENARIO % config, "utf-8")
    few = ("--set", "training.num_steps=2", "--set", "warm_start.num_steps=1")
    words = ("faulty.yaml", "--set", "fault.name=prompts_of_a_set", *few, "--out", "runs", "--json")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = rlharness("replay", *words, cwd=work, env={**os.environ, "PYTHONPATH": path})
    name = "prompts_of_a_set, by rlharness replay"
    if done.returncode != ExitCode.DIVERGED:
        return Row(name, f"exit code {done.returncode}: {done.stdout[-400:]}{done.stderr[-400:]}")
    (comparison,) = json.loads(done.stdout)["comparisons"]
    first = comparison["first"]["a"]
    seen = (first["phase"], first["name"])
    return Row(name, "" if seen == ("rollout", "prompt_ids") else f"{seen}")


def main() -> int:
    """Try the faults of the command line; exit status 1 if one is found later than it was frozen."""
    parser = argparse.ArgumentParser(prog="python -m tests.guards.faults", description=__doc__)
    parser.add_argument("faults", nargs="+", metavar="NAME")
    try:
        faults = [named(name) for name in parser.parse_args().faults]
    except KeyError as error:
        parser.error(str(error.args[0]))
    is_red = False
    with tempfile.TemporaryDirectory(prefix="faults-") as work, Workers(Path(work)) as workers:
        goldens = workers.goldens(fault.setting for fault in faults)
        for found in findings(workers, faults, goldens):
            is_red |= bool(red := problem(found))
            place = f"step {found.step}, {' or '.join(found.phases) or '-'} {found.leaf}".rstrip()
            print(f"{found.fault.name}: {found.check} ({found.how}), {place}")
            print(f"    {found.what}" + (f"\n    RED {red}" if red else ""), flush=True)
    return 1 if is_red else 0


if __name__ == "__main__":
    sys.exit(main())
