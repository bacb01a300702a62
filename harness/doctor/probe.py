"""(child) Programs of the doctor: `probe.py trial DIR`, `probe.py torch [use]`, `probe.py rank JSON`.

`rank` is one rank of a bootstrap. It writes to report.jsonl in the working directory the lines of an attempt's report,
with layers instead of tests: `start` with the layer's limit, `end` with its outcome. The supervisor ends a process if a
layer takes longer, so a layer may hang forever in a C call. A rank does not continue after a layer has failed.

The ranks of a launcher's job may be on several hosts, and have no directory `meet` in common. They connect to every
other one, and rank 0 keeps their store.
"""

import asyncio
import contextlib
import datetime
import fcntl
import json
import os
import secrets
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

from harness.process.clock import SystemClock
from harness.process.scratch import FALLBACKS, fs_type_of, read_mounts, why_unfit

NUM_TRIES = 3
"""Repetitions of a lock. The fastest counts: a slow file system is always slow, a busy machine is not."""
LIMITS_S = {"store": 13.0, "ranks": 110.0, "gloo": 5.0, "nccl": 60.0, "collective": 15.0}
"""Limit of each layer, in seconds. Healthy ones take less than 1 (NCCL) and 0.1 (the others); NCCL's on eight
cold GPUs with NVSwitches many times that.

The store comes up slowly, and comes up, where a name server does not answer."""
STORE_GIVES_UP_S = 12.5
"""Before the layer's limit: torch then says why, unless it tries once more."""
GROUP_GIVES_UP_S = 60.0
"""Longer than every limit: the stack of a hung process shows more than torch's exception."""
JOB_S = 45.0
"""Limit on each wait for the other ranks of a job, which their launcher starts at different times."""
LAST_WORD_S = 5.0
"""Time for which rank 0 keeps the store of a job that failed, for the others to read why."""
CONNECT_S = 3.0
"""Limit on one connection: a lost packet is sent again after one second."""
NAME_S = 1.0
AT_ONCE = 32
MAX_SHOWN = 4
ROUND_S = 0.02
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Variable of torchrun, "True" if its own process keeps the store, as torch's env:// reads it."""
HEAD_START_S = 0.3
"""Time for rank 0 to open the store: a rank that comes too early tries again up to two seconds later."""
NUM_ELEMENTS = 1 << 18
"""Size of the first collective: a megabyte, since a network that loses large packets only lets a bootstrap pass."""


def say(**line: object) -> None:
    """Print a JSON line."""
    print(json.dumps(line), flush=True)


# ---- short questions ----


def try_directory(directory: str) -> None:
    """Take a lock in a directory, as other programs will, with a line for each step once it is done.

    The step that hung is the first without its line. A process of its own, since a lock on a dead file server cannot be
    given up by the thread that waits for it.
    """
    mounts, clock, path = read_mounts(), SystemClock(), ""
    say(better=next((path for path in FALLBACKS if path != directory and not why_unfit(path, mounts)), ""))
    step = "survey"
    try:
        space = os.statvfs(directory)
        say(fs_type=fs_type_of(os.path.realpath(directory), mounts), free_bytes=space.f_bavail * space.f_frsize)
        say(step=step, took_s=0.0)
        step = "create"
        fd, path = tempfile.mkstemp(prefix="rlh-lock-", dir=directory)
        say(step=step, took_s=0.0)
        step, took_s = "lock", []
        for _ in range(NUM_TRIES):
            began_s = clock.monotonic_s()
            for function in (fcntl.flock, fcntl.lockf):
                function(fd, fcntl.LOCK_EX)
                function(fd, fcntl.LOCK_UN)
            took_s.append(clock.monotonic_s() - began_s)
        say(step=step, took_s=round(min(took_s), 6))
    except OSError as error:
        say(step=step, error=error.strerror or str(error))
    finally:
        if path:
            os.unlink(path)


def ask_torch(use: str = "") -> None:
    """Say what this environment's torch is, without importing it; with `use`, also whether it finds GPUs."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return
    names = run_path(str(Path(spec.origin).with_name("version.py")))
    say(version=str(names["__version__"]), cuda=names.get("cuda"))
    if use:
        import torch

        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            is_available = torch.cuda.is_available()
        warning = "; ".join(" ".join(str(each.message).split()) for each in seen)
        say(is_available=is_available, warning=warning, archs=torch.cuda.get_arch_list())


# ---- ranks of a bootstrap ----


class Report:
    """Appends a line for everything that happens, each with one write."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self._fd = os.open("report.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.write("hello", version=1, pid=os.getpid())

    def write(self, kind: str, **fields: object) -> None:
        """One line."""
        os.write(self._fd, (json.dumps({"k": kind, **fields}, separators=(",", ":")) + "\n").encode())

    @contextlib.contextmanager
    def layer(self, name: str, at_least_s: float = 0.0) -> Iterator[None]:
        """Report the beginning, the limit and the outcome of a layer, which is the body of this context."""
        self.write("start", id=name, timeout_s=max(LIMITS_S[name], at_least_s))
        began_s = self.clock.monotonic_s()

        def end(outcome: str, reason: str) -> None:
            duration_s = self.clock.monotonic_s() - began_s
            self.write("end", id=name, outcome=outcome, duration_s=duration_s, reason=reason, text="")

        try:
            yield
        except Exception as error:
            end("failed", f"{type(error).__name__}: {error}")
            raise
        end("passed", "")  # and nothing at a SIGINT: who is ended by one has hung, not failed


