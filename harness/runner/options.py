"""What one run was asked to do: the command line over the configuration over the defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_TIMEOUT_S = 1800.0
DEFAULT_GRACE_S = 10.0
DEFAULT_SLOW_S = 60.0
DEFAULT_COLLECT_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Invocation:
    """What the process inherited, read once by the command line and passed down."""

    cwd: Path
    environ: Mapping[str, str]
    pytest_args: tuple[str, ...] = ()
    """Everything after `--`, given to every pytest process as it is."""
    is_terminal: bool = False
    """Whether standard output is a terminal that can be redrawn."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `run` and `plan`; see `rlharness run --help` for what each does."""

    invocation: Invocation
    root: Path
    """Where `.rlharness` lives: the directory of the nearest configuration file, else the working directory."""
    paths: tuple[str, ...] = ()
    gpus: str = "auto"
    cpu_units: int = 1
    timeout_s: float = DEFAULT_TIMEOUT_S
    grace_s: float = DEFAULT_GRACE_S
    slow_s: float = DEFAULT_SLOW_S
    collect_timeout_s: float = DEFAULT_COLLECT_TIMEOUT_S
    maxfail: int = 0
    """Failing units after which no further unit starts; 0 for no limit."""
    needs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Globs and what the files they match need; the last match wins."""
    allow_missing_gpus: bool = False
    mix_models: bool = False
    containment: str = "auto"
    events_file: Path | None = None
    junit_file: Path | None = None
    json: bool = False
    keep_tmp: bool = False
    colour: bool = False
    safe_path: bool = False
    """Start pytest without the working directory on its import path."""
