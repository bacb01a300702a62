"""Recording config of a process, and its report. The standard library only: both sides import this.

launcher ──orders.json──▶ every Python process of the program ──processes/<pid>.json──▶ launcher
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.bits.exit_codes import ExitCode

ORDERS_VARIABLE = "RLHARNESS_TRACE"
"""Holds the path of the orders; a process records where it is set."""
ORDERS = "orders.json"
PROCESSES = "processes"


class RunEnded(SystemExit):
    """Raised through the program by its recorder to end the run after its last wanted step.

    A program that knows nothing of it ends in order, with 0.
    """


class ReplicasDiffer(SystemExit):
    """Raised through the program by its sentinel, on every rank that compares: replicas hold different bits."""

    def __init__(self) -> None:
        super().__init__(int(ExitCode.DIVERGED))


@dataclass(frozen=True, slots=True)
class RecordingConfig:
    """How a program is to be recorded: the same for all its processes."""

    directory: str
    """Of the trace; absolute."""
    argv: tuple[str, ...] = ()
    """The program's, without secrets."""
    identity: dict[str, str] = field(default_factory=dict)
    """With which the chain begins."""
    metrics: tuple[str, ...] = ()
    """NAME=REGEX with one group, or REGEX with named groups: what to take from the lines that the program prints."""
    keep: tuple[int, ...] = ()
    """Steps whose tensors are kept."""
    op_step: int | None = None
    """The step whose operations are recorded."""
    level: str = "off"
    level_env: dict[str, str] = field(default_factory=dict)
    """Variables that the level has set before the interpreter started."""
    perturbation: dict[str, str] = field(default_factory=dict)
    """Runtime settings of the program's configuration; part of the fingerprint."""
    has_entry: bool = False
    """Whether it is the entry of a scenario, which says its curve itself: nothing is taken from what it logs."""
    last_step: int | None = None
    """The step after which the run is ended in order; None: where it ends by itself."""
    callbacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What looks on in the process: "module:class" of a `watching.RecorderCallback` -> what it is made with."""
    sentinel: int = 0
    """Cadence in optimizer steps at which replicas compare; 0 for never."""
    level_problem: str = ""
    """Reason why a process cannot record at the level. Each process finds its own when its interpreter starts."""

    def to_text(self) -> str:
        """As it stands in its file."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> "RecordingConfig":
        """The inverse of to_text; ValueError, TypeError or KeyError for any other text."""
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "RecordingConfig":
        """The orders from what stands in their file; ValueError, TypeError or KeyError for anything else."""
        tuples = {name: tuple(fields[name]) for name in ("argv", "metrics", "keep")}
        return cls(**{**fields, **tuples})


@dataclass(frozen=True, slots=True)
class Report:
    """What one process of the program says of itself."""

    pid: int
    argv: tuple[str, ...]
    python: str
    """Of the interpreter: its path."""
    rank: int | None = None
    """Whose log it writes; None before its first step."""
    num_steps: int = 0
    is_closed: bool = False
    """Whether its recording ended in order."""
    problem: str = ""
    """Why nothing, or nothing more, is recorded."""
    level_env: dict[str, str | None] = field(default_factory=dict)
    """The level's variables as this process sees them."""
    string_hash: str = ""
    """hash() of a fixed text: the effect of PYTHONHASHSEED."""
    cluster: str = ""
    """What ends this process once its program is through, as Ray does with its workers; empty where nothing does."""
    metrics: tuple[str, ...] = ()
    """Names of the curve for which a pattern of the orders has found a number, as they were found."""
    unfinished_step: int | None = None
    """The step in whose middle it ended, where something of that was recorded; None where it ended between two."""
    has_returned: bool = False
    """Whether the entry that it called has returned, or was ended where that was wanted; False for a program."""
    gpus: tuple[str, ...] = ()
    """Models of the GPUs that it uses; empty while it has not initialised CUDA."""
    has_rank: bool = True
    """Whether `rank` is one that it was given, and not the order in which processes arrived."""
    num_skipped: int = 0
    """Steps that a GradScaler has left out, since gradients had overflowed."""
    sources: tuple[str, ...] = ()
    """Directories outside the installed packages from which it has imported modules."""

    def to_text(self) -> str:
        """As it stands in its file."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> "Report":
        """The inverse of to_text, but that what has a default may be absent; ValueError, TypeError or KeyError else."""
        fields = json.loads(text)
        tuples = {name: tuple(fields.get(name, ())) for name in ("metrics", "gpus", "sources")}
        return cls(**{**fields, "argv": tuple(fields["argv"]), **tuples})


def boot_directory() -> Path:
    """What goes in front of PYTHONPATH: it holds the sitecustomize that starts a recording."""
    return Path(__file__).resolve().parent / "boot"
