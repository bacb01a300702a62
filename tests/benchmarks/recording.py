"""What recording costs a program that is not changed: at its start, and in each step, on one thread of the CPU.

    python tests/benchmarks/recording.py                 # 10M parameters, a step of a second or more
    python tests/benchmarks/recording.py --batch 2 8 32  # steps of several lengths

A transformer trains. Start-up: the same program runs unrecorded and under `rlharness trace` in turns, and the time from
its command to the end of its first step is compared. Steps: in one process, steps with the hooks at work and at rest
take turns, so that what the machine does beside weighs on both alike. Processor time counts, because other work on the
machine does not change it much; wall time stands beside it. Exit status 1 where the hooks take over 1 % of a step of
`--long-s` or more, where start-up costs over 0.5 s of processor time, or where the final weights differ.
"""

import argparse
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 0.01
START_LIMIT_S = 0.5
NUM_RESAMPLES = 2000


def now_s() -> tuple[float, float]:
    """(processor seconds of this process, seconds of a clock)."""
    return time.process_time(), time.perf_counter()


@dataclass
class Clock:
    """Time spent inside the hooks."""

    cpu_s: float = 0.0
    wall_s: float = 0.0


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median of these, by resampling with a fixed seed."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(NUM_RESAMPLES))
    return medians[NUM_RESAMPLES // 40], medians[-NUM_RESAMPLES // 40]


def train(args: argparse.Namespace, directory: Path) -> int:
    """The measured process: rlharness's hooks are in, and are laid to rest for every other step."""
    import torch

    from harness.recording.automatic import _active
    from tests.benchmarks.op_level import Training

    torch.set_num_threads(1)
    foreign = _active.foreign
    assert foreign is not None
    inside, guarded = Clock(), foreign.guarded

    def timed(*arguments: object) -> None:
        cpu_s, wall_s = now_s()
        guarded(*arguments)  # type: ignore[arg-type]
        after_cpu_s, after_wall_s = now_s()
        inside.cpu_s += after_cpu_s - cpu_s
        inside.wall_s += after_wall_s - wall_s

    foreign.guarded = timed  # type: ignore[assignment,method-assign]
    recorded = Training(args)
    recorded.step()  # warms up: names are found, the log is opened
    foreign.is_paused = True  # else the other model would be a bystander of this one, read at every step
    plain = Training(args)
    plain.step()
    hooks: list[tuple[float, float]] = []
    steps: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for pair in range(args.pairs):
        both = [(recorded, True), (plain, False)]
        for training, is_recorded in both if pair % 2 else reversed(both):
            foreign.is_paused = not is_recorded
            before, began = (inside.cpu_s, inside.wall_s), now_s()
            training.step()
            ended = now_s()
            steps[is_recorded].append((ended[0] - began[0], ended[1] - began[1]))
            if is_recorded:
                hooks.append((inside.cpu_s - before[0], inside.wall_s - before[1]))
    num_bytes = (directory / "rank-0.log").stat().st_size / (args.pairs + 1)
    num_parameters = sum(each.numel() for each in plain.weights())
    is_same = all(torch.equal(a, b) for a, b in zip(plain.weights(), recorded.weights(), strict=True))
    return report(args, steps, hooks, num_parameters, num_bytes, is_same=is_same)


def report(
    args: argparse.Namespace,
    steps: dict[bool, list[tuple[float, float]]],
    hooks: list[tuple[float, float]],
    num_parameters: int,
    num_bytes: float,
    *,
    is_same: bool,
) -> int:
    """Print what a step costs; the exit status."""
    digested = 4 * num_parameters * 4  # weights, gradients, two moments
    step_s = statistics.median(cpu_s for cpu_s, _ in steps[False])
    hook_s = statistics.median(cpu_s for cpu_s, _ in hooks)
    print(
        f"{num_parameters / 1e6:.1f}M parameters, {args.batch} x {args.length} tokens, {args.pairs} pairs:"
        f" hooks {hook_s * 1e3:.1f} ms of a step of {step_s * 1e3:,.0f} ms of processor time, {hook_s / step_s:.2%};"
        f" {digested / hook_s / 1e9:.1f} GB/s digested, {num_bytes / 1e3:.1f} kB a step written; {LIMIT:.0%} of a step"
        f" of {hook_s / LIMIT:.1f} s"
    )
    for kind, index in (("processor", 0), ("wall", 1)):
        ratios = [a[index] / b[index] for a, b in zip(steps[True], steps[False], strict=True)]
        low, high = interval(ratios)
        print(
            f"  whole steps in pairs, {kind} time: {statistics.median(ratios):.3f} times"
            f" (95 % interval of the median {low:.3f} to {high:.3f})"
        )
    is_good = is_same and (hook_s <= LIMIT * step_s or step_s < args.long_s)
    note = "" if step_s >= args.long_s else f"; no limit holds for a step under {args.long_s:.1f} s"
    print(f"  weights {'bit-identical' if is_same else 'DIFFER'}; {'PASS' if is_good else 'FAIL'}{note}", flush=True)
    return 0 if is_good else 1


def first_step(args: argparse.Namespace) -> None:
    """The program whose start is measured: import, model, one step."""
    import torch

    from tests.benchmarks.op_level import Training

    torch.set_num_threads(1)
    training = Training(args)
    training.step()
    ended_s, cpu_s = time.clock_gettime(time.CLOCK_MONOTONIC), time.process_time()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s += children.ru_utime + children.ru_stime
    if "RLHARNESS_TRACE" in os.environ:  # what rlharness itself took before and beside it
        cpu_s += int(Path(f"/proc/{os.getppid()}/schedstat").read_text("ascii").split()[0]) / 1e9
    print(f"first step: {cpu_s} {ended_s}", flush=True)


def started(command: Sequence[str], env: dict[str, str]) -> tuple[float, float]:
    """(processor seconds, seconds) of a command until its first step has ended."""
    began_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("first step: ")]
    cpu_s, ended_s = map(float, line.split()[2:])
    return cpu_s, ended_s - began_s


