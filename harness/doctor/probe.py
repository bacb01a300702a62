"""(child) Steps that the doctor has its children take: trials of a directory, torch, ranks of a bootstrap.

Each step is a call with a limit of its own, since it may hang forever in a C call: the parent then ends the process.
"""

import contextlib
import datetime
import fcntl
import io
import os
import runpy
import tempfile
import threading
import warnings
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.process.clock import SystemClock
from harness.process.program_output import json_objects
from harness.process.scratch import FALLBACKS, fs_type_of, read_mounts, why_unfit

NUM_TRIES = 3
"""Repetitions of a lock. The fastest counts: a slow file system is always slow, a busy machine is not."""
STORE_GIVES_UP_S = 12.5
"""Before the layer's limit: torch then says why, unless it tries once more."""
GROUP_GIVES_UP_S = 60.0
"""Longer than every limit: the stack of a hung process shows more than torch's exception."""
HEAD_START_S = 0.3
"""Time for rank 0 to open the store: a rank that comes too early tries again up to two seconds later."""
NUM_ELEMENTS = 1 << 18
"""Size of the first collective: a megabyte, since a network that loses large packets only lets a bootstrap pass."""

# ---- directories ----


def better_directory(directory: str) -> str:
    """Return a directory that is fit for temporary files, other than this one; empty for none."""
    mounts = read_mounts()
    return next((path for path in FALLBACKS if path != directory and not why_unfit(path, mounts)), "")


def survey(directory: str) -> tuple[str, int]:
    """Return the type of a directory's file system and its free bytes. OSError where there is none."""
    space = os.statvfs(directory)
    return fs_type_of(os.path.realpath(directory), read_mounts()), space.f_bavail * space.f_frsize


def create(directory: str) -> None:
    """Make a file and remove it. OSError."""
    with tempfile.NamedTemporaryFile(prefix="rlh-lock-", dir=directory):
        pass


def lock(directory: str) -> float:
    """Take locks on a file, as other programs will; return the seconds that they took. OSError."""
    clock, took_s = SystemClock(), []
    with tempfile.NamedTemporaryFile(prefix="rlh-lock-", dir=directory) as file:
        for _ in range(NUM_TRIES):
            began_s = clock.monotonic_s()
            for function in (fcntl.flock, fcntl.lockf):
                function(file, fcntl.LOCK_EX)
                function(file, fcntl.LOCK_UN)
            took_s.append(clock.monotonic_s() - began_s)
    return min(took_s)


# ---- torch ----


def torch_build() -> tuple[str, str]:
    """Return the version of torch and the CUDA that it was built for, without importing it; empty without them."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return "", ""
    names = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    return str(names["__version__"]), names.get("cuda") or ""


def torch_gpus() -> tuple[bool, str, list[str]]:
    """Return whether torch finds GPUs, what it warns of, and the architectures that it has kernels for."""
    import torch

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        is_available = torch.cuda.is_available()
    return is_available, "; ".join(" ".join(str(each.message).split()) for each in seen), torch.cuda.get_arch_list()


def run_survey(module: str) -> list[dict[str, Any]]:
    """Run a module as a program; return the JSON objects that it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_module(module, run_name="__main__")
    return json_objects(out.getvalue())


# ---- ranks of a bootstrap ----


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of a bootstrap, by whose number it takes its GPU."""

    number: int
    world: int
    backend: str
    address: str
    """HOST:PORT of the store."""


def start(rank: Rank) -> None:
    """Import torch and wake the GPU, which is no layer's time."""
    import torch
    import torch.distributed

    if rank.backend == "nccl":
        if torch.cuda.device_count() <= rank.number:
            seen = f"GPU {rank.number}, and torch sees {torch.cuda.device_count()}"
            raise ValueError(f"--backend nccl needs a GPU per rank: {seen}")
        torch.cuda.set_device(rank.number)
        torch.zeros(1, device="cuda").item()


@cache
def _open_store(rank: Rank) -> Any:
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host, _, port = rank.address.rpartition(":")
    limit = datetime.timedelta(seconds=STORE_GIVES_UP_S)
    # Not waiting for the others in there, and under a prefix: at a port that is taken this may be somebody's store.
    is_master, host = rank.number == 0, host.strip("[]")
    own: Any = TCPStore(host, int(port), rank.world, is_master=is_master, timeout=limit, wait_for_workers=False)
    return PrefixStore("rlharness", own)


def meet(rank: Rank) -> None:
    """Meet the other ranks at the store of rank 0."""
    if rank.number:
        threading.Event().wait(HEAD_START_S)
    store, keys = _open_store(rank), [f"rank{number}" for number in range(rank.world)]
    store.set(keys[rank.number], "here")
    store.wait(keys, datetime.timedelta(seconds=STORE_GIVES_UP_S))


def connect_gloo(rank: Rank) -> None:
    """Connect to every other rank through Gloo."""
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    store, limit = PrefixStore("gloo", _open_store(rank)), datetime.timedelta(seconds=GROUP_GIVES_UP_S)
    dist.init_process_group("gloo", store=store, rank=rank.number, world_size=rank.world, timeout=limit)


@cache
def _nccl_group(rank: Rank) -> Any:
    import torch
    import torch.distributed as dist

    # given its device, it connects at once
    return dist.new_group(backend="nccl", device_id=torch.device("cuda", rank.number))


def connect_nccl(rank: Rank) -> None:
    """Come up through NCCL."""
    _nccl_group(rank)


def reduce(rank: Rank) -> None:
    """Add up a megabyte over all ranks."""
    import torch
    import torch.distributed as dist

    is_nccl = rank.backend == "nccl"
    device = torch.device("cuda", rank.number) if is_nccl else torch.device("cpu")
    numbers = torch.full((NUM_ELEMENTS,), float(rank.number + 1), device=device)
    dist.all_reduce(numbers, group=_nccl_group(rank) if is_nccl else None)
    total = rank.world * (rank.world + 1) / 2
    if not bool((numbers == total).all()):
        raise ArithmeticError(f"the sum over {rank.world} ranks is {numbers.min().item()}, not {total}")
