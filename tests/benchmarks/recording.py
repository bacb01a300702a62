"""What recording every step costs a program that is not changed, on a transformer's training on the CPU.

    python tests/benchmarks/recording.py                 # 10M parameters, a step of a second or more

Steps with the hooks at work and with the hooks at rest take turns in one process, so that what the machine does beside
weighs on both alike. The cost is the time inside the hooks, and beside it the ratio of the medians, which also holds
what the hooks cost by being there. Exit status 1 where the hooks take over 1 % of a step of a second or more, or where
the weights of the last step are others than those of a training without hooks.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 0.01


def train(args: argparse.Namespace, directory: Path) -> int:
    """The measured process: rlharness's hooks are in, and are laid to rest for every other step."""
    import torch

    from harness.recording.active import _active
    from tests.benchmarks.op_level import Training

    foreign = _active.foreign
    assert foreign is not None
    inside_s = 0.0
    guarded = foreign.guarded

    def timed(*arguments: object) -> None:
        nonlocal inside_s
        began_s = time.perf_counter()
        guarded(*arguments)  # type: ignore[arg-type]
        inside_s += time.perf_counter() - began_s

    foreign.guarded = timed  # type: ignore[assignment,method-assign]
    recorded = Training(args)
    recorded.step()  # warms up: names are found, the log is opened
    foreign.rest(True)  # from here on, or the other model would be a bystander of the recorded one, read at every step
    plain = Training(args)
    plain.step()
    hooks_s, steps_s = [], {False: list[float](), True: list[float]()}
    for _ in range(args.pairs):
        for training, is_recorded in ((recorded, True), (plain, False)):
            foreign.rest(not is_recorded)
            before_s, began_s = inside_s, time.perf_counter()
            training.step()
            steps_s[is_recorded].append(time.perf_counter() - began_s)
            hooks_s += [inside_s - before_s] if is_recorded else []
    log = directory / "rank-0.log"
    num_bytes = log.stat().st_size / (args.pairs + 1)
    plain_s, recorded_s = (statistics.median(steps_s[kind]) for kind in (False, True))
    hook_s = statistics.median(hooks_s)
    num_parameters = sum(each.numel() for each in plain.weights())
    is_same = all(torch.equal(a, b) for a, b in zip(plain.weights(), recorded.weights(), strict=True))
    digested = 4 * num_parameters * 4  # weights, gradients, two moments
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, torch {torch.__version__},"
        f" {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f};"
        f" {num_parameters / 1e6:.1f}M parameters, {args.batch} x {args.length} tokens"
    )
    print(
        f"a step: {plain_s * 1e3:,.0f} ms without, {recorded_s * 1e3:,.0f} ms with a record"
        f" ({recorded_s / plain_s:.3f} times); in the hooks {hook_s * 1e3:.1f} ms, {100 * hook_s / plain_s:.2f} %,"
        f" {digested / hook_s / 1e9:.1f} GB/s digested, {num_bytes / 1e3:.1f} kB a step written"
    )
    print("weights bit-identical" if is_same else "WEIGHTS DIFFER")
    is_long = plain_s >= 1.0
    is_good = is_same and (hook_s <= LIMIT * plain_s or not is_long)
    verdict = "PASS" if is_good else f"FAIL: over {LIMIT:.0%}, or other weights"
    print(verdict if is_long else f"{verdict} (a step of less than a second: no limit holds)")
    return 0 if is_good else 1


def main() -> int:
    """Start the measured process under `rlharness trace`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=320, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=7, help="steps with and without a record, in turns")
    parser.add_argument("--within", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.within is not None:
        return train(args, args.within)
    with tempfile.TemporaryDirectory(prefix="rlh-recording-") as scratch:
        out = Path(scratch, "trace")
        program = [sys.executable, __file__, *sys.argv[1:], "--within", str(out)]
        command = [sys.executable, "-m", "harness", "trace", "--out", str(out), "--", *program]
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
        return subprocess.run(command, check=False, env=env, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
