"""(child) One rank of a bootstrap, or one start of Ray, that reports the layer it has reached.

    python -m harness.doctor.distributed_probe --report FILE --rank 0 --world 2 --backend gloo --address HOST:PORT \\
        --meet DIR
    python -m harness.doctor.distributed_probe --report FILE --rank 0 --world 2 --backend gloo --address HOST:PORT
    python -m harness.doctor.distributed_probe --report FILE --collect DIR --world 2 --address HOST:PORT
    python -m harness.doctor.distributed_probe --report FILE --ray

FILE gets the lines of an attempt's report, with layers instead of tests: `start` with the layer's limit, `end` with its
outcome. The supervisor ends this process if a layer takes longer, so a layer may hang forever in a C call. A rank does
not continue after a layer has failed.

The ranks of a launcher's job may be on several hosts, and have no directory in common (--meet). The third form keeps
their store beside rank 0. Each rank puts its report there, and the third form writes all of them below DIR.
"""

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness.bits.files import write_replacing
from harness.machine.network.interface_rules import gloo_pick, nccl_pick
from harness.machine.network.interfaces import read_nccl_settings, read_network
from harness.process.clock import SystemClock

LIMITS_S = {"ray": 25.0, "store": 13.0, "ranks": 110.0, "gloo": 5.0, "nccl": 60.0, "collective": 15.0}
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
JOB_S = 45.0
"""Limit on each wait for the other ranks of a job, which their launcher starts at different times."""
CONNECT_S = 3.0
"""Limit on one connection: a lost packet is sent again after one second."""
NAME_S = 1.0
AT_ONCE = 32
MAX_SHOWN = 4
MEET_ROUND_S = 0.02
COLLECT_ROUND_S = 0.1
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Variable of torchrun, "True" if its own process keeps the store, as torch's env:// reads it."""
HEAD_START_S = 0.3
"""Time for rank 0 to open the store: a rank that comes too early tries again up to two seconds later."""
NUM_ELEMENTS = 1 << 18
"""Size of the first collective: a megabyte, since a network that loses large packets only lets a bootstrap pass."""


class Report:
    """Appends a line for everything that happens, each with one write."""

    def __init__(self, path: str) -> None:
        self.clock = SystemClock()
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._text = ""
        self.post: Callable[[str, bool], None] = lambda text, is_last: None
        """Also given all lines after each of them, and whether it is the last."""
        self.write("hello", version=1, pid=os.getpid())

    def write(self, kind: str, **fields: object) -> None:
        """One line."""
        line = json.dumps({"k": kind, **fields}, separators=(",", ":")) + "\n"
        os.write(self._fd, line.encode())
        self._text += line
        with contextlib.suppress(RuntimeError):  # rank 0 has ended, and its store with it
            self.post(self._text, kind == "finish" or fields.get("outcome") == "failed")

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


