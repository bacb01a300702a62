"""Answers questions about the pretended driver's GPUs; started by `driver.Driver`, with the library on its path.

Reads pickled (function, arguments...) from standard input until it ends, writes each answer, or the exception, to
standard output.
"""

import os
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

from harness.machine.gpu_health import MachineHealth
from harness.machine.gpus import DriverMeter, read_gpu_health, read_inventory
from harness.machine.inventory import Inventory
from harness.process.claims import Claims

ROCM = {name: os.environ[name] for name in ("ROCM_HOME", "ROCM_PATH") if name in os.environ}


def inventory(selection: str, environ: Mapping[str, str], with_claims: bool) -> Inventory:
    with Claims() as claims:
        return read_inventory(selection, ROCM | dict(environ), claims if with_claims else None)


def meter(call: str, is_amd: bool, *arguments: Any) -> Any:
    opened = DriverMeter(os.environ, is_amd=is_amd)
    try:
        return getattr(opened, call)(*arguments)
    finally:
        opened.close()


def health(environ: Mapping[str, str]) -> MachineHealth:
    return read_gpu_health(ROCM | dict(environ))


FUNCTIONS: dict[str, Callable[..., Any]] = {"inventory": inventory, "meter": meter, "health": health}


def main() -> None:
    while True:
        try:
            function, *arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = FUNCTIONS[function](*arguments)
        except Exception as error:  # whatever it is, it is for the asker
            answer = error
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
