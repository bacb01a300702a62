"""(child) One rank of a bootstrap, or one start of Ray, that reports the layer it has reached.

    python -m harness.doctor.distributed_probe --report FILE --rank 0 --world 2 --backend gloo --address HOST:PORT \\
        --meet DIR
    python -m harness.doctor.distributed_probe --report FILE --ray

FILE gets the lines of an attempt's report, with layers instead of tests: `start` with the layer's limit, `end` with its
outcome. The supervisor ends this process if a layer takes longer, so a layer may hang forever in a C call. A rank does
not continue after a layer has failed.
"""

import argparse
import contextlib
import datetime
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.core.clock import SystemClock

LIMITS_S = {"ray": 25.0, "store": 13.0, "gloo": 5.0, "nccl": 60.0, "collective": 15.0}
"""Limit of each layer, in seconds. Healthy ones take less than 3 (Ray), 1 (NCCL) and 0.1 (the others); NCCL's on eight
cold GPUs with NVSwitches many times that.

The store comes up slowly, and comes up, where a name server does not answer."""
STORE_GIVES_UP_S = 12.5
"""Before the layer's limit: torch then says why, unless it tries once more."""
GROUP_GIVES_UP_S = 60.0
"""Longer than every limit: the stack of a hung process shows more than torch's exception."""
RAY_PER_IMPORT = 12.0
"""Ray's limit is at least so many times what its import took: where that is slow, a start is, and is no hang."""
RAY_AT_MOST_S = 45.0
"""Imports from a cold disk are slower than what follows."""
MEET_ROUND_S = 0.02
HEAD_START_S = 0.3
"""Time for rank 0 to open the store: a rank that comes too early tries again up to two seconds later."""
NUM_ELEMENTS = 1 << 18
"""Size of the first collective: a megabyte, since a network that loses large packets only lets a bootstrap pass."""


class Report:
    """Appends a line for everything that happens, each with one write."""

    def __init__(self, path: str) -> None:
        self.clock = SystemClock()
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.write("hello", version=1, pid=os.getpid())

    def write(self, kind: str, **fields: object) -> None:
        """One line."""
        os.write(self._fd, json.dumps({"k": kind, **fields}, separators=(",", ":")).encode() + b"\n")

    @contextlib.contextmanager
    def layer(self, name: str, at_least_s: float = 0.0) -> Iterator[None]:
        """Report the beginning, the limit and the outcome of a layer, which is the body of this context."""
        self.write("start", id=name, timeout_s=max(LIMITS_S[name], at_least_s))
        began_s = self.clock.monotonic_s()
        try:
            yield
        except Exception as error:
            self._end(name, began_s, "failed", f"{type(error).__name__}: {error}")
            raise
        self._end(name, began_s, "passed", "")  # and nothing at a SIGINT: who is ended by one has hung, not failed

    def _end(self, name: str, began_s: float, outcome: str, reason: str) -> None:
        duration_s = self.clock.monotonic_s() - began_s
        self.write("end", id=name, outcome=outcome, duration_s=duration_s, reason=reason, text="")


def wait_for_the_others(meeting: Path, rank: int, world: int) -> None:
    """Until every rank has said in the directory `meeting` that it has imported what it needs.

    No layer begins before: a rank whose import is slow would look like one that does not answer.
    """
    (meeting / f"{rank}").touch()
    never = threading.Event()
    while not all((meeting / f"{other}").exists() for other in range(world)):
        never.wait(MEET_ROUND_S)
    if rank != 0:
        never.wait(HEAD_START_S)


def walk_rank(report: Report, rank: int, world: int, *, backend: str, address: str, meeting: Path) -> None:
    """Come up as rank `rank` of `world`: store, Gloo, NCCL where asked for, one all-reduce whose sum is checked."""
    import torch
    import torch.distributed as dist
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host, _, port = address.rpartition(":")
    if backend == "nccl" and torch.cuda.device_count() < world:
        raise ValueError(f"NCCL needs a GPU per rank: {world} ranks, and torch sees {torch.cuda.device_count()}")
    if backend == "nccl":  # a context takes seconds on GPUs that sleep, which are no layer's time
        torch.cuda.set_device(rank)
        torch.zeros(1, device="cuda").item()
    layers = ["store", "gloo", *(["nccl"] if backend == "nccl" else []), "collective"]
    wait_for_the_others(meeting, rank, world)
    report.write("collected", need={"gpus": 0}, nodeids=layers)  # torch is there: its import is no layer's time
    with report.layer("store"):
        limit = datetime.timedelta(seconds=STORE_GIVES_UP_S)
        # Not waiting for the others in there, and under a prefix: at a port that is taken this may be somebody's store.
        own: Any = TCPStore(
            host.strip("[]"), int(port), world, is_master=rank == 0, timeout=limit, wait_for_workers=False
        )
        store: Any = PrefixStore("rlharness", own)
        store.set(f"rank{rank}", "here")
        store.wait([f"rank{other}" for other in range(world)], limit)
    with report.layer("gloo"):
        dist.init_process_group(
            "gloo",
            store=PrefixStore("gloo", store),
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=GROUP_GIVES_UP_S),
        )
    group, device = None, torch.device("cpu")
    if backend == "nccl":
        with report.layer("nccl"):
            device = torch.device("cuda", rank)
            group = dist.new_group(backend="nccl", device_id=device)  # given its device, it connects at once
    with report.layer("collective"):
        numbers = torch.full((NUM_ELEMENTS,), float(rank + 1), device=device)
        dist.all_reduce(numbers, group=group)
        total = world * (world + 1) / 2
        if not bool((numbers == total).all()):
            raise ArithmeticError(f"the sum over {world} ranks is {numbers.min().item()}, not {total}")
    report.write("finish", exit=0)
    dist.destroy_process_group()


def start_ray(report: Report) -> None:
    """Start Ray as the environment has it, and have two tasks answer."""
    began_s = report.clock.monotonic_s()
    import ray

    import_s = report.clock.monotonic_s() - began_s
    report.write("collected", need={"gpus": 0}, nodeids=["ray"])
    with report.layer("ray", min(RAY_PER_IMPORT * import_s, RAY_AT_MOST_S)):
        ray.init(include_dashboard=False, log_to_driver=False)
        double = ray.remote(_double)
        if ray.get([double.remote(1), double.remote(2)]) != [2, 4]:
            raise ArithmeticError("Ray's tasks returned wrong results")
    report.write("finish", exit=0)
    ray.shutdown()


def _double(number: int) -> int:
    return 2 * number


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", required=True)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    parser.add_argument("--address", default="127.0.0.1:29400")
    parser.add_argument("--meet", type=Path, help="a directory of all ranks")
    arguments = parser.parse_args()
    report = Report(arguments.report)
    if arguments.ray:
        start_ray(report)
    elif arguments.meet is None:
        parser.error("a rank requires --meet")
    else:
        told = {"backend": arguments.backend, "address": arguments.address, "meeting": arguments.meet}
        walk_rank(report, arguments.rank, arguments.world, **told)


if __name__ == "__main__":
    main()
