"""Our whole GRPO step against TRL's, by turns in one run: the same weights, prompts and lengths, one thread.

    RLHARNESS_PEERS_PYTHON=... python tests/benchmarks/engine_vs_trl.py                  # four sizes, fifteen minutes
    RLHARNESS_PEERS_PYTHON=... python tests/benchmarks/engine_vs_trl.py --sizes 127k --rounds 100

A step is 8 prompts x 8 completions of exactly 32 tokens, fp32, by the defaults of both: rollout, reward, update,
optimizer and, ours, a sync with its receipt, at both levels. TRL is measured as it comes, which is with
gradient checkpointing, and without. Each is a process; a round is a step of each, in an order that turns, so that what
the machine does beside hits all. Times are medians of the rounds, wall and processor time; targets are judged by wall
time, memory by the highest peak. The floor of a step is its operations (products and attention) at the rate at which
one core multiplies matrices here. Exit status 1 where a target is missed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from rlcore.models.checkpoints import save
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer
from rlcore.numerics.probe import machine
from rlcore.numerics.product import mkl_mode, product

ROOT = Path(__file__).resolve().parents[2]
STEPS = Path(__file__).parent / "one_step"
PEERS = "RLHARNESS_PEERS_PYTHON"
TOKENIZER = CharacterTokenizer("abcdefghijklmnopqrstuvwxyz>")
PROMPTS = ("flow>", "grid>", "hand>", "jump>", "knot>", "lamp>", "milk>", "nest>")
"""As reversing words has them."""
GROUP_SIZE, NUM_TOKENS, NUM_WARM_UP = 8, 32, 2
NUM_COMPLETION_TOKENS = len(PROMPTS) * GROUP_SIZE * NUM_TOKENS
TRL, TRL_PLAIN, INVARIANT, OFF = "TRL", "TRL, no checkpointing", "rlcore invariant", "rlcore off"
COST_GOALS = {"rollout": 1.5, "update": 1.15}
"""What level invariant may cost against off: times as long."""


@dataclass(frozen=True, slots=True)
class Size:
    """A model, and what is asked of us there."""

    config: DecoderConfig
    num_rounds: int
    targets: Mapping[str, float]
    """Times as many tokens per second as TRL."""


SIZES = {
    "127k": Size(DecoderConfig("qwen3", 30, 64, 2, 4, 2, 16, 256, max_length=64), 30, {INVARIANT: 3.0}),
    "1M": Size(DecoderConfig("qwen3", 30, 128, 4, 4, 2, 32, 512, max_length=64), 12, {INVARIANT: 2.0}),
    "13M": Size(DecoderConfig("qwen3", 30, 384, 6, 6, 2, 64, 1536, max_length=64), 4, {INVARIANT: 1.1, OFF: 1.3}),
    "50M": Size(DecoderConfig("qwen3", 30, 768, 6, 12, 4, 64, 3072, max_length=64), 2, {}),
}


@dataclass(slots=True)
class Child:
    """One engine in a process of its own."""

    name: str
    process: "subprocess.Popen[str]"
    versions: str = ""
    steps: list[dict[str, float]] = field(default_factory=list)
    products_share: float = 0.0
    """Of a profiled step; profiling slows small operations most."""
    flops: float = 0.0

    def ask(self, word: str) -> dict[str, float]:
        """One step, told as one_step/turns.py says."""
        assert self.process.stdin is not None
        print(word, file=self.process.stdin, flush=True)
        return self.told()

    def told(self) -> dict[str, float]:
        """The child's next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self.process.wait()}")
        told: dict[str, float] = json.loads(line)
        return told

    def median_s(self, name: str, kind: str = "wall") -> float:
        """Of a part over the rounds."""
        return statistics.median(step[f"{kind}/{name}"] for step in self.steps)

    @property
    def parts(self) -> list[str]:
        """Of a step, in the order in which they come."""
        return [key.removeprefix("wall/") for key in self.steps[0] if key.startswith("wall/") and key != "wall/step"]

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens in a whole step's time."""
        return NUM_COMPLETION_TOKENS / self.median_s("step")

    @property
    def peak_bytes(self) -> float:
        """The most memory of the process."""
        return max(step["peak_bytes"] for step in self.steps)


def commands(size: Size, model: Path) -> dict[str, list[str]]:
    """How each is started."""
    shared = [str(model), "--group-size", str(GROUP_SIZE), "--num-tokens", str(NUM_TOKENS), "--prompts", *PROMPTS]
    trl = [os.environ[PEERS], str(STEPS / "trl_step.py"), *shared]
    ours = [sys.executable, str(STEPS / "rlcore_step.py"), *shared]
    return {
        TRL: trl,
        TRL_PLAIN: [*trl, "--no-checkpointing"],
        INVARIANT: [*ours, "--level", "invariant"],
        OFF: [*ours, "--level", "off"],
    }


@contextmanager
def children(size: Size) -> Iterator[list[Child]]:
    """All of them, ready to step, with the weights of one checkpoint."""
    single = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environ = {
        **os.environ,
        **single,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        model = Path(directory) / "model"
        save(Decoder(size.config).initialise(1), model)
        TOKENIZER.save(model)
        errors = stack.enter_context((Path(directory) / "errors").open("w+"))
        started = []
        for name, command in commands(size, model).items():
            own = dict(environ)
            if name == INVARIANT:  # as `rlharness train` starts it
                own["MKL_CBWR"] = mkl_mode()
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=own,
                cwd=directory,
            )
            started.append(Child(name, stack.enter_context(process)))
        try:
            for child in started:
                child.versions = str(child.told()["versions"])
            yield started
        except SystemExit:
            errors.seek(0)
            sys.stderr.write(errors.read()[-4000:])
            raise
        finally:
            for child in started:
                child.process.communicate()


