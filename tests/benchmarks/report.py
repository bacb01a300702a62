"""How long `rlharness report` takes on two traces of a thousand steps of a thousand leaves, and how large its page is.

    python tests/benchmarks/report.py                       # 1,000 steps, 1,000 leaves
    python tests/benchmarks/report.py --steps 100 --leaves 200

B is equal to A, other in one leaf from the middle on, or other in every leaf of every step. A time is that of the whole
command, interpreter and imports included, median of three; exit status 1 where one is over five seconds of processor
time, a page is over ten megabytes, or a verdict is wrong. The command does one thing after another and waits for
nothing, so that on a quiet machine the two times are the same.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from xxhash import xxh3_128_digest

from harness.trace.format import RecordedValue
from harness.trace.manifest import Fingerprint, Manifest
from harness.trace.values import Float
from harness.trace.writer import TraceWriter

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S, LIMIT_MB = 5.0, 10.0
PARTS = (("backward", ""), ("optimizer", ""), ("optimizer", ".exp_avg"), ("optimizer", ".exp_avg_sq"))
IsOther = Callable[[int, int], bool]


def cases(num_steps: int) -> dict[str, IsOther]:
    """By name, whether a leaf of a step is other in B."""
    return {
        "equal": lambda step, leaf: False,
        "one leaf, from the middle on": lambda step, leaf: step >= num_steps // 2 and leaf == 7,
        "every leaf of every step": lambda step, leaf: True,
    }


def write(directory: Path, num_steps: int, num_values: int, is_other: IsOther) -> None:
    """A trace with a curve of six values."""
    names = [
        (phase, f"model.layers.{at // 36}.mlp.down_proj.{at % 36 // 4}.weight{suffix}")
        for at in range(num_values)
        for phase, suffix in [PARTS[at % len(PARTS)]]
    ]
    with TraceWriter(directory, Manifest(Fingerprint(identity={"seed": "7"})), say=print) as writer:
        for step in range(num_steps):
            leaves = [
                RecordedValue(
                    *name, 0, "bf16", (4096, 11008), "xxh3_128", xxh3_128_digest(b"%d %d %d" % (step, at, other))
                )
                for at, name in enumerate(names)
                for other in [is_other(step, at)]
            ]
            value = Float.of(1 / (1 + step) + 1e-6 * is_other(step, 7), "f32")
            writer.append(step, leaves, dict.fromkeys(("reward_mean", "loss", "gradient_norm", "kl"), value))


def children_s() -> float:
    """Processor time of the children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def timed(a: Path, b: Path, out: Path) -> tuple[float, float, str]:
    """(seconds of the command, seconds of processor time, the verdict)."""
    seconds, processor_s = [], []
    for _ in range(3):
        began_s, used_s = time.monotonic(), children_s()
        command = [sys.executable, "-m", "harness", "report", str(a), str(b), "--out", str(out), "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        seconds.append(time.monotonic() - began_s)
        processor_s.append(children_s() - used_s)
        if done.returncode:
            raise RuntimeError(done.stderr)
    verdict = json.loads(done.stdout)["comparisons"][0]["verdict"]
    return statistics.median(seconds), statistics.median(processor_s), verdict


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--leaves", type=int, default=1000)
    args = parser.parse_args()
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {platform.machine()},"
        f" {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {args.steps:,} steps of {args.leaves:,} leaves"
    )
    is_good = True
    with tempfile.TemporaryDirectory(prefix="rlh-report-") as scratch:
        found = cases(args.steps)
        write(Path(scratch, "a"), args.steps, args.leaves, found["equal"])
        for number, (case, is_other) in enumerate(found.items()):
            b, out = Path(scratch, f"b-{number}"), Path(scratch, "report.html")
            write(b, args.steps, args.leaves, is_other)
            seconds, processor_s, verdict = timed(Path(scratch, "a"), b, out)
            size_mb = out.stat().st_size / 1e6
            is_right = verdict == ("equal" if case == "equal" else "diverged")
            is_good &= is_right and processor_s < LIMIT_S and size_mb < LIMIT_MB
            told = f"{seconds:.1f} s, {processor_s:.1f} s of processor time, {size_mb:.1f} MB"
            print(f"  {case:<28}  {told}{'' if is_right else '  WRONG'}", flush=True)
    print("PASS" if is_good else f"FAIL: over {LIMIT_S} s of processor time or {LIMIT_MB} MB, or wrong")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
