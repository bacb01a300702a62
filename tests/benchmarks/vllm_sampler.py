"""Throughput of the samplers side by side: rlcore's own, its decoder served by vLLM, and the model that vLLM brings.

    python tests/benchmarks/vllm_sampler.py
    python tests/benchmarks/vllm_sampler.py --sizes 127k --rounds 15

In the environment of constraints-vllm.txt. 64 completions of 32 tokens, at level invariant and off. The model that vLLM
brings promises no bits. A sync is one to the engine: with all checks of a receipt, and without any. A time is the least
of the rounds, of the processor time of both processes, and the part of this one follows. At level invariant rlcore's
decoder must have the same tokens and log-probabilities in vLLM: exit status 1 if not.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import torch

from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer
from rlcore.numerics.level import Strategy, following
from rlcore.numerics.probe import certify, machine
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.samplers.vllm.engine import Engine, EngineSettings
from rlcore.samplers.vllm.sampler import VllmSampler
from rlcore.samplers.vllm.versions import installed_version
from rlcore.seeds import completion_key
from rlcore.types import Prompt, SampleRequest, SamplingParams
from rlcore.weights.proven_sync import sync
from tests.conformance.sampler_suite import bits

NUM_PROMPTS, GROUP_SIZE, NUM_TOKENS, PROMPT = 8, 8, 32, "reverse: "
TOKENIZER = CharacterTokenizer("abcdefghijklmnopqrstuvwxyz0123456789: ")
SIZES = {
    "127k": DecoderConfig("qwen3", 42, 64, 2, 4, 2, 16, 256, max_length=64),
    "1M": DecoderConfig("qwen3", 42, 128, 4, 4, 2, 32, 384, max_length=64),
    "13M": DecoderConfig("qwen3", 42, 384, 6, 6, 2, 64, 1536, max_length=64),
}
SETTINGS = EngineSettings(max_length=64, concurrency=64)


class Endless(CharacterTokenizer):
    """Nothing ends a completion but its length."""

    def __init__(self, alphabet: Iterable[str]) -> None:
        super().__init__(alphabet)
        self.eos_id = -2


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


def processor_s(process_id: int) -> float:
    """Return the processor time that a process has taken, by its clock in Linux."""
    return time.clock_gettime(~process_id << 3 | 2)


def least_s(
    call: Callable[[], object], strategy: Strategy | None, num_rounds: int, *processes: int
) -> tuple[float, float]:
    """Return the least processor time of a call, of this process and others together; and of this process alone."""
    taken, own = [], []
    for number in range(num_rounds + 2):
        with following(strategy):
            others_s, began_s = sum(map(processor_s, processes)), time.process_time()
            call()
            if number >= 2:  # the first ones warm up
                own.append(time.process_time() - began_s)
                taken.append(own[-1] + sum(map(processor_s, processes)) - others_s)
    return min(taken), min(own)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, vLLM {installed_version()}, {machine()}, load {os.getloadavg()[0]:.1f};"
        f" fp32, 1 thread; {len(requests())} completions of {NUM_TOKENS} tokens"
    )
    is_equal = True
    for size in args.sizes:
        config = SIZES[size]
        if config.head_width < 32:  # the least that attention of vLLM takes
            config = replace(config, num_heads=2, num_kv_heads=1, head_width=32)
        is_equal &= measure(size, config, args.rounds)
    print("PASS" if is_equal else "FAIL: the samplers differ at level invariant")
    return 0 if is_equal else 1


def measure(size: str, config: DecoderConfig, num_rounds: int) -> bool:
    """Measure one size; return whether both of rlcore's samplers have the same bits."""
    decoder, wanted = Decoder(config).initialise(1), requests()
    tokenizer = Endless(TOKENIZER.alphabet)
    held = certify(
        shapes=config.product_shapes,
        heads=[config.head_shape],
        length=config.max_length,
    )
    local = TorchSampler(decoder, tokenizer, concurrency=64)
    with redirect_stdout(sys.stderr):
        engines = [Engine(decoder, replace(SETTINGS, is_stock=is_stock)) for is_stock in (False, True)]
    served, stock = (VllmSampler(engine, tokenizer) for engine in engines)
    with following(held.strategy), torch.no_grad():
        is_equal = bits(local.sample(wanted)) == bits(served.sample(wanted))
    num_tokens = len(wanted) * NUM_TOKENS
    print(f"{size}: {'equal' if is_equal else 'DIFFERENT'} bits at level invariant")
    for name, sampler, strategy, processes in (
        ("rlcore's sampler, invariant", local, held.strategy, ()),
        ("rlcore's decoder in vLLM, invariant", served, held.strategy, (engines[0].pid,)),
        ("rlcore's decoder in vLLM, off", served, None, (engines[0].pid,)),
        ("vLLM's own model, off", stock, None, (engines[1].pid,)),
    ):
        taken, own = least_s(partial(sampler.sample, wanted), strategy, num_rounds, *processes)
        print(f"  {name:36} {taken * 1e3:7.1f} ms  {num_tokens / taken:7.0f} tokens/s, {own * 1e3:.1f} ms here")
    for name, send in (("with its receipt", syncs), ("without checks", writes)):
        taken, own = least_s(send(decoder, served), held.strategy, num_rounds, engines[0].pid)
        print(f"  {f'a sync {name}':36} {taken * 1e3:7.1f} ms, {own * 1e3:.1f} ms here")
    for engine in engines:
        engine.close()
    return is_equal


def syncs(decoder: Decoder, sampler: VllmSampler) -> Callable[[], object]:
    """Return a call that sends the weights to the engine once more, after a first sync."""
    target = sampler.weight_target
    receipt = sync(decoder, target, target.policy_version + 1, None)

    def send() -> None:
        nonlocal receipt
        receipt = sync(decoder, target, receipt.policy_version + 1, receipt)

    return send


def writes(decoder: Decoder, sampler: VllmSampler) -> Callable[[], object]:
    """Return a call that sends the weights without a check."""
    target, parameters = sampler.weight_target, [(name, each.detach()) for name, each in decoder.named_parameters()]

    def send() -> None:
        target.begin(target.policy_version + 1)
        target.write(parameters)
        target.commit(target.weights_digest)

    return send


if __name__ == "__main__":
    sys.exit(main())
