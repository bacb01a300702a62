"""One attempt on a node of a cluster: its directories there, its supervisor, and what its files have become.

Reads an order from standard input and writes JSON lines to standard output. The end of standard input is that of the
run, of the task or of its worker: then the tree is killed, and the directories are removed.
"""

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.bits.errors import HarnessError
from harness.bits.files import UNLIMITED, read_regular
from harness.process.child_env import CUDA_VISIBLE_DEVICES
from harness.process.claims import Claims
from harness.process.exhaustion import reason_of
from harness.process.growing_file import GrowingFile
from harness.process.ports import PortBlocks, read_ephemeral_range
from harness.process.scratch import make_scratch_root, remove_abandoned, remove_tree
from harness.process.supervisor.main import Inbox
from harness.process.supervisor_client import ProcessSpec, Supervisors, find_py_spy, probe_backends

ITEM_BYTES = 48 * 1024
"""In base64 less than 100 KiB: such items live in the memory of the run, so no loss of a node takes them back."""
POLL_S = 0.1
GROWING = ("report.jsonl", "output.log", "stacks.txt", "supervisor.log")
"""Files that are sent as they grow; any other once the attempt has ended."""


def main() -> None:
    """Carry out one order in a child, and wait for it: Ray kills this process at the worker's end, and not that one."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    inbox = Inbox()
    if not (line := inbox.next_order()):
        return
    try:
        asyncio.run(_carry_out(json.loads(line), is_cancelled=any(inbox.words())))
    except (OSError, HarnessError) as error:
        say(k="refused", why=reason_of(error))


def say(**event: Any) -> None:
    """Write a line for the run; one that is gone hears nothing."""
    with suppress(OSError):
        text = memoryview(json.dumps(event).encode() + b"\n")
        while text:
            text = text[os.write(1, text) :]


async def _carry_out(order: dict[str, Any], *, is_cancelled: bool) -> None:
    if why := differing(order["sources"]):
        say(k="refused", why=why)
        return
    environ = take_over(order["raylet"])
    with ExitStack() as stack:
        scratch, held, _ = make_scratch_root(environ)
        stack.callback(remove_tree, scratch)
        stack.callback(os.close, held)
        remove_abandoned(os.path.dirname(scratch))
        spec = place(order, environ, Path(scratch), PortBlocks(stack.enter_context(Claims()), read_ephemeral_range()))
        backend = probe_backends(order["containment"]).chosen
        supervisors = stack.enter_context(closing(Supervisors(backend, os.path.basename(scratch), find_py_spy())))
        running = asyncio.create_task(supervisors.run(spec, lambda reason: say(k="terminating", reason=reason)))
        loop = asyncio.get_running_loop()

        def hear() -> None:
            words = os.read(0, 4096)
            if words:
                supervisors.cancel(spec.marker)
                return
            loop.remove_reader(0)
            supervisors.kill(spec.marker)

        loop.add_reader(0, hear)
        if is_cancelled:
            supervisors.cancel(spec.marker)
        files = {name: GrowingFile(os.path.join(spec.directory, name), max_bytes=UNLIMITED) for name in GROWING}
        while not running.done():
            await asyncio.wait((running,), timeout=POLL_S)
            send(files)
        with os.scandir(spec.directory) as entries:
            others = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        send({name: GrowingFile(os.path.join(spec.directory, name)) for name in others if name not in files})
        say(k="end", **asdict(running.result()))


def differing(sources: Mapping[str, str]) -> str:
    """Why this node cannot run the files of an attempt, given their digests; empty if it can."""
    for path, digest in sources.items():
        try:
            found = digest_of(path)
        except OSError as error:
            return f"{error.strerror}: {path}. Every node needs the checkout at the same path"
        if found != digest:
            return f"{path} differs from the file that was collected. Every node needs the same checkout"
    return ""


def digest_of(path: str) -> str:
    """Return the digest of a source file. Raises OSError where it cannot be read."""
    return hashlib.sha256(read_regular(path, follows_links=True)).hexdigest()


def take_over(raylet: int) -> dict[str, str]:
    """Undo what Ray has changed for its workers; return the environment of the shell that started the node.

    A worker has less priority and is the first to be killed for memory; and Ray changes variables such as
    OMP_NUM_THREADS without a record of what they were.
    """
    with suppress(OSError):  # needs root, or RAY_worker_niceness=0
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, raylet))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(Path(f"/proc/{raylet}/oom_score_adj").read_text("ascii"))
    pairs = os.fsdecode(Path(f"/proc/{raylet}/environ").read_bytes()).split("\0")
    environ = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    preloads = [path for path in environ.pop("LD_PRELOAD", "").split(":") if path and "/ray/core/" not in path]
    if preloads:  # apart from Ray's own allocator
        environ["LD_PRELOAD"] = ":".join(preloads)
    return {name: value for name, value in environ.items() if not name.startswith("RAY_")}


def place(order: dict[str, Any], environ: Mapping[str, str], scratch: Path, ports: PortBlocks) -> ProcessSpec:
    """Return the order to a supervisor with this node's directories, GPUs, port and environment."""
    given = order["spec"]
    places = {given["directory"]: str(scratch / "d"), order["tmpdir"]: str(scratch / "t")}
    for path in places.values():
        os.mkdir(path, 0o700)

    def placed(text: str) -> str:
        for theirs, ours in places.items():
            text = text.replace(theirs, ours)
        return text

    env = {**environ, **{name: placed(value) for name, value in given["env"].items()}}
    env |= {"TMPDIR": places[order["tmpdir"]], "MASTER_PORT": str(ports.master_port(0))}
    env |= {CUDA_VISIBLE_DEVICES: ",".join(map(str, order["gpus"]))}
    argv = tuple(map(placed, given["argv"]))
    return ProcessSpec(**{**given, "argv": argv, "env": env, "directory": places[given["directory"]]})


def send(files: Mapping[str, GrowingFile]) -> None:
    """Send what files have grown by."""
    for name, file in files.items():
        for data in _pieces(file):
            say(k="grown", file=name, data=base64.b64encode(data).decode())


def _pieces(file: GrowingFile) -> Iterator[bytes]:
    with suppress(OSError):  # whatever a test has put in its place is no file of the attempt
        while data := file.read():
            for at in range(0, len(data), ITEM_BYTES):
                yield data[at : at + ITEM_BYTES]
            if not file.is_behind:
                return