def open_store(address: str, world: int, limit_s: float, *, is_master: bool) -> Any:
    """Return torch's store at `address`."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host, _, port = address.rpartition(":")
    limit = datetime.timedelta(seconds=limit_s)
    # Not waiting for the others in there, and under a prefix: at a port that is taken this may be somebody's store.
    own: Any = TCPStore(host.strip("[]"), int(port), world, is_master=is_master, timeout=limit, wait_for_workers=False)
    return PrefixStore("rlharness", own)


def wait_for_store(report: Report, address: str) -> None:
    """Wait until the store of a job is there; raises OSError. torch would look up names, and try for minutes."""
    host, _, port = address.rpartition(":")
    began_s = report.clock.monotonic_s()
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
        except OSError:
            if report.clock.monotonic_s() - began_s > JOB_S:
                raise
            threading.Event().wait(COLLECT_ROUND_S)
        else:
            return


def answer_at(address: str, word: str) -> int:
    """Open a port at `address` that answers with `word` while this process lives; return 0 if it cannot be opened."""
    try:
        server = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError:
        return 0

    def answer() -> None:
        while True:
            with contextlib.suppress(OSError):
                caller, _ = server.accept()
                with caller:
                    caller.sendall(word.encode())

    threading.Thread(target=answer, daemon=True).start()
    return int(server.getsockname()[1])


def why_not_reached(address: str, port: int, word: str) -> str:
    """Return why a connection to `address` does not come to the rank that answers with `word`; empty if it does."""
    try:
        with socket.create_connection((address, port), timeout=CONNECT_S) as caller:
            answered = caller.makefile("rb").read(len(word))
    except OSError as error:
        return str(error)
    return "" if answered == word.encode() else "a different program answers"


def wait_for_all(store: Any, key: str, world: int) -> list[Any]:
    """Return the value that each rank sets for `key`; raises TimeoutError with the ranks that have set none."""
    keys = [f"{key}{rank}" for rank in range(world)]
    try:
        store.wait(keys, datetime.timedelta(seconds=JOB_S))
    except RuntimeError:
        missing = [f"rank {rank}" for rank in range(world) if not store.check([keys[rank]])]
        raise TimeoutError(f"{', '.join(missing)} did not come within {JOB_S:g} s") from None
    return [json.loads(store.get(each)) for each in keys]


def meet_every_rank(store: Any, name: str, rank: int, world: int, backend: str) -> None:
    """Connect to every rank where its libraries will listen; raises ConnectionError with the ranks not reached."""
    network, word = asyncio.run(read_network(limit_s=NAME_S)), secrets.token_hex(8)
    picks = [gloo_pick(network, os.environ)]
    if backend == "nccl":
        picks.append(nccl_pick(network, read_nccl_settings(os.environ)))
    offers = [
        (f"{name} is not reached at {pick.address or 'any address'} ({pick.library}: {pick.problem or pick.why})",
         pick.address, answer_at(pick.address, word), word)
        for pick in picks
    ]  # fmt: skip
    store.set(f"offers{rank}", json.dumps(offers))
    targets = [offer for offers in wait_for_all(store, "offers", world) for offer in offers]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        problems = pool.map(lambda target: why_not_reached(*target[1:]), targets)
        found = [(said, f"{name}: {problem}") for (said, *_), problem in zip(targets, problems, strict=True) if problem]
    store.set(f"found{rank}", json.dumps(found))
    callers: dict[str, list[str]] = {}
    for said, caller in (each for found in wait_for_all(store, "found", world) for each in found):
        callers.setdefault(said, []).append(caller)
    if callers:
        raise ConnectionError(_first([f"{said} by {_first(those)}" for said, those in callers.items()]))


def _first(words: Sequence[str]) -> str:
    more = [f"{len(words) - MAX_SHOWN} more"] if len(words) > MAX_SHOWN else []
    return "; ".join([*words[:MAX_SHOWN], *more])


def collect_reports(report: Report, world: int, address: str, directory: Path) -> None:
    """Keep the store of a job, and write the reports of its ranks below `directory`, until all of them have ended."""
    report.write("collected", need={"gpus": 0}, nodeids=["store"])
    with report.layer("store", JOB_S):
        store = open_store(address, world, JOB_S, is_master=os.environ.get(AGENT_STORE) != "True")
    never, running = threading.Event(), set(range(world))
    while running:
        never.wait(COLLECT_ROUND_S)
        for rank in [rank for rank in sorted(running) if store.check([f"report{rank}"])]:
            name, text, is_last = json.loads(store.get(f"report{rank}"))
            path = directory / re.sub(r"[^\w .-]", "_", name)
            path.mkdir(exist_ok=True)
            write_replacing(path / "report.jsonl", text)
            running -= {rank} if is_last else set()
    report.write("finish", exit=0)


def walk_rank(
    report: Report, rank: int, world: int, *, backend: str, address: str, meeting: Path | None, gpu: int
) -> None:
    """Come up as rank `rank` of `world`: store, Gloo, NCCL where asked for, one all-reduce whose sum is checked.

    Without a directory `meeting` it is a rank of a job, which also connects to every other one.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    if backend == "nccl" and torch.cuda.device_count() <= gpu:
        raise ValueError(f"NCCL needs a GPU per rank: GPU {gpu}, and torch sees {torch.cuda.device_count()}")
    if backend == "nccl":  # a context takes seconds on GPUs that sleep, which are no layer's time
        torch.cuda.set_device(gpu)
        torch.zeros(1, device="cuda").item()
    layers = ["store", "gloo", *(["nccl"] if backend == "nccl" else []), "collective"]
    if meeting:
        wait_for_the_others(meeting, rank, world)
    report.write("collected", need={"gpus": 0}, nodeids=layers)  # torch is there: its import is no layer's time
    with report.layer("store", 0 if meeting else 2 * JOB_S + 5):
        if not meeting:
            wait_for_store(report, address)
        limit_s = STORE_GIVES_UP_S if meeting else JOB_S
        store = open_store(address, world, limit_s, is_master=bool(meeting) and rank == 0)
        if meeting:
            store.set(f"rank{rank}", "here")
            store.wait([f"rank{other}" for other in range(world)], datetime.timedelta(seconds=limit_s))
    if not meeting:
        name = f"rank {rank} on {socket.gethostname()}"
        report.post = lambda text, is_last: store.set(f"report{rank}", json.dumps((name, text, is_last)))
        with report.layer("ranks"):
            meet_every_rank(store, name, rank, world, backend)
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
            device = torch.device("cuda", gpu)
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
    parser.add_argument("--gpu", type=int, default=0, help="number of the rank's GPU on its host")
    parser.add_argument("--meet", type=Path, help="a directory of all ranks; none for ranks of a job")
    parser.add_argument("--collect", type=Path, help="a directory for the reports of a job's ranks")
    arguments = parser.parse_args()
    report = Report(arguments.report)
    if arguments.ray:
        start_ray(report)
    elif arguments.collect:
        collect_reports(report, arguments.world, arguments.address, arguments.collect)
    else:
        same = {"backend": arguments.backend, "address": arguments.address, "meeting": arguments.meet}
        walk_rank(report, arguments.rank, arguments.world, **same, gpu=arguments.gpu)


if __name__ == "__main__":
    main()
