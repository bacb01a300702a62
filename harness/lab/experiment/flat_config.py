"""The payload of a scenario, a tree of plain values that is opaque here: overridden, and shown as text. Pure.

A dotted key is a path in it: `training.num_steps` is `num_steps` in the section `training`.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from harness.bits.errors import UsageError

Payload = Mapping[str, Any]


def overridden(payload: Payload, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A payload with other values at these dotted keys; a key that is not there yet is made.

    UsageError, which begins with `where`, for a key that leads through what is no section, or of no legal form.
    """
    result = dict(payload)
    for dotted, value in values.items():
        _put(result, dotted.split("."), value, f"{where}: {dotted}")
    return result


def _put(section: dict[str, Any], path: list[str], value: Any, where: str) -> None:
    """Put a value into a section, whose own sections are copied before they are written to."""
    name, *rest = path
    if not name:
        raise UsageError(f"{where} has an empty part", legal="names with dots between them, as in training.num_steps")
    if not rest:
        section[name] = value
        return
    inner = section.get(name, {})
    if not isinstance(inner, Mapping):
        what = f"{where} leads through {name}, which is {inner!r} and not a section"
        raise UsageError(what, remedy=f"override {name} itself, or check the spelling of the key")
    section[name] = dict(inner)
    _put(section[name], rest, value, where)


def flattened(payload: Payload, prefix: str = "") -> dict[str, str]:
    """Every value by its dotted key, as canonical JSON: equal texts are equal values of one type."""
    found: dict[str, str] = {}
    for name, value in payload.items():
        if isinstance(value, Mapping) and value:
            found |= flattened(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return found


def parts(payload: Payload, free: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what a run's bits follow from, what they must not follow from): all but the free sections, and these."""
    bound = {name: value for name, value in payload.items() if name not in free}
    return bound, {name: value for name, value in payload.items() if name in free}


def keys_with_dots(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield ambiguous keys: those that contain dots themselves."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if "." in name or not name:
                yield prefix + name
            yield from keys_with_dots(inner, f"{prefix}{name}.")
