"""JSON schema of `[tool.rlharness]`, and the form that every exported schema has.

A schema checks each key by itself. Rules between several keys remain with the commands that read the file.
"""

from collections.abc import Mapping
from typing import Any

from harness.runner.config import GateKeys, Keys, NeedEntry, keys_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def make_config_schema() -> dict[str, Any]:
    """Return the JSON schema of the table `[tool.rlharness]`."""
    needs = {
        "description": "By pattern, as in .gitignore: the number of GPUs, or a table of what its files need.",
        "type": "object",
        "additionalProperties": {"anyOf": [{"type": "integer", "minimum": 0}, _table_schema(NeedEntry)]},
    }
    keys = _table_schema(Keys)
    scenarios = {
        "description": "Scenarios, each with a name and the keys of a scenario's file: command, config, sizes.",
        "type": "array",
        "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
    }
    keys["properties"] |= {"needs": needs, "gate": _table_schema(GateKeys), "scenario": scenarios}
    return titled(keys, "pyproject", "[tool.rlharness] of pyproject.toml", "Settings of rlharness run and gate.")


def titled(schema: Mapping[str, Any], name: str, title: str, description: str) -> dict[str, Any]:
    """Return a schema in the exported form: its dialect, id, title and description first, then what it demands."""
    head = {"$schema": DIALECT, "$id": f"urn:rlharness:schema:{name}", "title": title, "description": description}
    return head | {key: value for key, value in _bare(schema).items() if key not in head}


def _table_schema(table: type[Any]) -> dict[str, Any]:
    from pydantic import TypeAdapter

    properties = {
        key: {**TypeAdapter(hint).json_schema(), "description": f"{legal[0].upper()}{legal[1:]}."}
        for key, (hint, legal) in keys_of(table).items()
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _bare(schema: Any) -> Any:
    """Return a schema without generated titles and null defaults, whose patterns of keys exclude all other keys."""
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    bare = {
        key: _bare(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str)) and not (key == "default" and value is None)
    }
    if "patternProperties" in bare:
        bare.setdefault("additionalProperties", False)
    return bare
