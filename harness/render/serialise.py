"""Results as JSON: one function for every result type."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any

from harness.bits.findings import Finding
from harness.lab.experiment.launcher import Run
from harness.lab.experiment.recording_result import Recording, recording_json
from harness.render.divergence import headline
from harness.trace import values
from harness.trace.format import Scope
from harness.trace.values import Float
from harness.trace.verdict import EXIT_CODES, Verdict

VERSION = 1
OMITTED = ("plan", "chains")
"""Fields that repeat what a command was given, or what a trace holds."""


def result_json(result: Any, *names: str, **more: Any) -> dict[str, Any]:
    """Return the JSON of a command: version, exit code, attributes of its result, or all its fields, and `more`."""
    found = attributes(result, *names) if names else serialised(result)
    return {"version": VERSION, "exit_code": int(result.exit_code), **found, **serialised(more)}


def attributes(result: Any, *names: str) -> dict[str, Any]:
    """Return attributes of a result in plain values; findings as sentences, and as codes beside them."""
    types = {each.name: each.type for each in fields(result)}
    found = {}
    for name in names:
        value = getattr(result, name)
        found[name] = serialised(value)
        if types.get(name) == tuple[Finding, ...]:
            found |= {name: list(map(str, value)), f"{name.removesuffix('s')}_codes": found[name]}
    return found


def serialised(value: Any) -> Any:
    """Return a result in plain values: a dataclass by its fields, bytes as hexadecimal digits, infinities as text."""
    match value:
        case Finding():
            return {"code": value.code.value, **serialised(value.values)}
        case Float():
            return values.plain(value)
        case Scope():
            return value.name.lower()
        case Enum():
            return value.value
        case Recording():
            return recording_json(value)
        case Run():
            return {"name": value.name, "duration_s": value.duration_s, **recording_json(value.recording)}
        case Verdict():
            found = attributes(value, *(each.name for each in fields(value)))
            head = {"version": VERSION, "exit_code": EXIT_CODES[value.kind], "verdict": found.pop("kind")}
            counts = {"is_floats_only": value.is_floats_only, **found["attribution"]} if value.attribution else None
            return {**head, "headline": headline(value), **found, "attribution": counts}
        case Mapping():
            return {str(key): serialised(each) for key, each in value.items()}
        case bytes():
            return value.hex()
        case float() if not isfinite(value):
            return str(value)
        case Path():
            return str(value)
    if hasattr(value, "_asdict"):
        return serialised(value._asdict())
    if is_dataclass(value):
        return attributes(value, *(each.name for each in fields(value) if each.name not in OMITTED))
    return [serialised(each) for each in value] if isinstance(value, tuple | list | frozenset) else value
