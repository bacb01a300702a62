"""Everything that happens in a run, as frozen events; a JSON line each.

Events are the record: the run's state is a fold over them (`stats.RunState`), reporters only read them.
`t` is seconds since the run began. Every event is written to `events.jsonl` in the run's directory and,
with `--events FILE`, to that file as `{"event": "attempt_started", "t": 1.25, ...}`.
"""

import json
import re
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import Any

from harness.runner.schedule.packing import ShardPlan
from harness.runner.schedule.splitting import Split
from harness.runner.units import IsolationNote, SessionFailure, Unit, UnitResult


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    t: float


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """The machine has been read; nothing has been collected."""

    run_id: str
    directory: str
    """The run's directory, where every attempt's output is kept."""
    gpus: tuple[str, ...]
    """GPUs this run may lease, one line each ("0 NVIDIA H200 143 GB GPU-…")."""
    left_out: tuple[str, ...]
    """GPUs not used, each with its reason."""
    notes: tuple[str, ...]
    """Notes for the user: no driver, TMPDIR moved, history unreadable."""
    containment: str
    """Containment of process trees on this machine: "cgroup", "pidns" or "subreaper"."""
    cpu_units: int
    shard: str = ""
    """Shard that the run was given, as `2/8`; empty for a whole suite."""


@dataclass(frozen=True, slots=True)
class CollectionFinished(Event):
    """The units of this run and the schedule's bounds."""

    units: tuple[Unit, ...]
    expected_s: tuple[float, ...]
    """Expected seconds per unit, in the order of `units`."""
    planned_makespan_s: float
    lower_bound_s: float
    duration_s: float
    splits: tuple[Split, ...] = ()
    """Files that are split, and those that would be but for an obstacle."""
    notes: tuple[str, ...] = ()
    """Notes for the user: a directory that skips itself, a pattern of the needs table that matches no file."""
    shard: ShardPlan | None = None
    """What the units are a part of; None for a whole suite."""
    num_estimated: int = 0
    """Number of units whose expected seconds are an estimate, because no duration of theirs is known."""
    num_deselected: int = 0
    """Number of units that do not run because none of their tests is selected."""


@dataclass(frozen=True, slots=True)
class AttemptStarted(Event):
    """A supervisor was given a unit and its GPUs."""

    path: str
    gpu_ids: tuple[str, ...]
    slot: int
    directory: str


@dataclass(frozen=True, slots=True)
class TestStarted(Event):
    """A test began; `timeout_s` is its own limit, None without one."""

    __test__ = False

    path: str
    nodeid: str
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class TestFinished(Event):
    """A test ended; `outcome` is a TestOutcome."""

    __test__ = False

    path: str
    nodeid: str
    outcome: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class AttemptSlow(Event):
    """The unit has run for longer than --slow; reported once per unit."""

    path: str
    running_s: float


@dataclass(frozen=True, slots=True)
class AttemptTerminating(Event):
    """The process tree is being ended: reason is "timeout", "test_timeout", "collect_timeout" or "cancelled"."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseReturned(Event):
    """The unit's GPUs are free again: no process of it lives, and their memory is back at its baseline."""

    path: str
    gpu_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GpuQuarantined(Event):
    """A GPU will not be leased again in this run, unless it is readmitted."""

    path: str
    gpu_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class GpuReadmitted(Event):
    """A quarantined GPU is as it was before, and is leased again."""

    gpu_id: str


@dataclass(frozen=True, slots=True)
class LeaseRefused(Event):
    """A GPU of a new lease is unfit for use, or its attempt was lost with its node; the unit is queued again."""

    path: str
    reasons: dict[str, str]
    """Reason for each unfit GPU, by its id; each has been quarantined."""
    lost: str = ""
    """How the attempt was lost; empty if nothing was started."""


@dataclass(frozen=True, slots=True)
class AttemptFailed(Event):
    """An attempt failed, and the unit is queued again."""

    path: str
    number: int
    """1 for the first retry."""
    limit: int
    result: UnitResult
    """Result that the unit would have without another attempt."""
    tests: tuple[str, ...]
    """Node ids of the tests that run next; empty for the whole file."""
    is_rest: bool = False
    """Whether these are the tests that had not begun when their process was cut short."""


@dataclass(frozen=True, slots=True)
class UnitFinished(Event):
    """A unit has its one outcome."""

    result: UnitResult


@dataclass(frozen=True, slots=True)
class CancelRequested(Event):
    """No further unit starts: Ctrl-C, a signal, or --maxfail. `kill` when asked for twice."""

    reason: str
    kill: bool
    interrupt: bool = True
    """Asked for from outside, so that the run ends as interrupted; False for --maxfail, where its failures decide."""


@dataclass(frozen=True, slots=True)
class Heartbeat(Event):
    """Nothing has been said for a while; the run is alive."""

    num_running: int
    num_queued: int


@dataclass(frozen=True, slots=True)
class DumpRequested(Event):
    """SIGUSR1: say what runs now."""


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    """The last event; the figures of the closing line."""

    exit_code: int
    wall_s: float
    sequential_s: float
    """Sum of all units' durations."""
    utilisation: float
    """Leased GPU-seconds over GPUs x seconds from the first start to the last end; 0 without GPUs."""
    lower_bound_s: float
    """Lower bound of the makespan computed from the durations as measured."""
    makespan_s: float
    """From the first start to the last end."""
    error: str = ""
    """Reason why the run ended early: a suite that cannot be collected, a bug in rlharness; empty if it did not."""
    notes: tuple[str, ...] = ()
    """Problems apart from the tests, and what was kept: a temporary directory, a history that could not be written."""
    session_failures: tuple[SessionFailure, ...] = ()
    """What failed in pytest's session after its last test, such as a hook of the suite; it makes the run fail."""
    isolation: tuple[IsolationNote, ...] = ()
    """Files that were not forked, with the reasons, and changes that files left to those after them."""


def event_name(event: Event) -> str:
    """`attempt_started` for AttemptStarted."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()


def _of_json(value: Any) -> Any:
    """What JSON takes for a value that it does not know: the fields of a dataclass, the value of an enum."""
    if isinstance(value, Enum):
        return value.value
    if not is_dataclass(value):
        raise TypeError(f"no JSON for {value!r}")
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def plain(value: Any) -> Any:
    """`value` as what JSON knows: dataclasses to dictionaries, enums to their values, tuples to lists."""
    return json.loads(json.dumps(value, default=_of_json))


def to_json_line(event: Event) -> str:
    """One line of JSON without its newline, keys in the order of the fields, `event` first."""
    return json.dumps({"event": event_name(event), **_of_json(event)}, default=_of_json, ensure_ascii=False)
