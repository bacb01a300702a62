"""`rlharness schema`: JSON schemas of the configuration, of scenario files, and of those of one entry.

An entry says what configurations it takes by a function `config_schema` in its own module, which returns a JSON schema
with its definitions below `$defs`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import click

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.process.invocation import Invocation
from harness.render.console import show

PYPROJECT, SCENARIO = "pyproject", "scenario"
CONFIG_SCHEMA = "config_schema"
"""Name of the function of an entry's module."""


@click.command(epilog="Without NAME: list the names.")
@click.argument("name", metavar="[NAME]", required=False)
@click.pass_obj
def schema(invocation: Invocation, /, *, name: str | None) -> int:
    """Print JSON schemas for editors.

    NAME is pyproject ([tool.rlharness]), scenario (every scenario file), or an entry such as rlcore.entrypoint:run.
    """
    names = schema_names(invocation.cwd)
    if name is not None and name not in names:
        raise UsageError(
            f"there is no schema {name!r}", legal=", ".join(names), remedy="rlharness schema lists what each describes"
        )
    if name is None:
        width = max(map(len, names))
        show("\n".join(f"{each:{width}}  {text}" for each, text in names.items()))
    else:
        show(json.dumps(make_schema(name, invocation.cwd), indent=2, ensure_ascii=False))
    return ExitCode.OK


def schema_names(cwd: Path) -> dict[str, str]:
    """Return the names of all schemas, each with what it describes."""
    from harness.lab.experiment.scenario import all_scenarios

    entries: set[str | None] = set()
    for file in all_scenarios(cwd):
        try:
            entries.add(file.read().entry)
        except UsageError:  # `rlharness scenarios` shows why
            continue
    names = {PYPROJECT: "[tool.rlharness] of pyproject.toml", SCENARIO: "scenario files"}
    return names | {
        entry: f"scenario files whose entry is {entry}, with their config" for entry in sorted(filter(None, entries))
    }


def make_schema(name: str, cwd: Path) -> dict[str, Any]:
    """Return the schema of a name; UsageError for an entry that cannot be imported or has no schema."""
    from harness.lab.experiment.scenario import Scenario
    from harness.runner.config_schema import make_config_schema, titled

    if name == PYPROJECT:
        return make_config_schema()
    scenario = Scenario.model_json_schema()
    if name == SCENARIO:
        about = "A training run with a name. The entry checks the keys below config."
        return titled(scenario, SCENARIO, "Scenario of rlharness", about)
    # References of the entry's schema lead to its definitions, which keep their place below its own part.
    config = json.loads(json.dumps(_config_schema(name, cwd)).replace('"#/$defs/', '"#/$defs/config.'))
    definitions = config.pop("$defs", {})
    scenario["$defs"] |= {"config": config} | {f"config.{each}": text for each, text in definitions.items()}
    scenario["properties"] |= {"entry": {"const": name}, "config": {"$ref": "#/$defs/config"}}
    scenario["anyOf"][-1]["required"].append("config")
    return titled(scenario, name, f"Scenario of the entry {name}", "A training run with a name, and its configuration.")


def _config_schema(entry: str, cwd: Path) -> dict[str, Any]:
    import importlib

    module_name = entry.partition(":")[0]
    sys.path.insert(0, str(cwd))  # as for the process that calls the entry
    try:
        module = importlib.import_module(module_name)
        return dict(getattr(module, CONFIG_SCHEMA)())
    except Exception as error:  # whatever a module of the user's raises
        why = f"cannot be imported: {error}"
        if module_name in sys.modules:
            why = f"has no function {CONFIG_SCHEMA}, or it fails: {error}"
        what = f"entry {entry}: {module_name} {why}"
        raise UsageError(what, legal=f"an importable module with {CONFIG_SCHEMA}() -> dict") from None
    finally:
        sys.path.remove(str(cwd))
