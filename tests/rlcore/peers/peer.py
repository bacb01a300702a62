"""Another library in an environment of its own, asked over pipes: one process for all tests of a session."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.rlcore.peers.serve import decoded, encoded

HERE = Path(__file__).resolve().parent


class Library(NamedTuple):
    """Where a library is found."""

    variable: str
    """The environment variable that names its interpreter."""
    functions: str
    """The file that interpreter serves."""
    what: str


VERL = Library("RLHARNESS_VERL_PYTHON", "verl_functions.py", "verl 0.9.1")
TRL = Library("RLHARNESS_PEERS_PYTHON", "trl_functions.py", "TRL 1.16")


class Peer:
    """Calls functions of the other library."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, function: str, **arguments: Any) -> dict[str, Any]:
        """What the function returns; AssertionError with the other side's traceback where it raises."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"function": function, "arguments": encoded(arguments)}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the other process ended with {self._process.wait()}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = decoded(answer["result"])
        return result


@contextmanager
def started(library: Library) -> Iterator[Peer]:
    """The library, for as long as this is entered; skips the test that asks where no interpreter is named."""
    python = os.environ.get(library.variable)
    if not python:
        pytest.skip(
            f"{library.variable} names no Python with {library.what}: "
            "python tests/rlcore/peers/environments.py makes one, and runs these tests"
        )
    # Neither our root nor our working directory: the wheel of verl brings a package called tests.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    command = [python, str(HERE / "serve.py"), str(HERE / library.functions)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environ
    ) as process:
        yield Peer(process)
