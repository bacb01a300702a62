"""Sequences per second of a reward model, by torch and by vLLM, at level invariant and off; and what batches change.

    python tests/benchmarks/reward_model.py

In the environment of constraints-vllm.txt. 64 sequences of 2 to 39 tokens, batches of 16, one thread, fp32; the least
processor time of three rounds. "Differ" counts scores that are others alone than in a batch. vLLM packs weights for
oneDNN on a CPU; "not packed" is what other processors and types have. Exit status 1 if a score differs at level
invariant.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

from rlcore.determinism import at_level
from rlcore.models.config import DecoderConfig
from rlcore.numerics.probe import machine
from rlcore.rewards.reward_model import Scorer, TorchScorer
from rlcore.samplers.vllm.pooling import VllmScorer
from rlcore.samplers.vllm.versions import installed_version
from tests.support.reward_models import CONFIG, sequences_of, write_reward_model

SIZES = {
    "small": CONFIG,
    "medium": replace(CONFIG, width=256, num_layers=4, num_heads=4, num_kv_heads=2, head_width=64, ffn_width=768),
    "large": replace(CONFIG, width=512, num_layers=6, num_heads=8, num_kv_heads=4, head_width=64, ffn_width=1536),
}
NUM_ROUNDS = 3


def main() -> int:
    """Measure and print the table in Markdown."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    print(f"{datetime.now(UTC):%Y-%m-%d}, vLLM {installed_version()}, {machine()}, fp32, 1 thread")
    print("| parameters | scorer | sequences per second | differ alone | from torch, at most |\n|---|---|---|---|---|")
    is_held = True
    for of in SIZES.values():
        is_held &= measure(of)
    print("PASS" if is_held else "FAIL: a score depends on its company at level invariant")
    return 0 if is_held else 1


def measure(of: DecoderConfig) -> bool:
    """Print the rows of one size; return whether scores of level invariant do not depend on company."""
    sequences, is_held = sequences_of(64), True
    with tempfile.TemporaryDirectory() as name, redirect_stdout(sys.stderr):
        directory = Path(name)
        classifier = write_reward_model(directory, of)

        def served(*, is_serial: bool, is_packed: bool = True) -> Scorer:
            return VllmScorer(directory, max_length=96, batch_size=16, is_serial=is_serial, is_packed=is_packed)

        held = partial(at_level, "invariant", of, length=96)
        scorers: dict[str, Scorer] = {
            "torch, invariant": TorchScorer(classifier, batch_size=16, held=held),
            "torch, off": TorchScorer(classifier, batch_size=16),
            "vLLM, invariant: one at a time": served(is_serial=True),
            "vLLM, off: batches": served(is_serial=False),
            "vLLM, off: batches, not packed": served(is_serial=False, is_packed=False),
        }
    reference = scorers["torch, invariant"](sequences)
    num_parameters = sum(each.numel() for each in classifier.parameters())
    for label, scorer in scorers.items():
        together, alone = scorer(sequences), [scorer([each])[0] for each in sequences]
        num_different = sum(a != b for a, b in zip(together, alone, strict=True))
        is_held &= "invariant" not in label or not num_different
        largest = max(abs(a - b) for a, b in zip(together, reference, strict=True))
        per_second = len(sequences) / least_s(partial(scorer, sequences))
        print(
            f"| {num_parameters:,} | {label} | {per_second:,.0f} | {num_different} of 64 | {largest:.1e} |", flush=True
        )
    return is_held


def least_s(call: Callable[[], object]) -> float:
    """Return the least processor time of a call."""
    taken = []
    for _ in range(NUM_ROUNDS):
        began_s = time.process_time()
        call()
        taken.append(time.process_time() - began_s)
    return min(taken)


if __name__ == "__main__":
    sys.exit(main())
