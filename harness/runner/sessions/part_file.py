"""The file with which the pytest process of a part learns its tests (`harness.runner.sessions.parts` reads it)."""

import json
from dataclasses import dataclass
from pathlib import Path

from harness.bits.files import write_replacing

PART_FILE = "part.json"
"""Name of the file in the directory of the attempt."""


@dataclass(frozen=True, slots=True)
class PartTests:
    """The tests of one part: either `mine`, or every test that is not among the `others`."""

    mine: tuple[str, ...] = ()
    """Node ids."""
    others: tuple[str, ...] | None = None
    """Node ids of all other parts, for the part that runs whatever they leave; None for the others."""


def write_part(path: Path, tests: PartTests) -> None:
    """Write the file; raise OSError where it cannot be written."""
    part = {"mine": tests.mine} if tests.others is None else {"others": tests.others}
    write_replacing(path, json.dumps(part))
