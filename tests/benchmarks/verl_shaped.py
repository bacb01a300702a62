"""`rlharness run --gpus sim:8` on a suite of verl's shape: every outcome and lease checked, makespan / bound printed.

    python tests/benchmarks/verl_shaped.py            # 211 files
    python tests/benchmarks/verl_shaped.py --files 40 --scale 0.02 --directory DIR

Exit status 1 where anything is not as the suite was made to be.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from harness.bits.exit_codes import ExitCode
from tests.support.verl_shaped.check import Record, held_locks, problems, read_jsonl
from tests.support.verl_shaped.suite import ShapedFile, draw_suite, write_suite

ROWS = Path(__file__).resolve().parents[1] / "data" / "verl_suite.json"


def main() -> int:
    """Draw, write, run and check one suite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=211)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--cpu-units", type=int, default=4)
    parser.add_argument("--scale", type=float, default=0.06, help="seconds of sleep per second of the original")
    parser.add_argument("--seed", type=int, default=20260301)
    parser.add_argument("--directory", type=Path, help="where to write and keep the suite; must not exist")
    args = parser.parse_args()
    rows = json.loads(ROWS.read_text("utf-8"))
    files = draw_suite(rows, num_files=args.files, num_gpus=args.gpus, scale=args.scale, seed=args.seed)
    with tempfile.TemporaryDirectory() as scratch:
        directory = args.directory or Path(scratch) / "suite"
        write_suite(files, directory)
        found = run_and_check(files, directory, num_gpus=args.gpus, cpu_units=args.cpu_units)
    for line in found:
        print(f"WRONG  {line}")
    return 1 if found else 0


def run_and_check(files: tuple[ShapedFile, ...], directory: Path, *, num_gpus: int, cpu_units: int) -> list[str]:
    """Run the suite once, print its figures, and return what is wrong."""
    events_file = directory / "events.jsonl"
    options = ["--gpus", f"sim:{num_gpus}", "--cpu-units", str(cpu_units), "--grace", "2", "--events", str(events_file)]
    command = [sys.executable, "-m", "harness", "run", "--no-split", *options]  # what is checked are whole files
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # No plugin has a say: the limits in these files are the runner's to hold, not pytest-timeout's.
    environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    environ["XDG_CACHE_HOME"] = str(directory / "cache")  # for the history of durations
    done = subprocess.run(
        command, cwd=directory, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    events = read_jsonl(events_file)
    if done.returncode != ExitCode.TESTS_FAILED or not events or events[-1]["event"] != "run_finished":
        return [f"exit status {done.returncode}, made to be 1:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"]
    print(figures(files, events))
    found = problems(files, events, read_jsonl(directory / "leases.jsonl"), num_gpus=num_gpus)
    return found + [f"{name}: a process of the run still lives" for name in held_locks(directory)]


def figures(files: tuple[ShapedFile, ...], events: list[Record]) -> str:
    """What is worth keeping of a run."""
    started = next(event for event in events if event["event"] == "run_started")
    planned = next(event for event in events if event["event"] == "collection_finished")
    end = events[-1]
    outcomes = Counter(event["result"]["outcome"] for event in events if event["event"] == "unit_finished")
    deeds = Counter(str(file.deed) for file in files)
    return "\n".join(
        [
            f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {os.cpu_count()} cores,"
            f" {len(started['gpus'])} GPUs, containment {started['containment']}",
            f"{len(files)} files: {', '.join(f'{name} {count}' for name, count in sorted(deeds.items()))}",
            f"outcomes: {', '.join(f'{name} {count}' for name, count in sorted(outcomes.items()))}",
            f"collected in {planned['duration_s']:.1f} s; wall {end['wall_s']:.1f} s"
            f" against {end['sequential_s']:.1f} s in sequence",
            f"makespan {end['makespan_s']:.1f} s / lower bound {end['lower_bound_s']:.1f} s"
            f" = {end['makespan_s'] / end['lower_bound_s']:.3f}; GPUs in use {end['utilisation']:.0%}",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
