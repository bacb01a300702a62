"""The one mapping from names in recordings of earlier versions to the present ones.

`diff`, `gate` (goldens too), `reproduce` and the question of trust compare recordings by their present names.
"""

from collections.abc import Mapping
from typing import Any

from harness.bits.levels import DETERMINISTIC

ENTRY = "(entry)"
"""Field of the identity that names the function which was called."""
LEVEL = "(level)"
"""Field of the identity that names the level of determinism."""
ENGINE = "rlcore.entrypoint:run"
ENTRIES = {"rlcore.training.run:run": ENGINE}
LEVELS = {"rerun": DETERMINISTIC}
CALL_FIELDS = {"free": "runtime_sections"}
"""Fields of the file that says how a run was called, and keys of a scenario file."""
CONFIG_KEYS = {
    "training.lane_width": "training.microbatch_size",
    "perturbation.microbatch_tokens": "runtime.token_budget",
    "perturbation": "runtime",
}
"""Dotted keys of the engine's configuration; a section stands for every key below it that is not listed before it."""


def current_entry(name: str) -> str:
    """Return the present name of an entry."""
    return ENTRIES.get(name, name)


def current_level(name: str) -> str:
    """Return the present name of a level."""
    return LEVELS.get(name, name)


def current_key(key: str) -> str:
    """Return the present name of a dotted key of the engine's configuration."""
    for old, new in CONFIG_KEYS.items():
        if key == old or key.startswith(f"{old}."):
            return new + key.removeprefix(old)
    return key


def current_identity(identity: Mapping[str, str]) -> dict[str, str]:
    """Return an identity by its present names. A chain of digests begins with the identity as it was recorded."""
    known = {ENTRY: current_entry, LEVEL: current_level}
    fields = {name: known[name](value) if name in known else value for name, value in identity.items()}
    return current_settings(fields, fields.get(ENTRY, ""))


def current_settings(settings: Mapping[str, str], entry: str) -> dict[str, str]:
    """Return values at dotted keys by the present names of these keys, where `entry` is the engine's."""
    return {current_key(key) if entry == ENGINE else key: value for key, value in settings.items()}


def current_call(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a recorded call by their present names, the configuration's keys among them."""
    renamed = {CALL_FIELDS.get(name, name): value for name, value in fields.items()}
    renamed["entry"] = current_entry(fields["entry"])
    if renamed["entry"] == ENGINE:
        renamed["config"] = _current_config(fields["config"])
        renamed["runtime_sections"] = [current_key(name) for name in renamed["runtime_sections"]]
    return renamed


def _current_config(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found = {}
    for name, value in config.items():
        key = f"{above}{name}"
        inner = _current_config(value, f"{key}.") if isinstance(value, dict) else value
        found[current_key(key).rpartition(".")[2]] = inner
    return found
