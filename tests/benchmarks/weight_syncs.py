"""What the checks of a weight sync cost, over each transport to another process.

    python -m tests.benchmarks.weight_syncs [--size 10M] [--rounds 15]

A target in a process of its own holds a decoder. For each transport: the write alone, and a sync with its checks; the
least of rounds that take turns. Both processes have one thread.
"""

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

import torch

from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import Strategy, following
from rlcore.numerics.probe import machine
from rlcore.samplers.local_target import LocalTarget
from rlcore.weights.proven_sync import sync
from rlcore.weights.transports.packing import Transport
from rlcore.weights.transports.process_group import ProcessGroup
from rlcore.weights.transports.shared_memory import SharedMemory
from tests.support.remote_sampler import RemoteHost

TRANSPORTS: dict[str, Callable[[], Transport]] = {"shared memory": SharedMemory, "gloo": ProcessGroup}
SIZES = {
    "0.1M": DecoderConfig("qwen3", 256, 64, 2, 4, 2, 16, 128, max_length=64),
    "10M": DecoderConfig("qwen3", 4096, 384, 5, 6, 3, 64, 1024, max_length=64),
    "50M": DecoderConfig("qwen3", 8192, 768, 7, 12, 4, 64, 2048, max_length=64),
}


def show(name: str, decoder: Decoder, target: Any, num_rounds: int) -> None:
    """Print the least milliseconds of a write alone, and of a sync."""
    receipt = sync(decoder, target, 1, None)
    parameters = [(name, each.detach()) for name, each in decoder.named_parameters()]
    taken: list[tuple[float, float]] = []
    for _ in range(num_rounds):
        began = perf_counter()
        target.begin(receipt.policy_version)
        target.write(parameters)
        target.commit(receipt.weights_digest)
        wrote = perf_counter()
        with torch.no_grad():
            decoder.norm.add_(1e-3)
        receipt = sync(decoder, target, receipt.policy_version + 1, receipt)
        taken.append((wrote - began, perf_counter() - wrote))
    bare, full = (min(each) * 1e3 for each in zip(*taken, strict=True))
    print(f"  {name:14} {bare:6.1f} ms without checks, {full:6.1f} with all")


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="10M")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    decoder = Decoder(SIZES[options.size]).initialise(1)
    num_parameters = sum(parameter.numel() for parameter in decoder.parameters())
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {machine()}, load {os.getloadavg()[0]:.1f}: "
        f"{num_parameters / 1e6:.1f}M parameters, float32, level invariant"
    )
    with following(Strategy()), closing(RemoteHost()) as host:
        show("this process", decoder, LocalTarget(Decoder(SIZES[options.size])), options.rounds)
        for name, host.transport in TRANSPORTS.items():
            show(name, decoder, host.target(LocalTarget, decoder), options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
