"""Results as JSON: one function for every result type."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any

from harness.bits.findings import Finding
from harness.trace import values
from harness.trace.chain import Scope
from harness.trace.values import Float

VERSION = 1


def result_json(result: Any, *names: str) -> dict[str, Any]:
    """Return the head of the JSON of a command: version, exit code, and attributes of its result."""
    return {"version": VERSION, "exit_code": int(result.exit_code), **attributes(result, *names)}


def attributes(result: Any, *names: str) -> dict[str, Any]:
    """Return attributes of a result in plain values."""
    return {name: serialised(getattr(result, name)) for name in names}


def serialised(value: Any) -> Any:
    """Return a result in plain values: a dataclass by its fields, bytes as hexadecimal digits, infinities as text."""
    if isinstance(value, Finding):
        return {"code": value.code.value, **serialised(value.values)}
    if isinstance(value, Float):
        return values.plain(value)
    if isinstance(value, Enum):
        return value.name.lower() if isinstance(value, Scope) else value.value
    if hasattr(value, "_asdict"):
        return serialised(value._asdict())
    if is_dataclass(value):
        return {each.name: serialised(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): serialised(each) for key, each in value.items()}
    if isinstance(value, tuple | list | frozenset):
        return [serialised(each) for each in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return str(value) if isinstance(value, Path) else value
