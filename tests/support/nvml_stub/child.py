"""Answers questions about the pretended driver's GPUs; started by `driver.Driver`, with the library on its path.

Reads pickled (function, arguments...) from standard input until it ends, writes each answer, or the exception, to
standard output.
"""

import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

from harness.machine.gpu_health import MachineHealth
from harness.machine.gpus import read_inventory, read_machine
from harness.machine.inventory import Inventory
from harness.machine.nvml import NvidiaDriver
from harness.process.claims import Claims


def inventory(selection: str, environ: Mapping[str, str], with_claims: bool) -> Inventory:
    with Claims() as claims:
        return read_inventory(selection, environ, claims if with_claims else None)


def meter(call: str, *arguments: Any) -> Any:
    with NvidiaDriver() as driver:
        return getattr(driver, call)(*arguments)


def health() -> MachineHealth:
    return read_machine({})[0]


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
