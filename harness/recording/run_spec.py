"""RunSpec: what is run and how it is recorded; and the report of a recorded process.

launcher ──run.json──▶ every Python process of the program ──processes/<pid>.json──▶ launcher
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.files import MALFORMED, read_regular
from harness.bits.levels import OFF, is_intels, level_variables
from harness.bits.redaction import redact_argv, redact_text, redact_values

# ------------------------------------------------------------------------------------------------- the call of an entry
# What passes between `train` or `replay` and the process that calls an entry: the call there, a refusal back.
#
# launcher ──call.json──▶ scenario_main ──refusal.json──▶ launcher

CALL = "call.json"
REJECTION = "refusal.json"
FUNCTION = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
"""module:function, of letters that every reader of a pattern takes for the same."""
MAX_DEPTH = 100
"""Maximum depth of a configuration: a deeper one could exhaust the stack of its reader."""
INTERRUPTED = 130
"""With what the process of an entry ends that was interrupted: 128 and the number of SIGINT, as a shell has it."""


@dataclass(frozen=True, slots=True)
class EntryCall:
    """An entry, and what it is called with beside the level, a directory and a recorder.

    What else stands here says to those who find a recorded run how it may be run again.
    """

    entry: str
    """module:function"""
    config: Mapping[str, Any]
    """The payload; plain values."""
    runtime_sections: tuple[str, ...] = ()
    """Sections of the payload that are no part of what the run is."""
    resume: Mapping[str, str] | None = None
    """Dotted keys of the payload that resume a run from this one: `run` takes its directory, `step` a step."""

    @classmethod
    def parse(cls, data: bytes) -> "EntryCall":
        """The call from what stands in its file; ValueError for anything else."""
        try:
            fields = json.loads(data)
            call = cls(**{**fields, "runtime_sections": tuple(fields["runtime_sections"])})
            is_call = (
                re.fullmatch(FUNCTION, fields["entry"]) is not None
                and isinstance(fields["config"], dict)
                and isinstance(fields["runtime_sections"], list)
                and all(isinstance(name, str) for name in fields["runtime_sections"])
                and (fields["resume"] is None or _is_resumption(fields["resume"]))
                and _depth(fields["config"]) <= MAX_DEPTH
            )
        except MALFORMED as error:
            raise ValueError(f"no call: {error!r:.100}") from None
        if not is_call:
            raise ValueError("no call: an entry, its configuration, its runtime sections, and how to resume from it")
        return call

    def write(self, directory: Path) -> None:
        """Into the directory of a trace, for its own process; OSError where that cannot be done."""
        path = directory / CALL
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")


def take_call(directory: Path) -> EntryCall:
    """Read the call, and leave it there without secrets: traces travel. OSError, ValueError where it is not there."""
    path = directory / CALL
    call = EntryCall.parse(read_regular(path))
    fields = {**asdict(call), "config": redact_values(call.config)}
    path.write_text(json.dumps(fields, indent=1) + "\n", "utf-8")
    return call


def _is_resumption(value: Any) -> bool:
    return (
        isinstance(value, dict) and value.keys() == {"run", "step"} and all(isinstance(k, str) for k in value.values())
    )


def _depth(value: Any) -> int:
    """How many mappings and lists lie in each other."""
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return depth


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an entry did not begin: an error that the user can mend."""

    what: str
    legal: str
    remedy: str

    def error(self) -> UsageError:
        """As the launcher raises it."""
        return UsageError(self.what, legal=self.legal, remedy=self.remedy)

    def write(self, directory: Path) -> None:
        """Into the directory of a trace, for the launcher; OSError where that cannot be done."""
        fields = {name: redact_text(text) for name, text in asdict(self).items()}
        (directory / REJECTION).write_text(json.dumps(fields) + "\n", "utf-8")


def read_rejection(directory: Path) -> Rejection | None:
    """The refusal in a directory; None where there is none, not all of it, or something else."""
    try:
        return Rejection(**json.loads(read_regular(directory / REJECTION)))
    except (OSError, *MALFORMED):
        return None