def measure_start(args: argparse.Namespace, scratch: Path, env: dict[str, str]) -> int:
    """Print what start-up costs; the exit status."""
    program = [sys.executable, __file__, "--batch", "1", "--within", "start"]
    seconds: list[list[tuple[float, float]]] = []
    for number in range(args.starts + 1):
        trace = [sys.executable, "-m", "harness", "trace", "--out", str(scratch / f"start{number}"), "--"]
        commands = [program, [*trace, *program]]
        seconds.append([started(command, env) for command in commands])
    kept = seconds[1:]  # the first one writes the bytecode
    for kind, index in (("processor", 0), ("wall", 1)):
        plain, recorded = (statistics.median(pair[each][index] for pair in kept) for each in (0, 1))
        extra = [pair[1][index] - pair[0][index] for pair in kept]
        low, high = interval(extra)
        print(
            f"{kind} time to the end of the first step: {plain:.2f} s unrecorded, {recorded:.2f} s recorded;"
            f" {statistics.median(extra):+.2f} s (95 % interval of the median {low:+.2f} to {high:+.2f};"
            f" {len(kept)} pairs)"
        )
    cost_s = statistics.median(pair[1][0] - pair[0][0] for pair in kept)
    is_good = cost_s <= START_LIMIT_S
    print(f"  {'PASS' if is_good else f'FAIL: over {START_LIMIT_S} s of processor time'}", flush=True)
    return 0 if is_good else 1


def main() -> int:
    """Start the measured processes, unrecorded and under `rlharness trace`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=320, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--batch", type=int, nargs="+", default=[16], help="a run of steps for each")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=9, help="steps with and without a record, in turns")
    parser.add_argument("--starts", type=int, default=7, help="pairs of starts; 0: start-up is not measured")
    parser.add_argument("--long-s", type=float, default=2.0, help="from this length of a step on, the limit holds")
    parser.add_argument("--within", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.within is not None:
        (args.batch,) = args.batch
        if args.within == "start":
            first_step(args)
            return 0
        return train(args, Path(args.within))
    from importlib.metadata import version

    print(
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, torch {version('torch')},"
        f" xxhash {version('xxhash')}, {platform.machine()}, {os.cpu_count()} cores,"
        f" load {os.getloadavg()[0]:.1f}; one thread",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="rlh-recording-") as scratch:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": f"{scratch}/bytecode"}
        codes = [measure_start(args, Path(scratch), env)] if args.starts else []
        for batch in args.batch:
            out = Path(scratch, f"steps{batch}")
            shape = ["--width", args.width, "--layers", args.layers, "--length", args.length, "--pairs", args.pairs]
            program = [sys.executable, __file__, *map(str, shape), "--batch", str(batch), "--long-s", str(args.long_s)]
            command = [
                sys.executable,
                "-m",
                "harness",
                "trace",
                "--out",
                str(out),
                "--",
                *program,
                "--within",
                str(out),
            ]
            codes.append(subprocess.run(command, check=False, env=env, cwd=ROOT).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
