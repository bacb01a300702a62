"""Whether anything that must not matter does: every shipped scenario in its full size, 200 perturbations of each.

    python tests/benchmarks/chaos.py --size smoke                       # two or three hours
    python tests/benchmarks/chaos.py --scenarios grpo_sorting --size smoke --count 20

Each is `rlharness chaos SCENARIO` as a user types it, one after another. Exit status 1 where anything is found. A
search that is cut short by --max-seconds (of each scenario) says how many perturbations it came to, and passes for
these.
"""

import argparse
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.lab.experiments.scenario_files import all_scenarios
from rlcore.numerics.invariance_report import machine

ROOT = Path(__file__).resolve().parents[2]


def searched(scenario: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a search says, and how long it took."""
    words = ["--size", options.size, "--count", str(options.count), "--seed", str(options.seed)]
    words += ["--max-seconds", str(options.max_seconds)] if options.max_seconds else []
    began_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "harness", "chaos", scenario, *words, "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return {**told, "duration_s": time.perf_counter() - began_s}


def row(scenario: str, told: dict[str, Any]) -> str:
    """A line of the table."""
    finding = told.get("finding") or {}
    result = told.get("error") or told.get("problem") or finding.get("sentence") or "PASS"
    probes = f"{told.get('num_probes', 0)} of {told.get('num_probes_wanted', 0)}"
    return f"| {scenario} | {probes} | {told.get('num_runs', 0)} | {told['duration_s'] / 60:.1f} | {result} |"


def main() -> int:
    """Search them all, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", nargs="+", default=[each.name for each in all_scenarios(ROOT)])
    parser.add_argument("--size", default="full")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-seconds", type=float)
    options = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine()}, size {options.size}, seed {options.seed}\n")
    print("| scenario | perturbations | runs | minutes | |")
    print("|---|---|---|---|---|")
    codes = []
    for scenario in options.scenarios:
        told = searched(scenario, options)
        codes.append(told["exit_code"])
        print(row(scenario, told), flush=True)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
