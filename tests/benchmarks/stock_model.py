"""vLLM's own model as the sampler: what differs from rlcore's decoder, and whether a policy learns as much with it.

    python tests/benchmarks/stock_model.py
    python tests/benchmarks/stock_model.py --steps 20 --seeds 0 1

In the environment of constraints-vllm.txt. First the bits: completions drawn together and alone, by a small and a
larger Qwen3, and the trainer's log-probabilities of them. Then the learning: runs with the local sampler at level
invariant, and with vLLM's model at level deterministic, whose losses are weighted per token. Exit status 1 if the mean
gain with vLLM's model is below that of the local sampler by more than the spread over seeds.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import following
from rlcore.numerics.probe import STRATEGIES, machine
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.samplers.vllm.engine import Engine, EngineSettings
from rlcore.samplers.vllm.sampler import VllmSampler
from rlcore.samplers.vllm.versions import installed_version
from tests.rlcore.training.recorded import config, trained
from tests.support.parity import num_different, requests_of
from tests.support.samplers import TOKENIZER

SMALL = DecoderConfig("qwen3", TOKENIZER.vocab_size, 64, 2, 2, 1, 32, 192, max_length=128)
SIZES = {"small": SMALL, "larger": replace(SMALL, width=512, num_layers=6, num_heads=8, head_width=64, ffn_width=1536)}
MODEL = {"width": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_width": 32, "ffn_width": 192}
ARMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "local sampler": ("invariant", {}),
    "vLLM's model": (
        "deterministic",
        {"sampler": {"name": "vllm", "model": "stock"}, "correction": {"weights": "token", "high": 2.0}},
    ),
}
"""Level and sections of each kind of run."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{datetime.now(UTC):%Y-%m-%d}, vLLM {installed_version()}, {machine()}, fp32, 1 thread")
    for name, of in SIZES.items():
        print_bits(name, of)
    gains = {name: print_learning(name, args.seeds, args.steps) for name in ARMS}
    local, stock = gains.values()
    is_as_good = statistics.mean(stock) >= statistics.mean(local) - max(map(statistics.pstdev, gains.values()))
    print("PASS" if is_as_good else "FAIL: vLLM's model learns less")
    return 0 if is_as_good else 1


def print_bits(name: str, of: DecoderConfig) -> None:
    """Print how many tokens differ between batches, and from the trainer, by who computes them."""
    decoder = Decoder(of).initialise(1)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(3 if parameter.dim() == 2 else 1)
    settings = EngineSettings(max_length=of.max_length, concurrency=16, block_size=32)
    with redirect_stdout(sys.stderr):
        stock = VllmSampler(Engine(decoder, replace(settings, is_stock=True)), TOKENIZER)
        own = VllmSampler(Engine(decoder, settings), TOKENIZER)
    print(f"{name} model, {sum(each.numel() for each in decoder.parameters()):,} parameters")
    for label, sampler, strategy in (
        ("vLLM's model", stock, None),
        ("rlcore's decoder in vLLM, off", own, None),
        ("rlcore's decoder in vLLM, invariant", own, STRATEGIES[0]),
        ("local sampler, invariant", TorchSampler(decoder, TOKENIZER, concurrency=16), STRATEGIES[0]),
    ):
        requests = requests_of()
        with following(strategy), torch.no_grad():
            together = sampler.sample(requests)
            alone = [sampler.sample([each])[0] for each in requests]
            num_trainer = num_different(decoder, together)
        pairs = [
            (mine, theirs)
            for one, other in zip(together, alone, strict=True)
            if one.completion_tokens == other.completion_tokens
            for mine, theirs in zip(one.completion_logprobs, other.completion_logprobs, strict=True)
        ]
        num_tokens = sum(len(each.completion_tokens) for each in together)
        print(
            f"  {label:36} alone and together: {sum(a != b for a, b in pairs)} of {len(pairs)} tokens differ,"
            f" by at most {max(abs(a - b) for a, b in pairs):.1e};"
            f" from the trainer: {num_trainer} of {num_tokens}"
        )


def print_learning(name: str, seeds: Sequence[int], num_steps: int) -> list[float]:
    """Print a line for each run; return what each has gained in held-out reward."""
    level, sections = ARMS[name]
    gains = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as directory, redirect_stdout(sys.stderr):
            trained(_run(seed, num_steps, sections), Path(directory), level=level)
            lines = [json.loads(line) for line in (Path(directory) / "metrics.jsonl").read_text().splitlines()]
        first, *_, last = (line["evaluation/reward_mean"] for line in lines if "evaluation/reward_mean" in line)
        steps = [line for line in lines if "mismatch/num_tokens" in line]
        num_mismatched = sum(line["mismatch/num_tokens"] for line in steps)
        largest = max(line["mismatch/max_nats"] for line in steps)
        gains.append(last - first)
        print(
            f"  {name:14} seed {seed}: {first:.3f} -> {last:.3f}, gain {last - first:.3f};"
            f" {num_mismatched / len(steps):.1f} mismatched tokens a step, at most {largest:.1e} nats",
            flush=True,
        )
    print(f"  {name:14} mean gain {statistics.mean(gains):.3f}, spread {statistics.pstdev(gains):.3f}")
    return gains


def _run(seed: int, num_steps: int, sections: Mapping[str, Any]) -> Any:
    of = config(
        model=MODEL,
        task={"num_prompts": 8192, "num_heldout": 256, "min_length": 3, "max_length": 5},
        warm_start={"num_steps": 400, "batch_size": 32, "target_reward": 0.65},
        optimizer={"learning_rate": 1e-3},
        training={"num_steps": num_steps, "prompts_per_step": 8, "group_size": 8, "microbatch_size": 16},
        **sections,
    )
    return of.model_copy(update={"seed": seed})


if __name__ == "__main__":
    sys.exit(main())
