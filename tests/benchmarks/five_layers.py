"""What each of the five layers of reproducibility is for: a run without it, with jitter, against the run with all.

    python tests/benchmarks/five_layers.py
    python tests/benchmarks/five_layers.py --served-by vllm

With vllm, in the environment of constraints-vllm.txt, vLLM serves both replicas of the policy and the reward model.
Prints the table of `rlcore/VLLM.md`. Exit status 1 if a run with all layers differs, or one without a layer does not.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path

from rlcore.numerics.probe import machine
from tests.rlcore.training.recorded import RecordedValue
from tests.support.five_layers import LAYERS, Removal, compare, remove


def main() -> int:
    """Make the runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--served-by", choices=["torch", "vllm"], default="torch")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, redirect_stdout(sys.stderr):
        directory = Path(name)
        reference, differences = compare(args.served_by, directory, num_steps=args.steps)
        removals = [remove(layer, reference, args.served_by, directory, num_steps=args.steps) for layer in LAYERS]
    print(f"{datetime.now(UTC):%Y-%m-%d}, {args.steps} steps served by {args.served_by}, {machine()}")
    print(table(differences, removals))
    is_held = not any(differences.values()) and all(each.difference for each in removals)
    print("PASS" if is_held else "FAIL")
    return 0 if is_held else 1


def table(differences: Mapping[str, RecordedValue | None], removals: Sequence[Removal]) -> str:
    """Return the table in Markdown."""
    lines = [f"{name}: {_named(found)}" for name, found in differences.items()]
    lines += ["", "| removed | its mechanism here | first difference | check that ends the run |", "|---|---|---|---|"]
    for each in removals:
        found = _named(each.difference), each.error or "none"
        lines.append(f"| {each.layer.name} | {each.layer.mechanism} | {' | '.join(found)} |")
    return "\n".join(lines)


def _named(value: RecordedValue | None) -> str:
    if value is None:
        return "no bit differs"
    step, phase, name, _ = value
    return f"step {step}, {phase}, {name}"


if __name__ == "__main__":
    sys.exit(main())
