"""What bits that depend on a row alone cost: level invariant against off, training and decoding apart.

    python tests/benchmarks/numerics.py                  # widths 64, 128 and 384, every strategy
    python tests/benchmarks/numerics.py --widths 64 --strategies pad16

Training is forward and backward of a lane of 8 sequences of 128 tokens; decoding is one token of each of 16 sequences
that are 128 long, with a cache. Levels take turns in one process, round by round. Times are processor time, on which
what the machine does beside weighs less, and the ratio is that of the medians. Exit status 1 where the certified
strategy costs over 1.15 times in training or over 1.5 times in decoding.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

import torch

from rlcore.models.cache import KeyValueCache
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import Strategy, following
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.numerics.probe import STRATEGIES, certify, machine

LENGTH = 128
LANE = 8
DECODED = 16
LIMITS = {"training": 1.15, "decoding": 1.5}


def decoder_of(width: int, dtype: torch.dtype) -> Decoder:
    """Four layers of a Llama with heads of 32 and 96 characters."""
    heads = width // 32
    config = DecoderConfig("llama", 96, width, 4, heads, max(1, heads // 2), 32, width * 8 // 3, max_length=2 * LENGTH)
    return Decoder(config).initialise(1).to(dtype)


def training(decoder: Decoder) -> Callable[[], None]:
    """A lane forward and backward."""
    tokens = torch.randint(96, (LANE, LENGTH), generator=torch.Generator().manual_seed(2))

    def step() -> None:
        token_logprobs(decoder(tokens)[:, :-1], tokens[:, 1:]).mean().backward()  # type: ignore[no-untyped-call]
        decoder.zero_grad()

    return step


def decoding(decoder: Decoder) -> Callable[[], None]:
    """One more token for each sequence."""
    cache = KeyValueCache.empty(decoder.config, DECODED, LENGTH + 16, like=decoder.embedding)
    tokens = torch.randint(96, (DECODED, LENGTH), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        decoder.extend(tokens, cache, [0] * DECODED)

    def step() -> None:
        with torch.no_grad():
            decoder.logits(decoder.extend(tokens[:, :1], cache, [LENGTH] * DECODED))

    return step


def medians_s(step: Callable[[], None], levels: list[Strategy | None], num_rounds: int) -> list[float]:
    """Seconds of processor time of a step at each level."""
    seconds: list[list[float]] = [[] for _ in levels]
    for number in range(num_rounds + 2):
        for level, times in zip(levels, seconds, strict=True):
            with following(level):
                began_s = time.process_time()
                step()
                if number >= 2:  # the first ones warm up
                    times.append(time.process_time() - began_s)
    return [statistics.median(times) for times in seconds]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 384], help="multiples of 32")
    parser.add_argument("--strategies", nargs="+", default=[strategy.name for strategy in STRATEGIES])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    strategies = [strategy for strategy in STRATEGIES if strategy.name in args.strategies]
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {machine()}, load {os.getloadavg()[0]:.1f};"
        f" {args.dtype}, {args.threads} threads; training {LANE} x {LENGTH} tokens, decoding 1 token of {DECODED}"
    )
    is_good = True
    for width in args.widths:
        decoder = decoder_of(width, dtype)
        found = certify(
            dtype, shapes=decoder.config.product_shapes, heads=[decoder.config.head_shape], length=LENGTH + 16
        )
        num_parameters = sum(parameter.numel() for parameter in decoder.parameters())
        print(f"width {width}, {num_parameters / 1e3:.0f}k parameters; certified {found.strategy.name}")
        for what, step in (("training", training(decoder)), ("decoding", decoding(decoder))):
            off_s, *others_s = medians_s(
                step, [None, *strategies], args.rounds if what == "training" else args.rounds * 5
            )
            told = []
            for strategy, taken_s in zip(strategies, others_s, strict=True):
                told.append(f"{strategy.name} {taken_s * 1e3:.2f} ms, {taken_s / off_s:.2f} times")
                is_good &= strategy.name != found.strategy.name or taken_s / off_s <= LIMITS[what]
            print(f"  {what}: off {off_s * 1e3:.2f} ms; {'; '.join(told)}")
    print("PASS" if is_good else f"FAIL: the certified strategy is over {LIMITS}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
