"""`rlharness scenarios`: what can be trained and replayed, in the package and in the user's project."""

import json
from collections.abc import Mapping
from typing import Any

from harness.errors import UsageError
from harness.exit_codes import ExitCode
from harness.lab.scenario import Scenario
from harness.lab.scenario_places import all_scenarios
from harness.reporters.base import show
from harness.reporters.text import one_line
from harness.runner.options import Invocation

VERSION = 1


def run_scenarios(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness scenarios`; a file that holds none is told with the reason, and is no failure."""
    found: list[dict[str, Any]] = []
    for file in all_scenarios(invocation.cwd):
        try:
            fields = _fields(file.read())
        except UsageError as error:
            fields = {"problem": error.what}
        found.append({"name": file.name, "path": str(file.file), **fields})
    if arguments["json"]:
        show(json.dumps({"version": VERSION, "exit_code": int(ExitCode.OK), "scenarios": found}))
    else:
        show("\n\n".join(map(_text, found)) or "there are no scenarios")
    return ExitCode.OK


def _fields(scenario: Scenario) -> dict[str, Any]:
    told = scenario.model_dump(include={"about", "entry", "determinism", "gpus", "free"})
    return {**told, "sizes": list(scenario.sizes)}


def _text(fields: Mapping[str, Any]) -> str:
    """A few lines on one scenario."""
    if "problem" in fields:
        return f"{one_line(fields['name'])}: cannot be read\n  {one_line(fields['problem'])}"
    sizes = ", ".join(fields["sizes"]) or "one"
    return (
        f"{one_line(fields['name'])}: {one_line(fields['about'])}\n"
        f"  level {fields['determinism']}, sizes {one_line(sizes)}, GPUs {fields['gpus']}, {fields['entry']}"
    )