def wait_for_the_others(meeting: Path, rank: int, world: int) -> None:
    """Until every rank has said in the directory `meeting` that it has imported what it needs.

    No layer begins before: a rank whose import is slow would look like one that does not answer.
    """
    (meeting / f"{rank}").touch()
    never = threading.Event()
    while not all((meeting / f"{other}").exists() for other in range(world)):
        never.wait(ROUND_S)
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


def wait_for_store(address: str, clock: SystemClock) -> None:
    """Wait until the store of a job is there; raises OSError. torch would look up names, and try for minutes."""
    host, _, port = address.rpartition(":")
    began_s = clock.monotonic_s()
    while True:
        try:
            return socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
        except OSError:
            if clock.monotonic_s() - began_s > JOB_S:
                raise
            threading.Event().wait(ROUND_S)


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


def gather(store: Any, key: str, rank: int, world: int, value: object, *, limit_s: float = JOB_S) -> list[Any]:
    """Set the value of this rank for `key`, and return that of each; TimeoutError with the ranks that have set none."""
    keys = [f"{key}{rank}" for rank in range(world)]
    store.set(keys[rank], json.dumps(value))
    try:
        store.wait(keys, datetime.timedelta(seconds=limit_s))
    except RuntimeError:
        missing = [f"rank {rank}" for rank in range(world) if not store.check([keys[rank]])]
        raise TimeoutError(f"{', '.join(missing)} did not come within {limit_s:g} s") from None
    return [json.loads(store.get(each)) for each in keys]


def meet_every_rank(store: Any, rank: int, world: int, backend: str) -> None:
    """Connect to every rank where its libraries will listen; raises ConnectionError with the ranks not reached."""
    from harness.machine.network.interfaces import gloo_pick, nccl_pick, read_nccl_settings, read_network

    name = f"rank {rank} on {socket.gethostname()}"
    network, word = asyncio.run(read_network(limit_s=NAME_S)), secrets.token_hex(8)
    picks = [gloo_pick(network, os.environ)]
    if backend == "nccl":
        picks.append(nccl_pick(network, read_nccl_settings(os.environ)))
    offers = []
    for pick in picks:
        where = f"{pick.address or 'any address'} ({pick.library}: {pick.problem or pick.why})"
        offers.append((f"{name} is not reached at {where}", pick.address, answer_at(pick.address, word), word))
    targets = [offer for offers in gather(store, "offers", rank, world, offers) for offer in offers]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        problems = pool.map(lambda target: why_not_reached(*target[1:]), targets)
        found = [(said, f"{name}: {problem}") for (said, *_), problem in zip(targets, problems, strict=True) if problem]
    callers: dict[str, list[str]] = {}
    for said, caller in (each for found in gather(store, "found", rank, world, found) for each in found):
        callers.setdefault(said, []).append(caller)
    if callers:
        raise ConnectionError(_first([f"{said} by {_first(those)}" for said, those in callers.items()]))


def _first(words: Sequence[str]) -> str:
    more = [f"{len(words) - MAX_SHOWN} more"] if len(words) > MAX_SHOWN else []
    return "; ".join([*words[:MAX_SHOWN], *more])


def walk_rank(report: Report, rank: int, world: int, *, backend: str, address: str, gpu: int, meet: str = "") -> None:
    """Come up as rank `rank` of `world`: store, Gloo, NCCL where asked for, one all-reduce whose sum is checked."""
    import torch
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    if backend == "nccl" and torch.cuda.device_count() <= gpu:
        raise ValueError(f"--backend nccl needs a GPU per rank: GPU {gpu}, and torch sees {torch.cuda.device_count()}")
    if backend == "nccl":  # a context takes seconds on GPUs that sleep, which are no layer's time
        torch.cuda.set_device(gpu)
        torch.zeros(1, device="cuda").item()
    if meet:
        wait_for_the_others(Path(meet), rank, world)
    report.write("collected", need={"gpus": 0}, nodeids=[])  # torch is there: its import is no layer's time
    with report.layer("store", 0 if meet else 2 * JOB_S + 5):
        is_master = rank == 0 and (bool(meet) or os.environ.get(AGENT_STORE) != "True")
        if not meet and not is_master:
            wait_for_store(address, report.clock)
        store = open_store(address, world, STORE_GIVES_UP_S if meet else JOB_S, is_master=is_master)
        if meet:
            gather(store, "rank", rank, world, "here", limit_s=STORE_GIVES_UP_S)
    try:
        if not meet:
            with report.layer("ranks"):
                meet_every_rank(store, rank, world, backend)
        with report.layer("gloo"):
            limit = datetime.timedelta(seconds=GROUP_GIVES_UP_S)
            shared = PrefixStore("gloo", store)
            dist.init_process_group("gloo", store=shared, rank=rank, world_size=world, timeout=limit)
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
    finally:
        with contextlib.suppress(TimeoutError, RuntimeError):  # ranks that never came, or whose store has ended
            if not meet:
                gather(store, "last", rank, world, "word", limit_s=LAST_WORD_S if rank == 0 else 0.001)


def main() -> None:
    """Do what the command line says."""
    program, *words = sys.argv[1:]
    match program:
        case "trial":
            try_directory(*words)
        case "torch":
            ask_torch(*words)
        case "rank":
            walk_rank(Report(), **json.loads(words[0]))


if __name__ == "__main__":
    main()
