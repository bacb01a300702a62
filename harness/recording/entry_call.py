"""What passes between `train` or `replay` and the process that calls an entry: the call there, a refusal back.

launcher ──call.json──▶ scenario_main ──refusal.json──▶ launcher
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.files import MALFORMED, read_regular
from harness.bits.redaction import redact_text, redact_values

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
