"""One attempt as a task of Ray, in a worker of the cluster. The run sends this module by value; it imports no other.

Ray kills the direct children of a worker that ends. So the process that it starts only waits for `node.main`, which
hears of the worker's end by its standard input.
"""

import contextlib
import json
import os
import select
import subprocess
from collections.abc import Iterator
from typing import Any

POLL_S = 0.1
READ_BYTES = 1 << 16


def carry_out(argv: list[str], order: dict[str, Any]) -> Iterator[bytes]:
    """Have the command `argv` carry out the order on this node; yield its lines, which are JSON.

    Ray cancels it by a KeyboardInterrupt. From then on it takes no item, but the attempt still ends in order.
    """
    import ray

    context = ray.get_runtime_context()
    yield json.dumps({"k": "on", "node": context.get_node_id()}).encode()
    pipe = subprocess.PIPE
    try:
        guard = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        yield json.dumps({"k": "refused", "why": f"{error.strerror}: {argv[0]}"}).encode()
        return
    assert guard.stdin and guard.stdout and guard.stderr
    placed = order | {"gpus": context.get_accelerator_ids()["GPU"], "raylet": os.getppid()}
    try:
        guard.stdin.write(json.dumps(placed).encode() + b"\n")
        guard.stdin.flush()
        yield from lines_of(guard.stdout.fileno())
        guard.stdin.close()
        if complaint := guard.stderr.read().decode(errors="replace").strip():
            yield json.dumps({"k": "refused", "why": complaint.splitlines()[-1]}).encode()
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            guard.stdin.write(b"cancel\n")
            guard.stdin.flush()
        for _ in lines_of(guard.stdout.fileno()):
            pass
    finally:
        with contextlib.suppress(OSError):
            guard.stdin.close()
        guard.wait()


def lines_of(fd: int) -> Iterator[bytes]:
    """Yield whole lines as they come, until the raylet has gone: Ray takes one that is a zombie for alive.

    It waits in short steps, since Ray's cancel does not wake a read.
    """
    rest, raylet = b"", os.getppid()
    while os.getppid() == raylet:
        if select.select([fd], [], [], POLL_S)[0]:
            if not (data := os.read(fd, READ_BYTES)):
                return
            *whole, rest = (rest + data).split(b"\n")
            yield from (line for line in whole)  # a generator: Ray calls its `send`


def nothing() -> None:
    """Do nothing: while it waits for its GPUs, the cluster knows that they are needed."""
