"""What a step costs by where its models train: the same run in one process, and on Ray.

    python -m tests.benchmarks.deployments [--scenario grpo_reverse_text] [--steps 20] [--size smoke]

Every run is recorded by `rlharness train`, one after another; the median of its steps but the first, by phase, and
whether `rlharness diff` finds it equal to the run in one process. Exit status 1 if one is not.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rlcore.numerics.probe import machine

DEPLOYMENTS = {
    "in_process": {},
    "ray, 1 rank": {"backend": "ray"},
    "ray, 2 ranks": {"backend": "ray", "num_ranks": "2"},
    "ray, 2 shards": {"backend": "ray", "num_ranks": "2", "sharding": "full"},
}
PHASES = ("rollout", "reference", "update", "optimizer", "sync")
RLHARNESS = (sys.executable, "-m", "harness")


def train(out: Path, deployment: dict[str, str], arguments: argparse.Namespace) -> None:
    """Record a run; CalledProcessError if it fails."""
    given = {"training.num_steps": str(arguments.steps), "output.shows_progress": "false"}
    given |= {f"deployment.{name}": value for name, value in deployment.items()}
    settings = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    command = [*RLHARNESS, "train", arguments.scenario, "--size", arguments.size, "--out", str(out), *settings]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def milliseconds(out: Path) -> dict[str, float]:
    """Return the median of each phase of a step, and of all of them together."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [line for line in lines if "loss" in line][1:]
    found = {name: statistics.median(step.get(f"seconds/{name}", 0.0) for step in steps) for name in PHASES}
    total = statistics.median(sum(step.get(f"seconds/{name}", 0.0) for name in PHASES) for step in steps)
    return {name: 1000 * seconds for name, seconds in {**found, "step": total}.items()}


def main() -> int:
    """Measure, and print a table; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenario", default="grpo_reverse_text")
    parser.add_argument("--size", default="smoke")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    print(f"{machine()}\n{arguments.scenario}, size {arguments.size}, {arguments.steps} steps, ms a step (median)")
    print(f"{'':<22}" + "".join(f"{name:>11}" for name in (*PHASES, "step")) + "  bits")
    status = 0
    with tempfile.TemporaryDirectory() as temporary:
        for name, deployment in DEPLOYMENTS.items():
            out = Path(temporary, name.replace(", ", "-").replace(" ", "-"))
            train(out, deployment, arguments)
            diff = subprocess.run(
                [*RLHARNESS, "diff", str(Path(temporary, "in_process")), str(out)],
                check=False,
                stdout=subprocess.DEVNULL,
            )
            status |= bool(diff.returncode)
            row = milliseconds(out)
            print(f"{name:<22}" + "".join(f"{row[phase]:>11.1f}" for phase in row), end="  ")
            print("DIFFERENT" if diff.returncode else "equal", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
