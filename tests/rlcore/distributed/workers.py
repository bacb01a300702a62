"""Workers of tests, which actors import."""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from rlcore.distributed.dispatch import (
    Broadcast,
    Collect,
    Entry,
    Mesh,
    Padding,
    Partition,
    Shard,
    Table,
    data_parallel,
)
from rlcore.distributed.scatter import collect, scatter
from rlcore.distributed.worker import Worker, WorkerContext, construct
from rlcore.errors import StepError


def run_here(
    worker: type[Worker], method: str, *args: Any, size: int = 1, mesh: Mesh | None = None, **given: Any
) -> Any:
    """Run a method on ranks in this process, as a group would; `args` construct the workers."""
    mesh = mesh or data_parallel(size)
    size, entry = len(mesh.data_ranks), worker.dispatch_table[method]
    ranks = [construct(worker, args, {}, WorkerContext("here", rank, size)) for rank in range(size)]
    call = scatter(entry, given, mesh)
    results = [getattr(each, method)(**own) for each, own in zip(ranks, call.arguments, strict=True)]
    return collect(entry, mesh, call.parts, results)


def longest_first(values: Sequence[Any], size: int) -> list[list[int]]:
    """Deal rows in turn, the longest first."""
    order = sorted(range(len(values)), key=lambda row: (-len(str(values[row])), row))
    return [order[part::size] for part in range(size)]


def double(values: Tensor) -> Tensor:
    """A function that workers receive."""
    return values * 2


class Adder(Worker):
    """Adds its rank and a constant, so that a result says who computed it."""

    dispatch_table: ClassVar[Table] = {
        "add": Entry({"values": Shard(Padding.WRAP)}, collect=Collect.ROWS),
        "add_uneven": Entry({"values": Shard(Padding.UNEVEN)}, collect=Collect.ROWS),
        "lengths": Entry({"texts": Partition(longest_first)}, collect=Collect.ROWS),
        "apply": Entry({"function": Broadcast(), "values": Shard()}, collect=Collect.ROWS),
        "sizes": Entry({"values": Shard(Padding.UNEVEN)}, collect=Collect.LIST),
        "total": Entry({"values": Broadcast(), "scale": Broadcast()}, collect=Collect.LIST),
        "first": Entry({"value": Broadcast()}),
        "echo": Entry({"value": Broadcast()}, collect=Collect.LIST),
        "note_close": Entry({"directory": Broadcast()}),
        "change": Entry({"values": Broadcast()}, collect=Collect.LIST),
        "where": Entry({"names": Broadcast()}, collect=Collect.LIST),
    }

    def __init__(self, constant: int = 0) -> None:
        self.constant = constant
        self.rank = self.context.rank
        self.noted = ""

    def add(self, values: Tensor) -> Tensor:
        return values + self.rank + self.constant

    def add_uneven(self, values: Tensor) -> Tensor:
        return values + self.rank

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(text) for text in texts]

    def apply(self, function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        return function(values)

    def sizes(self, values: Tensor) -> int:
        return len(values)

    def total(self, values: Mapping[str, Tensor], scale: float = 1.0) -> float:
        return scale * sum(float(value.double().sum()) for value in values.values())

    def first(self, value: int) -> int:
        return value + self.constant

    def echo(self, value: Any) -> Any:
        return value

    def note_close(self, directory: str) -> None:
        self.noted = directory

    def close(self) -> None:
        if self.noted:
            Path(self.noted, f"rank {self.rank}").touch()

    def change(self, values: Tensor) -> float:
        values.add_(1)
        return float(values[0])

    def where(self, names: Sequence[str]) -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in names}


class Faulty(Worker):
    """Fails in the ways that workers fail."""

    dispatch_table: ClassVar[Table] = {
        "raise_error": Entry({"kind": Broadcast(), "rank": Broadcast()}, collect=Collect.LIST),
        "die": Entry({"how": Broadcast(), "rank": Broadcast()}, collect=Collect.LIST),
        "wait": Entry({}, collect=Collect.LIST),
        "result": Entry({}, collect=Collect.LIST),
        "pid": Entry({}, collect=Collect.LIST),
        "stay": Entry({"directory": Broadcast()}),
    }

    def __init__(self, how: str = "") -> None:
        if how == "raise" and self.context.rank == 1:
            raise StepError("cannot be constructed", phases=("setup",))
        if how == "wait":
            threading.Event().wait()
        if how == "die" and self.context.rank == 1:
            os._exit(7)

    def raise_error(self, kind: str, rank: int) -> int:
        if self.context.rank == rank:
            if kind == "step":
                raise StepError("the sum is odd", phases=("update", "sync"), legal="even", remedy="add one")
            if kind == "value":
                raise ValueError("not a number")
            if kind == "own":
                raise OwnError("a", 3)
            raise _local_error()
        return self.context.rank

    def die(self, how: str, rank: int) -> None:
        if self.context.rank != rank:
            if how == "later":
                raise ConnectionResetError("what the communication of a live rank says of the dead one")
            threading.Event().wait()
        if how == "later":
            time.sleep(0.05)
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)

    def wait(self) -> None:
        threading.Event().wait()

    def result(self) -> Any:
        return threading.Lock()

    def pid(self) -> int:
        return os.getpid()

    def stay(self, directory: str) -> None:
        Path(directory, f"rank {self.context.rank}").touch()
        threading.Event().wait()


class OwnError(Exception):
    """An exception whose constructor does not take its args."""

    def __init__(self, name: str, count: int) -> None:
        super().__init__(f"{count} of {name}")


def _local_error() -> Exception:
    class LocalError(Exception):
        pass

    return LocalError("of a function")


class Gathering(Worker):
    """Ranks of torch.distributed."""

    dispatch_table: ClassVar[Table] = {
        "gather": Entry({"values": Shard()}, collect=Collect.LIST),
        "half_gather": Entry({}, collect=Collect.LIST),
    }

    def __init__(self) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")

    def gather(self, values: Tensor) -> Tensor:
        found = [torch.empty_like(values) for _ in range(dist.get_world_size())]
        dist.all_gather(found, values)
        return torch.cat(found)

    def half_gather(self) -> None:
        if dist.get_rank() == 0:
            raise StepError("rank 0 does not take part", phases=("update",))
        dist.all_reduce(torch.ones(1))

    def close(self) -> None:
        dist.destroy_process_group()
