"""Options of one run: the command line overrides the configuration, which overrides the defaults."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.invocation import Invocation
from harness.runner.sharding import Shard

if TYPE_CHECKING:
    from harness.core.config import NeedRule

DEFAULT_TIMEOUT_S = 1800.0
DEFAULT_GRACE_S = 10.0
DEFAULT_SLOW_S = 60.0
DEFAULT_COLLECT_TIMEOUT_S = 120.0
SELECTING = frozenset(("--deselect", "--lf", "--last-failed", "-x", "--exitfirst", "--maxfail", "--sw", "--stepwise"))
"""Options of pytest under which a file is not run whole; -k and -m are too."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `run` and `plan`; see `rlharness run --help` for what each does."""

    invocation: Invocation
    root: Path
    """Where `.rlharness` lives: beside the configuration, else the working directory."""
    paths: tuple[str, ...] = ()
    gpus: str = "auto"
    shard: Shard | None = None
    """Part of the collected units to run; None for all."""
    last_failed: bool = False
    """Run only what failed or did not run in the latest recorded run."""
    failed_first: bool = False
    isolate: str = "file"
    """What has a process of its own: "file", forked from a session that has imported what the suite imports, or
    "interpreter", one started for each file."""
    preload: tuple[str, ...] = ()
    """Modules to import for all files of `isolate` "file", beside those that several are found to import."""
    cpu_units: int = 1
    timeout_s: float = DEFAULT_TIMEOUT_S
    grace_s: float = DEFAULT_GRACE_S
    slow_s: float = DEFAULT_SLOW_S
    collect_timeout_s: float = DEFAULT_COLLECT_TIMEOUT_S
    retries: int = 0
    """How often a failing unit is run again."""
    maxfail: int = 0
    """Failing units after which no further unit starts; 0 for no limit."""
    needs: "tuple[NeedRule, ...]" = ()
    """Rules of the configuration, then of `--needs`: the last match wins."""
    allow_missing_gpus: bool = False
    mix_models: bool = False
    split: bool = True
    """Run a file in parts where it would end long after the others."""
    by_number: bool = False
    """Name GPUs in CUDA_VISIBLE_DEVICES by NVML's numbers, not by UUIDs."""
    history_free: bool = False
    containment: str = "auto"
    events_file: Path | None = None
    junit_file: Path | None = None
    html_file: Path | None = None
    trace_events_file: Path | None = None
    json: bool = False
    keep_tmp: bool = False
    live: bool = False
    """Whether the display is redrawn in place."""
    colour: bool = False
    safe_path: bool = False
    """Start pytest without the working directory on its import path."""


def runs_parts_of_files(pytest_args: Sequence[str]) -> bool:
    """Return whether pytest's arguments select some tests of a file, so that its duration is not measured."""
    names = {arg.partition("=")[0] for arg in pytest_args}
    return bool(names & SELECTING) or any(arg[:2] in ("-k", "-m") for arg in pytest_args)
