"""Whether a run needs to know the network before it starts, and what it then gives every file.

A unit needs the network where it wants two GPUs, or where its own source imports Ray (`import ray`, `from ray`, at the
beginning of a line, indented or not). A file that comes by Ray through another module is not recognised; but where one
unit of a run needs the network, every unit of it is given the same pins, so that what a file sees does not depend on
the order.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from harness.bits.files import read_regular
from harness.machine.network.preflight import Preflight, preflight
from harness.process.child_env import PREFLIGHT
from harness.process.clock import Clock
from harness.process.invocation import Invocation
from harness.runner.units import Unit

IMPORTS_RAY = re.compile(rb"^\s*(import|from)\s+ray\b", re.MULTILINE)


async def network_pins(units: Iterable[Unit], rootdir: Path, invocation: Invocation, clock: Clock) -> Preflight | None:
    """What the preflight found for units in `rootdir`; None where none needs it, or a run around this has looked."""
    if PREFLIGHT in invocation.environ or not any(needs_network(unit, rootdir) for unit in units):
        return None
    return await preflight(invocation.environ, clock)


def needs_network(unit: Unit, rootdir: Path) -> bool:
    """Return whether the processes of `unit` probably communicate through sockets."""
    if not unit.can_run:
        return False
    if unit.need.gpus >= 2:
        return True
    try:
        return IMPORTS_RAY.search(read_regular(rootdir / unit.file_path, follows_links=True)) is not None
    except OSError:  # it went since it was collected: its attempt says so
        return False
