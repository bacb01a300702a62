"""Runs a command that must leave no process: python contained.py RESULT.json LIMIT_S COMMAND...

Every orphan of the command becomes a child of this process, whatever it did to its session and its variables.
"""

import ctypes
import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 3.0


def living() -> list[psutil.Process]:
    """Return the processes below this one; those that have ended are reaped."""
    children = psutil.Process().children(recursive=True)
    return psutil.wait_procs(children, timeout=0)[1]


def main(result: str, limit_s: str, *command: str) -> None:
    """Write the command's exit code, none beyond its limit, and the command lines of what it left, which is killed."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(float(limit_s))
    until_s = time.monotonic() + PATIENCE_S
    while process.returncode is not None and living() and time.monotonic() < until_s:
        time.sleep(0.1)
    left = []
    while found := living():
        for each in found:
            with suppress(psutil.Error):
                left.append(" ".join(each.cmdline()) or each.name())
                each.kill()
        psutil.wait_procs(found, timeout=PATIENCE_S)
    Path(result).write_text(json.dumps({"code": process.returncode, "left": left}), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
