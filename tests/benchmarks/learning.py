"""Whether it learns: held-out reward before and after, for several seeds, and with rewards that were shuffled.

    python tests/benchmarks/learning.py                              # both scenarios, four seeds, half an hour
    python tests/benchmarks/learning.py --scenarios ppo_arithmetic --seeds 0

Each run is `rlharness train SCENARIO` as a user types it, one after another. A control has the same steps, each reward
handed to another sample of the batch. Exit status 1 where a run starts below 0.6, gains less than 0.15, takes over
240 s of processor time, or a control gains more than 0.02. A run has one thread, so that processor time is what it
takes where nothing runs beside it. `--plot DIRECTORY` draws the curves, a picture a scenario (matplotlib).
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rlcore.numerics.probe import machine

SCENARIOS = ("grpo_reverse_text", "ppo_arithmetic")
LEAST_START, LEAST_GAIN, MOST_OF_CONTROL, LIMIT_S = 0.6, 0.15, 0.02, 240.0


@dataclass(frozen=True, slots=True)
class Learned:
    """One run."""

    scenario: str
    seed: int
    is_control: bool
    curve: tuple[tuple[int, float], ...]
    """(step, held-out reward)"""
    wall_s: float
    processor_s: float
    """Of the run and all its processes."""

    @property
    def gain(self) -> float:
        """The last held-out reward above the first."""
        return self.curve[-1][1] - self.curve[0][1]

    @property
    def fault(self) -> str:
        """What is wrong with it; empty where nothing is."""
        if self.is_control:
            return f"gains over {MOST_OF_CONTROL}" if self.gain > MOST_OF_CONTROL else ""
        faults = [
            (self.curve[0][1] < LEAST_START, f"starts below {LEAST_START}"),
            (self.gain < LEAST_GAIN, f"gains less than {LEAST_GAIN}"),
            (self.processor_s > LIMIT_S, f"takes over {LIMIT_S:.0f} s"),
        ]
        return ", ".join(text for is_wrong, text in faults if is_wrong)


def learned(scenario: str, seed: int, *, is_control: bool, settings: Sequence[str] = ()) -> Learned:
    """Train, and read what was written."""
    with tempfile.TemporaryDirectory() as parent:
        out = Path(parent) / "run"
        chosen = [f"seed={seed}", f"task.shuffles_rewards={str(is_control).lower()}", *settings]
        words = [word for setting in chosen for word in ("--set", setting)]
        began, used_before = time.perf_counter(), processor_s_of_children()
        done = subprocess.run(
            [sys.executable, "-m", "harness", "train", scenario, "--out", str(out), *words],
            capture_output=True,
            text=True,
            check=False,
        )
        wall_s, processor_s = time.perf_counter() - began, processor_s_of_children() - used_before
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    name = "evaluation/reward_mean"
    curve = tuple((line["step"], line[name]) for line in lines if name in line)
    return Learned(scenario, seed, is_control, curve, wall_s, processor_s)


def processor_s_of_children() -> float:
    """Of those that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def plot(scenario: str, runs: Sequence[Learned], directory: Path) -> None:
    """The curves of a scenario as learning_SCENARIO.png: what learns in colour, controls in grey."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    panel = figure.subplots()
    for run in runs:
        steps, rewards = zip(*run.curve, strict=True)
        color, linestyle = ("0.6", "--") if run.is_control else (f"C{run.seed}", "-")
        label = f"seed {run.seed}" + (", shuffled" if run.is_control else "")
        panel.plot(steps, rewards, label=label, color=color, linestyle=linestyle)
    panel.set(title=scenario, xlabel="step", ylabel="held-out reward", ylim=(0, 1))
    panel.legend(fontsize="x-small")
    figure.savefig(directory / f"learning_{scenario}.png", dpi=110)


def main() -> int:
    """Run them, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", nargs="+", default=SCENARIOS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--plot", type=Path, metavar="DIRECTORY")
    options = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine()}\n")
    print("| scenario | seed | rewards | start | end | gain | seconds | of processor | |")
    print("|---|---|---|---|---|---|---|---|---|")
    runs = []
    for scenario in options.scenarios:
        for is_control in (False, True):
            for seed in options.seeds:
                run = learned(scenario, seed, is_control=is_control, settings=options.settings)
                runs.append(run)
                kind = "shuffled" if is_control else "its own"
                start, end = run.curve[0][1], run.curve[-1][1]
                print(
                    f"| {scenario} | {seed} | {kind} | {start:.3f} | {end:.3f} | {run.gain:+.3f} |"
                    f" {run.wall_s:.0f} | {run.processor_s:.0f} | {run.fault or 'PASS'} |",
                    flush=True,
                )
        if options.plot:
            plot(scenario, [run for run in runs if run.scenario == scenario], options.plot)
    return int(any(run.fault for run in runs))


if __name__ == "__main__":
    sys.exit(main())
