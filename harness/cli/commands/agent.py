"""`rlharness agent` from arguments to exit code."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.exit_codes import ExitCode
from harness.core.invocation import Invocation
from harness.core.regular_file import read_text
from harness.runner.agent import serve_run
from harness.runner.cluster.boot import KEY
from harness.runner.cluster_address import parse_dialled

STDIN = "-"


def run_agent(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Serve one run to its end; raises HarnessError for a user error."""
    key = read_key(invocation, arguments["key_file"])
    environ = {name: value for name, value in invocation.environ.items() if name != KEY}
    address = parse_dialled(arguments["address"])
    return asyncio.run(serve_run(replace(invocation, environ=environ), address, key))


def read_key(invocation: Invocation, key_file: Path | None) -> str:
    """Return the key of the run, from a file, from standard input, or from the environment. Raises UsageError."""
    if key_file is None:
        key = invocation.environ.get(KEY, "")
    elif str(key_file) == STDIN:
        key = sys.stdin.readline().strip()
    else:
        try:
            key = read_text(invocation.cwd / key_file, follows_links=True).strip()
        except OSError as error:
            raise UsageError(
                f"--key-file {key_file}: {error.strerror}",
                legal="a file with the key of the run",
                remedy="name the file that holds the key which the run printed",
            ) from None
    if not key:
        raise UsageError(
            "the key of the run is missing",
            legal=f"the variable {KEY}, or --key-file FILE, - for standard input",
            remedy="the run prints its key, unless it was given one by that variable",
        )
    return key
