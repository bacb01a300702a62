"""What each check of a weight sync costs, over every transport to another process.

    python -m tests.benchmarks.weight_syncs [--size 10M] [--rounds 15] [--ray]

A target in a process of its own holds a decoder. For each transport: a sync without checks, a sync with all, and a sync
with each check alone, less the one without; the least of rounds that take turns. Both processes have one thread.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import Strategy, following
from rlcore.numerics.probe import machine
from rlcore.samplers.local_target import LocalTarget
from rlcore.weights.receipts import ALL_CHECKS, Check, Receipt
from rlcore.weights.remote import RemoteTarget
from rlcore.weights.sync import IN_PROCESS, sync
from rlcore.weights.transports.base import Transport
from rlcore.weights.transports.checkpoint import CheckpointTransport
from rlcore.weights.transports.process_group import ProcessGroupTransport
from rlcore.weights.transports.shared_memory import SharedMemoryTransport
from tests.support.remote_sampler import RemoteHost

SIZES = {
    "0.1M": DecoderConfig("qwen3", 256, 64, 2, 4, 2, 16, 128, max_length=64),
    "10M": DecoderConfig("qwen3", 4096, 384, 5, 6, 3, 64, 1024, max_length=64),
    "50M": DecoderConfig("qwen3", 8192, 768, 7, 12, 4, 64, 2048, max_length=64),
}
NONE: frozenset[Check] = frozenset()


@contextmanager
def transports(stack: ExitStack, directory: Path) -> Iterator[dict[str, Transport]]:
    """Give the transports between processes of this machine, by their names."""
    yield {
        "inline": IN_PROCESS,
        "shared memory": stack.enter_context(closing(SharedMemoryTransport())),
        "checkpoint": CheckpointTransport(directory),
        "gloo": stack.enter_context(closing(ProcessGroupTransport())),
    }


def syncs(decoder: Decoder, target: Any, transport: Transport) -> Callable[[frozenset[Check]], float]:
    """Return a call that sends the weights once more with these checks, and gives the seconds that it took."""
    receipt: Receipt = sync(decoder, target, 1, None, transport=transport)

    def send(checks: frozenset[Check]) -> float:
        nonlocal receipt
        with torch.no_grad():
            decoder.norm.add_(1e-3)
        began = perf_counter()
        receipt = sync(decoder, target, receipt.policy_version + 1, receipt, transport=transport, checks=checks)
        return perf_counter() - began

    return send


def measure(decoder: Decoder, target: Any, transport: Transport, num_rounds: int) -> dict[str, float]:
    """Return the least seconds of a sync without checks, with all, and with each alone."""
    send, wanted = syncs(decoder, target, transport), {"without": NONE, "all": ALL_CHECKS}
    wanted |= {check.value: frozenset({check}) for check in sorted(ALL_CHECKS - {Check.IDEMPOTENCE})}
    found: dict[str, list[float]] = {name: [] for name in wanted}
    for _ in range(num_rounds):
        for name, checks in wanted.items():
            found[name].append(send(checks))
    return {name: min(each) for name, each in found.items()}


def show(name: str, found: dict[str, float]) -> None:
    """Print a line of milliseconds."""
    bare, full = found["without"], found["all"]
    alone = {check: (took - bare) * 1e3 for check, took in found.items() if check not in {"without", "all"}}
    each = ", ".join(f"{check} {added:.1f}" for check, added in alone.items())
    print(f"  {name:14} {bare * 1e3:6.1f} ms without checks, {full * 1e3:6.1f} with all; alone: {each}")


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="10M")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ray", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    decoder = Decoder(SIZES[options.size]).initialise(1)
    num_parameters = sum(parameter.numel() for parameter in decoder.parameters())
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, {machine()}, load {os.getloadavg()[0]:.1f}: "
        f"{num_parameters / 1e6:.1f}M parameters, float32, level invariant"
    )
    with ExitStack() as stack, tempfile.TemporaryDirectory() as directory, following(Strategy()):
        show("this process", measure(decoder, LocalTarget(Decoder(SIZES[options.size])), IN_PROCESS, options.rounds))
        host = stack.enter_context(closing(RemoteHost()))
        with transports(stack, Path(directory)) as found:
            for name, transport in found.items():
                show(name, measure(decoder, host.target(LocalTarget, decoder), transport, options.rounds))
        if options.ray:
            show("ray", measure(decoder, ray_target(stack, decoder), ray_transport(), options.rounds))
    return 0


def ray_transport() -> Transport:
    """Return the transport through Ray's store."""
    from rlcore.weights.transports.ray_store import RayStoreTransport

    return RayStoreTransport()


def ray_target(stack: ExitStack, decoder: Decoder) -> RemoteTarget:
    """Start Ray and return a target in an actor."""
    import ray

    from rlcore.weights.transports.ray_store import over_actor
    from tests.rlcore.weights.ray_store_cases import Sampler

    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=512 << 20, log_to_driver=False)
    stack.callback(ray.shutdown)
    actor: Any = ray.remote(Sampler)
    actor = actor.remote()
    ray.get(actor.build.remote(LocalTarget, decoder))
    return RemoteTarget(over_actor(actor))


if __name__ == "__main__":
    sys.exit(main())
