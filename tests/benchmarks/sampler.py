"""Cost of sampling: 64 completions of 32 tokens, at three sizes; levels off and invariant take turns.

    export OMP_NUM_THREADS=1 MKL_CBWR=AUTO,STRICT
    python tests/benchmarks/sampler.py
    python tests/benchmarks/sampler.py --sizes 127k --rounds 50

A step draws one token for each of 64 sequences, Python included; its time is that of a whole call over 32. The products
are what the step's matrix products take alone, at the shapes that level computes: what is not products is what sampling
adds. Levels take turns in one process. A time is the median of the rounds, the least in brackets, of
processor time, on which what the machine does beside weighs less: on one that is busy the least is what it costs. Exit
status 1 where level invariant takes over 1.5 times as long as off.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import torch

from rlcore.keys import completion_key
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer
from rlcore.numerics.invariance_report import machine
from rlcore.numerics.level import KernelStrategy, following
from rlcore.numerics.linear import linear
from rlcore.numerics.probe import certify
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.types import Prompt, SampleRequest, SamplingParams

NUM_PROMPTS, GROUP_SIZE, NUM_TOKENS, PROMPT = 8, 8, 32, "reverse: "
TOKENIZER = CharacterTokenizer("abcdefghijklmnopqrstuvwxyz0123456789: ")
SIZES = {
    "127k": DecoderConfig("qwen3", 42, 64, 2, 4, 2, 16, 256, max_length=64),
    "1M": DecoderConfig("qwen3", 42, 128, 4, 4, 2, 32, 384, max_length=64),
    "13M": DecoderConfig("qwen3", 42, 384, 6, 6, 2, 64, 1536, max_length=64),
}
LIMIT = 1.5


class Endless(CharacterTokenizer):
    """Nothing ends a completion but its length."""

    @property
    def eos_id(self) -> int:
        return -2


def requests() -> list[SampleRequest]:
    """Eight completions of each of eight prompts."""
    params = SamplingParams(max_tokens=NUM_TOKENS)
    texts = [f"{PROMPT}{number:05}" for number in range(NUM_PROMPTS)]
    prompts = [Prompt(text, text, tuple(TOKENIZER.encode(text))) for text in texts]
    return [
        SampleRequest(prompt, index, completion_key(seed=1, step=0, prompt_id=prompt.id, sample_index=index), params)
        for prompt in prompts
        for index in range(GROUP_SIZE)
    ]


def products(config: DecoderConfig) -> Callable[[], None]:
    """The matrix products of one step, and nothing else."""
    *shapes, head = config.product_shapes
    pairs = [(torch.randn(64, inputs), torch.randn(outputs, inputs)) for inputs, outputs in shapes] * config.num_layers
    pairs.append((torch.randn(64, head[0]), torch.randn(head[1], head[0])))

    def step() -> None:
        with torch.inference_mode():
            for x, weight in pairs:
                linear(x, weight)

    return step


def seconds(
    call: Callable[[], object], tried: list[KernelStrategy | None], num_rounds: int
) -> list[tuple[float, float]]:
    """(median, least) of a call at each level."""
    times: list[list[float]] = [[] for _ in tried]
    for number in range(num_rounds + 2):
        for strategy, taken in zip(tried, times, strict=True):
            with following(strategy):
                began_s = time.process_time()
                call()
                if number >= 2:  # the first ones warm up
                    taken.append(time.process_time() - began_s)
    return [(statistics.median(taken), min(taken)) for taken in times]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {machine()}, load {os.getloadavg()[0]:.1f}; fp32, {args.threads} threads;"
        f" {NUM_PROMPTS} x {GROUP_SIZE} completions of {NUM_TOKENS} tokens"
    )
    is_good = True
    for size in args.sizes:
        config = SIZES[size]
        decoder = Decoder(config).initialise(1)
        sampler, wanted = TorchSampler(decoder, Endless(TOKENIZER.alphabet), concurrency=64), requests()
        held = certify(shapes=config.product_shapes, heads=[config.head_shape], length=config.max_length)
        tried = [None, held.strategy]
        calls = seconds(partial(sampler.sample, wanted), tried, args.rounds)
        floors = seconds(products(config), tried, args.rounds * 5)
        num_parameters = sum(parameter.numel() for parameter in decoder.parameters())
        print(f"{size}: {num_parameters / 1e3:.0f}k parameters, width {config.width}, {config.num_layers} layers")
        for strategy, (median_s, least_s), (product_s, product_least_s) in zip(tried, calls, floors, strict=True):
            print(
                f"  {strategy.name if strategy else 'off':15} {median_s * 1e3:.1f} ({least_s * 1e3:.1f}) ms;"
                f" a step {median_s / NUM_TOKENS * 1e3:.2f} ({least_s / NUM_TOKENS * 1e3:.2f}) ms, of it products"
                f" {product_s * 1e3:.2f} ({product_least_s * 1e3:.2f});"
                f" {len(wanted) * NUM_TOKENS / median_s:.0f} ({len(wanted) * NUM_TOKENS / least_s:.0f}) tokens/s"
            )
        ratio = calls[1][1] / calls[0][1]
        is_good &= ratio <= LIMIT
        print(f"  invariant takes {ratio:.2f} times as long as off")
    print("PASS" if is_good else f"FAIL: over {LIMIT} times")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
