"""Stands in for pytest where only the runner's own cost is of interest: put first on PYTHONPATH, `python -m pytest`
runs this file. It writes the report of a file whose tests all pass, waits, and ends.

As the session that collects, it makes way for the real pytest. Either way its last deed is to note, in the file named
by RLH_STAND_IN_COSTS, what it was and how much processor time it has used, so that this can be taken off the bill.
"""

import json
import os
import runpy
import sys
import time
from typing import NoReturn


def option(name: str) -> str:
    """The value of `name=value` among the arguments; empty without it."""
    return next((word.partition("=")[2] for word in sys.argv if word.startswith(f"{name}=")), "")


def append(path: str, record: dict[str, object]) -> None:
    """One line in one write, as the plugin does it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(fd, json.dumps(record).encode() + b"\n")
    os.close(fd)


def report(path: str, test_file: str) -> None:
    """Write what the plugin would of a file of RLH_STAND_IN_TESTS passing tests, and take RLH_STAND_IN_S seconds."""
    nodeids = [f"{test_file}::test_{number}" for number in range(int(os.environ["RLH_STAND_IN_TESTS"]))]
    gpus = len(list(filter(None, os.environ["CUDA_VISIBLE_DEVICES"].split(","))))
    need = {"gpus": gpus, "memory_gb": 0.0, "model": None, "min_capability": None, "exclusive": False}
    append(path, {"k": "hello", "version": 1, "pid": os.getpid()})
    append(path, {"k": "collected", "need": need, "nodeids": nodeids})
    time.sleep(float(os.environ["RLH_STAND_IN_S"]))
    for nodeid in nodeids:
        append(path, {"k": "start", "id": nodeid, "timeout_s": None})
        append(path, {"k": "end", "id": nodeid, "outcome": "passed", "duration_s": 0.0, "reason": "", "text": ""})
    append(path, {"k": "finish", "exit": 0})


def end(what: str, status: int) -> NoReturn:
    """Note the cost and go at once: the interpreter's own clean-up would come after the note."""
    sys.stdout.flush()
    append(os.environ["RLH_STAND_IN_COSTS"], {"what": what, "cpu_s": time.process_time()})
    os._exit(status)


def collect() -> NoReturn:
    """Be the real pytest."""
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    status = 0
    try:
        runpy.run_module("pytest", run_name="__main__", alter_sys=True)
    except SystemExit as exit_:
        status = int(exit_.code or 0)
    end("collection", status)


if __name__ == "__main__":
    if option("--rlharness-serve"):
        collect()
    report(option("--rlharness-report"), sys.argv[-1])
    end("unit", 0)
