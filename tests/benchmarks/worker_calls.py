"""What a call of a worker group costs, by what it carries.

    python -m tests.benchmarks.worker_calls [--ranks 2] [--calls 200]

A method that returns its argument's number of rows is called with nothing, with a broadcast tensor and with one that
is divided; the median and the least of the calls. Workers have one thread.
"""

import argparse
import os
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import ClassVar

import ray
import torch
from torch import Tensor

from rlcore.distributed.dispatch import Broadcast, Collect, Entry, Shard, Table
from rlcore.distributed.ray_cluster import NICENESS
from rlcore.distributed.worker import Worker
from rlcore.distributed.worker_group import start_group
from rlcore.numerics.probe import machine

SIZES = {"1 MB": 1 << 20, "64 MB": 64 << 20}


class Counter(Worker):
    """Does nothing."""

    dispatch_table: ClassVar[Table] = {
        "nothing": Entry(),
        "broadcast": Entry({"values": Broadcast()}),
        "shard": Entry({"values": Shard()}),
        "identity": Entry({"values": Shard()}, collect=Collect.ROWS),
    }

    def nothing(self) -> None:
        """Return."""

    def broadcast(self, values: Tensor) -> int:
        """Count rows."""
        return len(values)

    def shard(self, values: Tensor) -> int:
        """Count rows."""
        return len(values)

    def identity(self, values: Tensor) -> Tensor:
        """Return the rows."""
        return values


def measure(call: Callable[[], object], num_calls: int) -> tuple[float, float]:
    """Return the median and the least seconds of a call, after one that is not counted."""
    call()
    found = []
    for _ in range(num_calls):
        began = perf_counter()
        call()
        found.append(perf_counter() - began)
    return statistics.median(found), min(found)


def written(seconds: tuple[float, float]) -> str:
    """Return "median (least)" in milliseconds."""
    return " (".join(f"{each * 1000:.3g}" for each in seconds) + ")"


def main() -> None:
    """Print a table of milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--calls", type=int, default=200)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    print(
        f"{machine()}; {options.ranks} ranks, {options.calls} calls, load {os.getloadavg()[0]:.0f}; ms, median (least)"
    )
    print(f"| start | nothing | {' | '.join(f'{kind} {size}' for size in SIZES for kind in KINDS)} |")
    print("|---|---|" + "---|" * len(SIZES) * len(KINDS))
    os.environ[NICENESS] = "0"  # actors give way to every other process of a busy machine without it
    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=1 << 30, log_to_driver=False)
    began = perf_counter()
    with start_group(Counter, role="counter", size=options.ranks) as group:
        cells = [f"{(perf_counter() - began) * 1000:.0f}", written(measure(group.handle.nothing, options.calls))]
        for num_bytes in SIZES.values():
            values = torch.zeros(num_bytes // 4096, 1024)
            num_calls = options.calls if num_bytes <= 1 << 20 else 10
            for kind in KINDS:
                method = getattr(group.handle, kind)
                cells.append(written(measure(lambda: method(values), num_calls)))  # noqa: B023
    print(f"| {' | '.join(cells)} |", flush=True)
    ray.shutdown()


KINDS = ("broadcast", "shard", "identity")


if __name__ == "__main__":
    main()
