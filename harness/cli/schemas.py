"""JSON schemas that rlharness exports: of its configuration, of scenario files, of the scenario files of one entry.

An entry says what configurations it takes by a function `config_schema` in its own module, which returns a JSON schema
with its definitions below `$defs`.
"""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.lab.experiments.scenario import Scenario, all_scenarios
from harness.runner.config_schema import make_config_schema, titled

PYPROJECT, SCENARIO = "pyproject", "scenario"
CONFIG_SCHEMA = "config_schema"
"""Name of the function of an entry's module."""


def schema_names(cwd: Path) -> dict[str, str]:
    """Return the names of all schemas, each with what it describes."""
    names = {PYPROJECT: "[tool.rlharness] of pyproject.toml", SCENARIO: "scenario files"}
    return names | {entry: f"scenario files whose entry is {entry}, with their config" for entry in _entries(cwd)}


def make_schema(name: str, cwd: Path) -> dict[str, Any]:
    """Return the schema of a name.

    Raises UsageError for an unknown name, and for an entry that cannot be imported or has no schema.
    """
    if name == PYPROJECT:
        return make_config_schema()
    if name == SCENARIO:
        return _scenario_schema()
    names = schema_names(cwd)
    if name not in names:
        raise UsageError(
            f"there is no schema {name!r}", legal=", ".join(names), remedy="rlharness schema lists what each describes"
        )
    return _entry_schema(name, cwd)


def file_name(name: str) -> str:
    """Return the name of the file that holds a schema: of the entry a.b:run, a.b.run.json."""
    return f"{name.replace(':', '.')}.json"


def _entries(cwd: Path) -> list[str]:
    found: set[str | None] = set()
    for file in all_scenarios(cwd):
        try:
            found.add(file.read().entry)
        except UsageError:  # `rlharness scenarios` shows why
            continue
    return sorted(filter(None, found))


def _scenario_schema() -> dict[str, Any]:
    return titled(
        Scenario.model_json_schema(),
        SCENARIO,
        "Scenario of rlharness",
        "A training run with a name. The entry checks the keys below config.",
    )


def _entry_schema(entry: str, cwd: Path) -> dict[str, Any]:
    """Return the schema of scenario files, in which the schema of the entry's configurations stands for `config`."""
    own = _config_schema(entry, cwd)
    definitions = own.pop("$defs", {})
    scenario = Scenario.model_json_schema()
    scenario["properties"] |= {"entry": {"const": entry}, "config": {"$ref": "#/$defs/config"}}
    scenario["anyOf"][-1]["required"].append("config")
    scenario["$defs"]["config"] = _moved(own)
    scenario["$defs"] |= {f"config.{name}": _moved(definition) for name, definition in definitions.items()}
    return titled(
        scenario, entry, f"Scenario of the entry {entry}", "A training run with a name, and its configuration."
    )


def _config_schema(entry: str, cwd: Path) -> dict[str, Any]:
    module_name = entry.partition(":")[0]
    sys.path.insert(0, str(cwd))  # as for the process that calls the entry
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a module of the user's raises
        raise UsageError(
            f"entry {entry}: {module_name} cannot be imported: {error}",
            legal="a module that can be imported from the working directory, or is installed",
            remedy="install its requirements, or correct it",
        ) from None
    finally:
        sys.path.remove(str(cwd))
    function = getattr(module, CONFIG_SCHEMA, None)
    if not callable(function):
        raise UsageError(
            f"entry {entry}: {module_name} has no function {CONFIG_SCHEMA}",
            legal=f"def {CONFIG_SCHEMA}() -> dict: a JSON schema",
            remedy=f"add one, or use rlharness schema {SCENARIO}",
        )
    return dict(function())


def _moved(schema: Any) -> Any:
    """Return a schema whose references to its own definitions lead to where they are in the schema of the scenario."""
    if isinstance(schema, list):
        return [_moved(each) for each in schema]
    if isinstance(schema, Mapping):
        return {key: _moved(value) for key, value in schema.items()}
    own = "#/$defs/"
    return f"{own}config.{schema.removeprefix(own)}" if isinstance(schema, str) and schema.startswith(own) else schema
