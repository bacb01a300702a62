"""What a hundred uses of each public fixture leave: processes, directories, file descriptors, threads, exit hooks.

    python tests/benchmarks/fixture_leaks.py [--uses 100] [--only distributed]

Each use is a whole one: two ranks that make a Gloo process group and reduce a tensor; a Ray cluster with pretended
GPUs (every tenth of two nodes) on which an actor is called; a port on which a server listens. Two uses are
a warm-up: what a library opens once per process is not counted. Exit status 1 where anything is left, but for one
thing that is told: Ray's driver, in this process, keeps a closed connection to the GCS of a cluster that it has left,
one descriptor each.
"""

import argparse
import contextlib
import io
import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from harness.fixtures.ranks import start_ranks  # noqa: E402
from harness.fixtures.ray_nodes import start_ray_cluster  # noqa: E402
from harness.plugin import held_port  # noqa: E402
from tests.support.collectives import summed  # noqa: E402
from tests.support.left_behind import a_place_of_their_own, left_beyond, memory_mb  # noqa: E402


def use_distributed(number: int) -> None:
    """Two ranks, one collective."""
    import torch

    group = start_ranks(2)
    try:
        assert [int(total) for total in group.run(summed, torch.tensor(number))] == [3 * number] * 2
    finally:
        group.close()


def own_pid() -> int:
    """Of a worker."""
    return os.getpid()


def use_ray_cluster(number: int) -> None:
    """A cluster, one actor."""
    ray = pytest.importorskip("ray")
    cluster = start_ray_cluster(2 if number % 10 == 0 else 1, num_cpus=1, pretend_gpus=2, **QUIET)
    try:
        pid = ray.get(ray.remote(num_gpus=1)(own_pid).remote(), timeout=120)
        assert pid != os.getpid()
    finally:
        cluster.close()


def use_free_port(_: int) -> None:
    """A server on a held port."""
    with held_port() as port, socket.create_server(("127.0.0.1", port)):
        socket.create_connection(("127.0.0.1", port)).close()


QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}


FIXTURES: dict[str, Callable[[int], None]] = {
    "free_port": use_free_port,
    "distributed": use_distributed,
    "ray_cluster": use_ray_cluster,
}


def take_sockets(left: dict[str, object]) -> int:
    """How many sockets are among what is left; takes them out of it."""
    match left.get("descriptors"):
        case {"socket:[#]": int(sockets), **others}:
            left.pop("descriptors")
            left.update({"descriptors": others} if others else {})
            return sockets
    return 0


def measure(name: str, num_uses: int) -> bool:
    """Use a fixture that often; print what is left, and whether nothing is."""
    use = FIXTURES[name]
    with a_place_of_their_own() as look:
        with contextlib.redirect_stdout(io.StringIO()):
            for number in (0, 1):
                use(number)
        before, before_mb, start_s = look(), memory_mb(), time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()):
            for number in range(num_uses):
                use(number)
        each_s, grown_mb = (time.monotonic() - start_s) / num_uses, memory_mb() - before_mb
        left = left_beyond(look, before)
    sockets = take_sockets(left) if name == "ray_cluster" else 0
    told = f" but {sockets} closed connections of Ray's driver" if sockets else ""
    verdict = f"LEFT: {left}" if left or sockets > num_uses else f"nothing left{told}"
    print(f"{name}: {num_uses} uses, {each_s:.2f} s each; {verdict}; this process's memory grew by {grown_mb:.1f} MB")
    return not left and sockets <= num_uses


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description="what uses of the fixtures leave")
    parser.add_argument("--uses", type=int, default=100, help="how often each is used")
    parser.add_argument("--only", choices=FIXTURES, help="one fixture")
    args = parser.parse_args()
    versions = f"Python {platform.python_version()}, torch {version('torch')}, ray {version('ray')}"
    print(f"{datetime.now(UTC):%Y-%m-%d}, {versions}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    clean = [measure(name, args.uses) for name in FIXTURES if args.only in (None, name)]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
