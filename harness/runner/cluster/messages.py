"""Messages between a run and the agents of its nodes: JSON, checked field by field against frozen dataclasses.

run ──Welcome──▶ agent        run ──Start, Cancel, Kill──▶ agent
    ◀──Hello───                   ◀──Terminating, FilePart, Ended──
    ──Ask──▶ ◀──Answer──          both: Beat
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from harness.core.errors import NetworkError
from harness.core.malformed import MALFORMED
from harness.machine.gpu_health import GpuFault
from harness.machine.inventory import Gpu, LeftOut
from harness.machine.meter import GpuProcess
from harness.process.supervisor_client import ProcessEnd
from harness.runner.outcomes import BY_REASON

VERSION = 1
MAX_MESSAGE_BYTES = 1 << 22
"""Limit on one line."""
PART_BYTES = 1 << 18
"""Bytes of a file in one message."""
END_REASONS = frozenset(("", "supervisor_lost", *BY_REASON))
"""Reasons for which an attempt ends on a node."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a run says first: name of the node, and the options that its agent needs."""

    version: int
    node: str
    gpus: str
    """As in --gpus."""
    cwd: str
    root: str
    ships: bool
    """Whether the sources follow, so that `cwd` and `root` are those of the run's machine."""
    isolate: str
    preload: tuple[str, ...]
    paths: tuple[str, ...]
    trailing: tuple[str, ...]
    has_files: bool
    safe_path: bool
    colour: bool
    by_number: bool
    containment: str
    collect_timeout_s: float


@dataclass(frozen=True, slots=True)
class Links:
    """Number of connections between two GPUs."""

    first: str
    second: str
    count: int


@dataclass(frozen=True, slots=True)
class Hello:
    """What an agent says of its node, once it is ready."""

    version: int
    host: str
    address: str
    pid: int
    python: str
    directory: str
    """Directory of the attempts."""
    scratch: str
    """Directory of their TMPDIRs."""
    cwd: str
    gpus: tuple[Gpu, ...]
    links: tuple[Links, ...]
    left_out: tuple[LeftOut, ...]
    is_simulated: bool
    containment: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """Why an agent cannot take part."""

    reason: str


@dataclass(frozen=True, slots=True)
class HostGpus:
    """A node of a lease, and its GPUs there."""

    address: str
    gpu_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Order to carry out one attempt, in the paths of the node."""

    marker: str
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    """Variables over those of the agent."""
    directory: str
    tmpdir: str
    files: dict[str, str]
    """Texts to write into `directory` first."""
    gpu_ids: tuple[str, ...]
    slot: int
    needs_network: bool
    timeout_s: float
    startup_timeout_s: float | None
    """None for no limit."""
    grace_s: float
    session: str
    """JSON of the order to a forked leader; empty where it must not be forked."""
    hosts: tuple[HostGpus, ...] = ()
    """Every node of the lease, the one that runs the attempt first."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End an attempt in order."""

    marker: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End an attempt at once."""

    marker: str


@dataclass(frozen=True, slots=True)
class Terminating:
    """The process tree of an attempt is being ended."""

    marker: str
    reason: str


@dataclass(frozen=True, slots=True)
class FilePart:
    """The next bytes of a file of an attempt."""

    marker: str
    name: str
    """Relative to the directory of the attempt, with forward slashes."""
    offset: int
    data: str
    """In base 64."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an attempt, after all its files."""

    marker: str
    end: ProcessEnd | None
    error: str = ""
    """Why it could not be started; empty where it was."""


@dataclass(frozen=True, slots=True)
class Source:
    """The next bytes of the archive of sources; no bytes at its end."""

    data: str


@dataclass(frozen=True, slots=True)
class Preload:
    """Import modules for all files to come."""

    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """Question to the GPU meter of a node."""

    number: int
    gpu_id: str
    finds_faults: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Reading of one GPU."""

    number: int
    used_bytes: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    fault: GpuFault | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life."""


@dataclass(frozen=True, slots=True)
class Bye:
    """The run is over: the agent ends everything."""


Message = (
    Welcome
    | Hello
    | Refused
    | Start
    | Cancel
    | Kill
    | Terminating
    | FilePart
    | Ended
    | Source
    | Preload
    | Ask
    | Answer
    | Beat
    | Bye
)
_KINDS: dict[str, TypeAdapter[Any]] = {kind.__name__: TypeAdapter(kind) for kind in Message.__args__}


def to_text(message: Message) -> str:
    """Return a message as one line of JSON, without its newline."""
    return json.dumps({"k": type(message).__name__, "m": asdict(message)})


def from_text(text: str) -> Message:
    """Return the message of a line, strictly checked; NetworkError for anything else."""
    try:
        found = json.loads(text)
        adapter = _KINDS[found["k"]]
        message: Message = adapter.validate_json(json.dumps(found["m"], allow_nan=False), strict=True)
        _check_reason(message)
    except MALFORMED:  # pydantic's ValidationError is a ValueError
        raise NetworkError("the message received is unknown to a run and its agents") from None
    return message


def _check_reason(message: Message) -> None:
    """Raise ValueError for an end that no outcome is known for."""
    reason = ""
    if isinstance(message, Terminating):
        reason = message.reason
    elif isinstance(message, Ended) and message.end is not None:
        reason = message.end.reason
    if reason not in END_REASONS:
        raise ValueError(reason)


def to_data(piece: bytes) -> str:
    """Return bytes as a message has them."""
    return base64.b64encode(piece).decode("ascii")


def from_data(data: str) -> bytes:
    """Return the bytes of a message; NetworkError where they are not in base 64."""
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        raise NetworkError("the message received has bytes that are not in base 64") from None


def session_text(session: Mapping[str, Any] | None) -> str:
    """Return the order to a forked leader as text; empty for none."""
    return json.dumps(session) if session is not None else ""
