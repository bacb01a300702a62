"""How long `rlharness diff` takes on two traces of a million leaves each.

    python tests/benchmarks/trace_diff.py                   # a million leaves
    python tests/benchmarks/trace_diff.py --values 100000

Traces of a thousand steps and traces of one step; B is equal to A, other in every step, or other in its last leaf
alone. A time is that of the whole command, interpreter and imports included, median of three; exit status 1 where one
is over a second, or a verdict is wrong. Beside it: what writing took, and the size of a trace. Then a kept tensor of
ten million elements of which all or one differ: how long it takes to compare them, once; ten seconds of processor time
at most.
"""

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from xxhash import VERSION, xxh3_128_digest

from harness.trace.format import RecordedValue
from harness.trace.manifest import Manifest
from harness.trace.values import compare
from harness.trace.writer import TraceWriter

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 1.0
NUM_ELEMENTS = 10_000_000
ELEMENTS_LIMIT_S = 10.0
SALTS: dict[str, Callable[[bool, bool], bool]] = {
    "equal": lambda is_last_step, is_last_leaf: False,
    "every step differs": lambda is_last_step, is_last_leaf: is_last_leaf,
    "every leaf differs": lambda is_last_step, is_last_leaf: True,
    "only the last leaf differs": lambda is_last_step, is_last_leaf: is_last_step and is_last_leaf,
}


def recorded_values_of(num_values: int, step: int, is_other: Callable[[bool], bool]) -> Sequence[RecordedValue]:
    """Leaves as a recorder would name them; of those that are other, another digest."""
    return [
        RecordedValue(
            phase="backward",
            name=f"model.layers.{number // 9}.mlp.down_proj.{number % 9}.weight",
            occurrence=0,
            dtype="bf16",
            shape=(4096, 11008),
            algorithm="xxh3_128",
            digest=xxh3_128_digest(b"%d %d %d" % (step, number, is_other(number == num_values - 1))),
        )
        for number in range(num_values)
    ]


def write(directory: Path, num_steps: int, num_values: int, salt: Callable[[bool, bool], bool]) -> float:
    """Write a trace; returns the seconds that the writer itself took."""
    took_s = 0.0
    with TraceWriter(directory, Manifest(), say=print) as writer:
        for step in range(num_steps):
            is_last = step == num_steps - 1
            recorded_values = recorded_values_of(num_values, step, partial(salt, is_last))
            began_s = time.monotonic()
            writer.append(step, recorded_values)
            took_s += time.monotonic() - began_s
    return took_s


def timed(a: Path, b: Path) -> tuple[float, float, dict[str, object]]:
    """(seconds, seconds of processor time, verdict) of the command; medians of three."""
    seconds, processor_s = [], []
    for _ in range(3):
        began_s, used_s = time.monotonic(), children_s()
        done = subprocess.run(
            [sys.executable, "-m", "harness", "diff", str(a), str(b), "--json"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds.append(time.monotonic() - began_s)
        processor_s.append(children_s() - used_s)
        if not done.stdout:
            raise RuntimeError(done.stderr)
    return statistics.median(seconds), statistics.median(processor_s), json.loads(done.stdout)


def children_s() -> float:
    """Processor time of the children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compare_elements() -> bool:
    """Time the comparison of kept tensors; whether it is fast enough, and right."""
    random.seed(1)
    some = array("f", [random.gauss(0, 1) for _ in range(2**16)])
    one = (some * (NUM_ELEMENTS // len(some) + 1))[:NUM_ELEMENTS].tobytes()
    noisy = array("f", [value + 1e-3 * random.gauss(0, 1) for value in some])
    other = (noisy * (NUM_ELEMENTS // len(some) + 1))[:NUM_ELEMENTS].tobytes()
    is_good = True
    print(f"a kept tensor of {NUM_ELEMENTS:,} float32")
    for case, data in (("all differ", other), ("the last one differs", one[:-1] + bytes([one[-1] ^ 1]))):
        began_s = time.process_time()
        found = compare("f32", one, data)
        took_s = time.process_time() - began_s
        is_good &= took_s < ELEMENTS_LIMIT_S and found is not None and found.num_compared == NUM_ELEMENTS
        print(f"  {case:<26}  {took_s:.2f} s of processor time", flush=True)
    return is_good


def expected(case: str, num_steps: int) -> tuple[str, int]:
    """The verdict of a case, and how many steps are different."""
    if case == "equal":
        return "equal", 0
    return "diverged", 1 if case == "only the last leaf differs" else num_steps


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=1_000_000, help="of a trace; a multiple of 1000")
    args = parser.parse_args()
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, xxhash {VERSION}, {platform.machine()},"
        f" {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {args.values:,} leaves a trace"
    )
    is_good = True
    for num_steps in (1000, 1):
        with tempfile.TemporaryDirectory(prefix="rlh-diff-") as scratch:
            a = Path(scratch) / "a"
            took_s = write(a, num_steps, args.values // num_steps, SALTS["equal"])
            size = (a / "rank-0.log").stat().st_size
            print(
                f"{num_steps:,} steps of {args.values // num_steps:,} leaves: {size / 1e6:.0f} MB;"
                f" writing took {took_s / args.values * 1e6:.1f} us a leaf",
                flush=True,
            )
            for case, salt in SALTS.items():
                b = Path(scratch) / case.replace(" ", "_")
                write(b, num_steps, args.values // num_steps, salt)
                seconds, processor_s, verdict = timed(a, b)
                is_right = (verdict["verdict"], verdict["num_steps_different"]) == expected(case, num_steps)
                is_good &= is_right and seconds < LIMIT_S
                used = f"{processor_s:.2f} s of processor time{'' if is_right else '  WRONG'}"
                print(f"  {case:<26}  {seconds:.2f} s, {used}", flush=True)
    is_good &= compare_elements()
    print("PASS" if is_good else f"FAIL: over {LIMIT_S} s, for elements {ELEMENTS_LIMIT_S} s, or wrong")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
