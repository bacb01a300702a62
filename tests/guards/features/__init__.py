"""Features: each command, option and documented key does what its row says.

The rows are in the modules beside this one. One run settles many rows: a row is what a user sees of it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from tests.guards.features import engine, gating, keys, lab, machine, others, planning, recording, running, variants
from tests.guards.features.completeness import unlisted
from tests.guards.features.feature import Feature, Run, Runs, absent
from tests.guards.guard import ROOT, Context, Row

FEATURES: tuple[Feature, ...] = sum(
    (each.FEATURES for each in (running, planning, keys, machine, recording, lab, gating, others, engine, variants)), ()
)
HELP_S = 0.3
"""Most processor time of `rlharness --help`."""


def rows(context: Context) -> Iterator[Row]:
    """Carry out each run, and look for what each of its features shows."""
    by_run: dict[str, list[Feature]] = {}
    for feature in FEATURES:
        if feature.run.is_quick or not context.is_quick:
            by_run.setdefault(feature.run.name, []).append(feature)
    runs = Runs(context.work)

    def settled(features: list[Feature]) -> list[Row]:
        run = features[0].run
        if missing := absent(run):
            return [Row(feature.name, missing=missing) for feature in features]
        return settle(features, run, runs)

    yield from unlisted(FEATURES, context.work)
    yield _help_time()
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(settled, by_run.values()):
            yield from found


def settle(features: list[Feature], run: Run, runs: Runs) -> list[Row]:
    """Return the rows of the features of one run."""
    try:
        seen = runs.seen(run)
    except (OSError, subprocess.SubprocessError) as error:
        return [Row(feature.name, f"{type(error).__name__}: {error}") for feature in features]
    return [Row(feature.name, feature.problem(seen)) for feature in features]


def _help_time() -> Row:
    """Measure the processor time of `rlharness --help`, the least of three, with bytecode as an installation has it."""
    times, env = [], {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "harness", "--help"],
            cwd=ROOT,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        times.append(usage.ru_utime + usage.ru_stime)
    problem = f"{min(times):.2f} s of processor time, over {HELP_S} s" if min(times) >= HELP_S else ""
    return Row("processor time of --help", problem)
