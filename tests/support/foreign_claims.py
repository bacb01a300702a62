"""Names that a process of another user holds; only root can become one."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534
HOLDING = """
import os, socket, sys
from harness.process.claims import Claims
os.setuid(65534)
claims = Claims()
if sys.argv[1] == "mute":
    socket.socket.listen = lambda self, backlog: None
[claims.try_claim(name) for name in sys.argv[2:]]
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_another_user(*names: str, listens: bool = True) -> Iterator[int]:
    """Hold those of the names that nobody has, as NOBODY, and answer questions or not; yield the pid that does."""
    command = [sys.executable, "-c", HOLDING, "listens" if listens else "mute", *names]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        yield holder.pid
        holder.communicate("")