# ---------------------------------------------------------------------------------------------------------- what is run

RUN_VARIABLE = "RLHARNESS_TRACE"
"""Holds the path of run.json; a process records where it is set."""
RUN = "run.json"
PROCESSES = "processes"
TRAIN = ("rlharness", "train")
"""With what the command line of a scenario's run begins, as a person would type it."""


class RunEnded(SystemExit):
    """Raised through the program by its recorder to end the run after its last wanted step.

    A program that knows nothing of it ends in order, with 0.
    """


class ReplicasDiffer(SystemExit):
    """Raised through the program by its sentinel, on every rank that compares: replicas hold different bits."""

    def __init__(self) -> None:
        super().__init__(int(ExitCode.DIVERGED))


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A program, the conditions of its run, and how it is recorded.

    A command line fills it, run.json holds it, and every process of the program reads it there. A scenario's entry is
    called in a process of this package's own (`scenario_main`); a command is its own words.
    """

    argv: tuple[str, ...] = ()
    """The program's words; in run.json as a person would type them, without secrets."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """What the program's configuration means: with other values, runs are not comparable. The chain begins with it."""
    level: str = OFF
    metrics: tuple[str, ...] = ()
    """NAME=REGEX with one group, or REGEX with named groups: what to take from the lines that the program prints."""
    keep: tuple[int, ...] = ()
    """Steps whose tensors are kept."""
    op_step: int | None = None
    """The step whose operations are recorded."""
    all_state: bool = False
    """Whether large state of optimizers is recorded in every step."""
    sentinel: int = 0
    """Cadence in optimizer steps at which replicas compare; 0 for never."""
    last_step: int | None = None
    """The step after which the run is ended in order; None: where it ends by itself."""
    callbacks: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """Callbacks in the process: "module:class" of a `RecorderCallback` -> the arguments that it is made with."""
    perturbation: Mapping[str, str] = field(default_factory=dict)
    """Runtime settings of the configuration: recorded, but not part of the identity."""
    typed: tuple[str, ...] = ()
    """The words by which a scenario is named after `rlharness train`; none for a command."""
    resume_argv: tuple[str, ...] = ()
    """The words that resume a run of the command; none where they are not known."""
    call: EntryCall | None = None
    """Call of a scenario's entry, which call.json holds; None for a command."""
    has_entry: bool = False
    """Whether an entry is called, which reports its curve itself: nothing is taken from what it logs."""
    directory: str = ""
    """Directory of the trace; absolute. The launcher fills it, as it does what follows."""
    level_env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the level has set before the interpreter started."""
    level_problem: str = ""
    """Reason why a process cannot record at the level. Each process finds its own when its interpreter starts."""

    @property
    def shown_argv(self) -> tuple[str, ...]:
        """The command line as a person would type it, without secrets."""
        return redact_argv((*TRAIN, *self.typed) if self.call is not None and self.typed else self.argv)

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables of its level; UsageError where the user has set what excludes it."""
        return level_variables(self.level, environ, is_held_by_entry=self.call is not None, is_intels=is_intels())

    def launched(self, directory: Path, environ: Mapping[str, str]) -> "RunSpec":
        """The same as run.json holds it; UsageError where the user has set what excludes its level."""
        return replace(
            self,
            argv=self.shown_argv,
            typed=redact_argv(self.typed),
            resume_argv=redact_argv(self.resume_argv),
            directory=str(directory),
            level_env=self.variables(environ),
            has_entry=self.call is not None,
            call=None,
        )

    def to_text(self) -> str:
        """As it stands in its file."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> "RunSpec":
        """The inverse of to_text; ValueError, TypeError or KeyError for any other text."""
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "RunSpec":
        """The spec from what stands in its file; ValueError, TypeError or KeyError for anything else."""
        tuples = {name: tuple(fields.get(name, ())) for name in ("argv", "metrics", "keep", "typed", "resume_argv")}
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