def measure(started: Sequence[Child], num_rounds: int) -> None:
    """Rounds, each a step of everybody; then what a step is made of."""
    for number in range(NUM_WARM_UP + num_rounds):
        first = number % len(started)
        for child in (*started[first:], *started[:first]):
            told = child.ask("step")
            if number >= NUM_WARM_UP:
                child.steps.append(told)
    for child in started:
        child.products_share = max(child.ask("products")["products_share"] for _ in range(2))
        child.flops = child.ask("flops")["flops"]


def products_per_s(num_tries: int = 12) -> float:
    """Floating-point operations per second of one core in a product of fp32 matrices, by the faster library."""
    size = 1024
    a, b = torch.randn(size, size), torch.randn(size, size)
    times = []
    for multiply in (torch.matmul, product):
        for _ in range(num_tries):
            began_s = time.process_time()
            multiply(a, b)
            times.append(time.process_time() - began_s)
    return 2 * size**3 / min(times)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def describe(child: Child, peak_per_s: float) -> str:
    """Two lines: what a step takes, and what it is made of."""
    step_s, cpu_s = child.median_s("step"), child.median_s("step", "cpu")
    parts = {name: child.median_s(name) for name in child.parts}
    rest_s = step_s - sum(parts.values())
    rest = "train" if child.name.startswith("TRL") else "rest"
    told = ", ".join(f"{name} {milliseconds(seconds)}" for name, seconds in [*parts.items(), (rest, rest_s)])
    floor_s = child.flops / peak_per_s
    return (
        f"  {child.name}: {milliseconds(step_s)} (processor {milliseconds(cpu_s)}), {child.tokens_per_s:,.0f} tokens/s,"
        f" {child.peak_bytes / 1e6:.0f} MB; {told}\n"
        f"    products, attention {child.products_share:.0%} of it; {child.flops / 1e9:.1f} GFLOP,"
        f" at peak {milliseconds(floor_s)}: {step_s / floor_s:.1f} times the floor"
    )


def judge(size: Size, by_name: Mapping[str, Child]) -> tuple[list[str], bool]:
    """Lines, and whether all targets are met."""
    lines, is_good = [], True
    trl = by_name[TRL]
    for name in (INVARIANT, OFF):
        child, target = by_name[name], size.targets.get(name)
        times = child.tokens_per_s / trl.tokens_per_s
        by_cpu = trl.median_s("step", "cpu") / child.median_s("step", "cpu")
        plain = child.tokens_per_s / by_name[TRL_PLAIN].tokens_per_s
        memory = child.peak_bytes / trl.peak_bytes
        is_met, fits = times >= (target or 0.0), memory <= 1.0
        asked = f"target {target:g}: {'PASS' if is_met else 'FAIL'}" if target else "no target"
        lines.append(
            f"  {name} against TRL: {times:.2f} times its tokens/s ({by_cpu:.2f} by processor time, {plain:.2f} against"
            f" TRL without checkpointing), {asked}; {memory:.2f} times its memory: {'PASS' if fits else 'FAIL'}"
        )
        is_good &= is_met and fits
    ours, off = by_name[INVARIANT], by_name[OFF]
    costs = {part: ours.median_s(part, "cpu") / off.median_s(part, "cpu") for part in COST_GOALS}
    told = "; ".join(
        f"{part} {times:.2f} times, goal {COST_GOALS[part]:g}: {'PASS' if times <= COST_GOALS[part] else 'FAIL'}"
        for part, times in costs.items()
    )
    lines.append(f"  level invariant against off, processor time: {told}")
    return lines, is_good and all(times <= COST_GOALS[part] for part, times in costs.items())


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--rounds", type=int, help="in place of each size's own number")
    arguments = parser.parse_args()
    if not os.environ.get(PEERS):
        raise SystemExit(f"{PEERS} names no Python with TRL 1.16: see tests/rlcore/peers/environments.py")
    torch.set_num_threads(1)
    peak_per_s = products_per_s()
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {machine()}, load {os.getloadavg()[0]:.1f}; fp32, 1 thread;"
        f" {len(PROMPTS)} x {GROUP_SIZE} completions of {NUM_TOKENS} tokens; a core multiplies matrices at"
        f" {peak_per_s / 1e9:.0f} GFLOP/s"
    )
    is_good = True
    for name in arguments.sizes:
        size = SIZES[name]
        size = replace(size, num_rounds=arguments.rounds or size.num_rounds)
        with children(size) as started:
            measure(started, size.num_rounds)
        by_name = {child.name: child for child in started}
        num_parameters = sum(parameter.numel() for parameter in Decoder(size.config).parameters())
        print(
            f"{name}: {num_parameters / 1e3:,.0f}k parameters, width {size.config.width},"
            f" {size.config.num_layers} layers; {size.num_rounds} rounds;"
            f" {by_name[TRL].versions}"
        )
        for child in started:
            print(describe(child, peak_per_s))
        lines, is_met = judge(size, by_name)
        print("\n".join(lines), flush=True)
        is_good &= is_met
    print("PASS" if is_good else "FAIL")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
