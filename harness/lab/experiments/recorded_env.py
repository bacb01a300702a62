"""The environment of a program that is recorded: the parent's, with these differences and no others.

| variable | in a recorded program |
|---|---|
| `RLHARNESS_TRACE` | the file that says how it is to be recorded |
| `PYTHONPATH` | the directory that starts a recording, then what it was |
| `RLHARNESS_ATTEMPT` | of a replay, the run's unique marker, by which its processes can be found |
| those of the level | see `harness/bits/levels.py` |
"""

import os
from collections.abc import Mapping
from pathlib import Path

from harness.process.child_env import ATTEMPT_MARKER


def recorded_env(
    parent: Mapping[str, str], *, orders: tuple[str, Path], boot: Path, level: Mapping[str, str], marker: str = ""
) -> dict[str, str]:
    """The whole environment of a recorded program.

    `orders` are the variable and the file that it names; `marker` is empty for a program without a supervisor.
    """
    variable, path = orders
    before = parent.get("PYTHONPATH", "")
    return {
        **parent,
        **level,
        **({ATTEMPT_MARKER: marker} if marker else {}),
        variable: str(path),
        "PYTHONPATH": os.pathsep.join([str(boot), before] if before else [str(boot)]),
    }
