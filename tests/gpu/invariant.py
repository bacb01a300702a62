"""Level invariant on a GPU, in under four minutes: bits, costs, and rollouts beside transformers' `generate`.

    export PYTHONPATH=$PWD
    python tests/gpu/invariant.py [PART ...] [--budget 220]
    TRITON_INTERPRET=1 python tests/gpu/invariant.py --device cpu       # the same at tiny sizes, for its logic

Facts are JSON lines on standard output, and in the file that GPU_FACTS names. Parts, in their order:

bits       64 completions of 64 tokens, in batches of 1 to 64, in another order, preempted: how many differ; their 4,096
           log-probabilities against the training forward pass; the same at level off
gradients  four microbatches in two orders, and a microbatch again
products   each product of 0.6B and 8B, from 1 to 16,384 rows: time over torch's, and whether bits are torch's too
cost       prefill, a step of decoding, and forward with backward of Qwen3-0.6B, and of two layers of 8B: over torch's
generate   tokens per second of a rollout of 0.6B, and of transformers' `generate` on the same GPU
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rlcore.data.trajectory import Trajectory
from rlcore.determinism import at_level
from rlcore.models.cache import KeyValueCache
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import following
from rlcore.numerics.log_softmax import token_logprobs, token_logprobs_and_entropy
from rlcore.numerics.probe import GPU_STRATEGIES
from rlcore.numerics.product import linear
from rlcore.numerics.tree_sum import TreeSum
from rlcore.samplers.decode_graphs import DecodeGraphs
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.seeds import completion_key
from rlcore.types import Prompt, SampleRequest, SamplingParams
from tests.gpu.facts import Part

SMALL = DecoderConfig("qwen3", 151936, 1024, 28, 16, 8, 128, 3072, max_length=2048, rope_theta=1e6)
LARGE = DecoderConfig("qwen3", 151936, 4096, 2, 32, 8, 128, 12288, max_length=2048, rope_theta=1e6, is_tied=False)
TINY = DecoderConfig("qwen3", 67, 32, 1, 2, 1, 16, 48, max_length=64)


IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class Sizes:
    """Sizes of all parts: those of a GPU, or tiny ones."""

    def __init__(self, is_gpu: bool) -> None:
        self.small, self.large = (SMALL, LARGE) if is_gpu else (TINY, TINY)
        self.dtype = torch.bfloat16 if is_gpu else torch.float32
        self.num_prompts, self.num_tokens = (64, 64) if is_gpu else (4, 3)
        self.batches = (64, 1, 7, 33) if is_gpu else (4, 1, 3)
        self.batch, self.length, self.micro = (16, 1024, 4) if is_gpu else (2, 6, 2)
        self.rows = (1, 16, 64, 256, 1024, 4096, 16384) if is_gpu else (1, 5)
        self.generated = 128 if is_gpu else 2


class Tokenizer:
    """Tokens without text, none of which ends a completion."""

    eos_id = pad_id = -1
    stop_ids = ()

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str) -> list[int]:
        return []

    def encode_prompt(self, prompt: Any) -> tuple[str, list[int]]:
        return "", []

    def decode(self, tokens: Sequence[int]) -> str:
        return ""


class Measuring:
    """What the parts share: where facts go, sizes, and the level."""

    def __init__(self, part: Part) -> None:
        self.part, self.sizes = part, Sizes(part.is_gpu)

    def sampler(self, decoder: Decoder, **options: int) -> TorchSampler:
        tokenizer: Any = Tokenizer(decoder.config.vocab_size)
        return TorchSampler(decoder, tokenizer, **options)

    def level(self, name: str, config: DecoderConfig) -> AbstractContextManager[object]:
        """Enter a level as a run does; in the interpreter, the kernels without their probe."""
        if IS_INTERPRETED:
            return following(GPU_STRATEGIES[0] if name == "invariant" else None)
        device, length = self.part.device, config.max_length
        return at_level(name, config, dtype=self.sizes.dtype, device=device, length=length)

    def model(self, config: DecoderConfig) -> Decoder:
        """Build a decoder whose logits are spread, on the device."""
        with torch.device(self.part.device):
            decoder = Decoder(config).to(self.sizes.dtype)
        generator = torch.Generator(self.part.device).manual_seed(1)
        with torch.no_grad():
            for parameter in decoder.parameters():
                scale = 1.5 * parameter.shape[-1] ** -0.5
                parameter.normal_(0.0, scale, generator=generator) if parameter.dim() == 2 else parameter.fill_(1.0)
        return decoder

    def tokens(self, *shape: int, vocab_size: int, seed: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(vocab_size, shape, generator=generator).to(self.part.device)

    def ratio(self, what: str, config: DecoderConfig, prepare: Callable[[], Callable[[], object]]) -> None:
        """Report the seconds of an operation at level invariant over those at level off."""
        seconds = {}
        for name in ("off", "invariant"):
            with self.part.tried(f"{what} at {name}"), self.level(name, config):
                seconds[name] = self.part.seconds(prepare())
        if len(seconds) == 2:
            found = {name: round(value * 1e3, 3) for name, value in seconds.items()}
            self.part.fact(f"{what}, ms", found | {"ratio": round(seconds["invariant"] / seconds["off"], 3)})


def requests(own: Measuring, num_tokens: int) -> list[SampleRequest]:
    dice, vocab_size = random.Random(3), own.sizes.small.vocab_size
    found, params = [], SamplingParams(max_tokens=num_tokens)
    for number in range(own.sizes.num_prompts):
        tokens = tuple(dice.randrange(vocab_size) for _ in range(dice.randint(5, 130 if own.part.is_gpu else 9)))
        key = completion_key(seed=0, step=0, prompt_id=str(number), sample_index=0)
        found.append(SampleRequest(Prompt(str(number), "", tokens), 0, key, params))
    return found


def bits(own: Measuring) -> None:
    config, wanted = own.sizes.small, requests(own, own.sizes.num_tokens)
    decoder = own.model(config)
    for level in ("invariant", "off"):
        with own.part.tried(level), own.level(level, config):
            rollouts: list[list[Trajectory]] = []
            for concurrency in own.sizes.batches:
                order = random.Random(concurrency).sample(range(len(wanted)), len(wanted))
                preempted = {"preempt_every": 9} if concurrency == own.sizes.batches[-1] else {}
                sampler = own.sampler(decoder, concurrency=concurrency, **preempted)
                found = dict(zip(order, sampler.sample([wanted[index] for index in order]), strict=True))
                rollouts.append([found[index] for index in range(len(wanted))])
            first = rollouts[0]
            moved = [sum(a != b for a, b in zip(map(said, first), map(said, each), strict=True)) for each in rollouts]
            differ, largest = trained(own, decoder, wanted, first)
            own.part.fact(
                f"level {level}: completions that differ, by batch", dict(zip(own.sizes.batches, moved, strict=True))
            )
            num_tokens = sum(len(said(each)[0]) for each in first)
            text = {"differ": differ, "of": num_tokens, "largest": largest}
            own.part.fact(f"level {level}: log-probabilities against the training forward pass", text)


def said(rollout: Trajectory) -> tuple[list[int], list[float]]:
    """Return the tokens and log-probabilities of a completion of one turn."""
    begin = len(rollout.request.prompt.tokens)
    return list(rollout.tokens[begin:]), list(rollout.logprobs[begin:])


def trained(
    own: Measuring, decoder: Decoder, wanted: Sequence[SampleRequest], found: Sequence[Trajectory]
) -> tuple[int, float]:
    """Return how many log-probabilities differ from those of a pass over whole sequences in batches of 7."""
    num_different, largest = 0, 0.0
    for begin in range(0, len(wanted), 7):
        some = [(request.prompt.tokens, *said(each)) for request, each in zip(wanted, found, strict=True)][
            begin : begin + 7
        ]
        longest = max(len(prompt) + len(tokens) for prompt, tokens, _ in some)
        rows = [[*prompt, *tokens, *[0] * (longest - len(prompt) - len(tokens))] for prompt, tokens, _ in some]
        batch = torch.tensor(rows, device=own.part.device)
        logprobs = token_logprobs(decoder(batch[:, :-1]), batch[:, 1:]).detach().cpu()
        for row, (prompt, tokens, expected) in zip(logprobs, some, strict=True):
            mine = row[len(prompt) - 1 : len(prompt) - 1 + len(tokens)]
            distance = (mine - torch.tensor(expected)).abs()
            num_different += int((distance != 0).sum())
            largest = max(largest, float(distance.max()))
    return num_different, largest


def gradients(own: Measuring) -> None:
    config = replace(own.sizes.small, num_layers=min(4, own.sizes.small.num_layers))
    decoder, size = own.model(config), (own.sizes.micro, own.sizes.length // 2)
    batches = [own.tokens(*size, vocab_size=config.vocab_size, seed=seed) for seed in range(4)]

    def of(tokens: Tensor) -> list[Tensor]:
        logprobs, _ = token_logprobs_and_entropy(decoder(tokens[:, :-1]), tokens[:, 1:])
        return [each.float() for each in torch.autograd.grad(logprobs.mean(), list(decoder.parameters()))]

    def total(order: Sequence[int]) -> list[Tensor]:
        trees = [TreeSum(4) for _ in decoder.parameters()]
        for number in order:
            for tree, gradient in zip(trees, of(batches[number]), strict=True):
                tree.add(number, gradient)
        return [found for tree in trees if (found := tree.total()) is not None]

    with own.level("invariant", config):
        pairs = zip(total([0, 1, 2, 3]), total([3, 1, 0, 2]), strict=True)
        own.part.fact(
            "parameters whose gradients differ between two orders", sum(not torch.equal(a, b) for a, b in pairs)
        )


def products(own: Measuring) -> None:
    with own.level("invariant", own.sizes.small):
        for name, config in (("0.6B", own.sizes.small), ("8B", own.sizes.large)):
            for inputs, outputs in config.product_shapes:
                weight = torch.randn(outputs, inputs, device=own.part.device).to(own.sizes.dtype)
                found = {}
                for rows in own.sizes.rows:
                    x = torch.randn(rows, inputs, device=own.part.device).to(own.sizes.dtype)
                    if rows * outputs > 1 << 30:
                        continue
                    theirs, mine = partial(functional.linear, x, weight), partial(linear, x, weight)
                    steps = [captured(each) if own.part.is_gpu else each for each in (theirs, mine)]
                    library, kernel = (own.part.seconds(step, 3) for step in steps)
                    found[rows] = round(kernel / library, 3), torch.equal(theirs(), mine())
                own.part.fact(f"{name} {inputs} to {outputs}: times over torch's, equal bits, by rows", found)


def cost(own: Measuring) -> None:
    sizes = own.sizes
    for name, config in (("0.6B", sizes.small), ("8B, two layers", sizes.large)):
        decoder = own.model(config)
        tokens = own.tokens(sizes.batch, sizes.length, vocab_size=config.vocab_size)

        def training(decoder: Decoder = decoder, tokens: Tensor = tokens) -> Callable[[], None]:
            def step() -> None:
                logprobs, entropy = token_logprobs_and_entropy(decoder(tokens[:, :-1]), tokens[:, 1:])
                (logprobs.mean() + 0 * entropy.mean()).backward()  # type: ignore[no-untyped-call]
                decoder.zero_grad()

            return step

        def prefill(decoder: Decoder = decoder, tokens: Tensor = tokens) -> Callable[[], object]:
            return torch.no_grad()(lambda: decoder.hidden(tokens))

        def decoding(count: int, decoder: Decoder = decoder) -> Callable[[], object]:
            cache = KeyValueCache.empty(decoder.config, count, sizes.length, like=decoder.embedding)
            given = torch.full((2, count), sizes.length // 2, device=own.part.device) % decoder.config.vocab_size
            step = torch.inference_mode()(partial(DecodeGraphs(decoder).step, given, cache))
            return captured(step) if own.part.is_gpu else step

        own.ratio(f"{name}: forward and backward", config, training)
        own.ratio(f"{name}: prefill", config, prefill)
        for count in (1, sizes.num_prompts):
            own.ratio(f"{name}: a step of decoding of {count}, as a graph", config, partial(decoding, count))


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """Capture a step, of either level, as a CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def generate(own: Measuring) -> None:
    config, sizes = own.sizes.small, own.sizes
    wanted = requests(own, sizes.generated)
    with own.level("invariant", config):
        sampler = own.sampler(own.model(config), concurrency=sizes.num_prompts)
        seconds = own.part.seconds(lambda: sampler.sample(wanted), 1)
    ours = sizes.num_prompts * sizes.generated / seconds
    own.part.fact("tokens per second at level invariant", round(ours))
    from transformers import Qwen3Config, Qwen3ForCausalLM

    names = {"vocab_size": config.vocab_size, "hidden_size": config.width, "intermediate_size": config.ffn_width}
    names |= {"num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads}
    names |= {"num_key_value_heads": config.num_kv_heads, "head_dim": config.head_width}
    with torch.device(own.part.device):
        theirs = Qwen3ForCausalLM(Qwen3Config(**names, tie_word_embeddings=True)).to(sizes.dtype).eval()
    longest = max(len(each.prompt.tokens) for each in wanted)
    rows = [[*[0] * (longest - len(each.prompt.tokens)), *each.prompt.tokens] for each in wanted]
    batch = torch.tensor(rows, device=own.part.device)
    lengths = {"min_new_tokens": sizes.generated, "max_new_tokens": sizes.generated}
    given: dict[str, Any] = {"do_sample": True, "top_k": 0, "attention_mask": batch != 0, "pad_token_id": 0, **lengths}
    seconds = own.part.seconds(lambda: theirs.generate(batch, **given), 1)
    other = sizes.num_prompts * sizes.generated / seconds
    own.part.fact(
        "tokens per second of transformers' generate", {"theirs": round(other), "ratio": round(ours / other, 2)}
    )


PARTS = {each.__name__: each for each in (bits, gradients, products, cost, generate)}


def main() -> int:
    """Measure parts within the budget; 0 unless a GPU is asked for that is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--budget", type=float, default=220.0, help="seconds after which no part begins")
    arguments = parser.parse_args()
    if unknown := {*arguments.parts} - {*PARTS}:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    began = time.perf_counter()
    for name in arguments.parts or PARTS:
        part = Part(f"invariant.{name}", arguments.device)
        if part.is_gpu and not torch.cuda.is_available():
            part.fact("not done", "no CUDA device is visible")
            return 1
        if time.perf_counter() - began > arguments.budget:
            part.fact("not done", "the time is over")
            continue
        if IS_INTERPRETED:
            from tests.support.triton_interpreter import products_in_order
        with part.tried(name), products_in_order() if IS_INTERPRETED else nullcontext():
            PARTS[name](Measuring(part))
        part.fact("seconds", round(time.perf_counter() - began, 1))
    if arguments.device == "cuda":
        found = torch.cuda.get_device_properties(0)
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": found.name}
        print(json.dumps(versions | {"capability": [found.major, found.minor], "sms": found.multi_processor_count}))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    sys.exit(main())
