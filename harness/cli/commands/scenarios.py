"""`rlharness scenarios`: what can be trained and replayed, in the package and in the user's project."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.text import count, one_line
from harness.lab.experiments.scenario import Scenario, all_scenarios
from harness.process.invocation import Invocation
from harness.render.console import show

VERSION = 1


def run_scenarios(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness scenarios`; a file that is not a scenario is listed with the reason, and fails `--check`."""
    found: list[dict[str, Any]] = []
    for file in all_scenarios(invocation.cwd):
        try:
            fields = _fields(file.read())
        except UsageError as error:
            fields = {"problem": error.what}
        found.append({"name": file.name, "path": str(file.file), **fields})
    is_refused = arguments["check"] and any("problem" in fields for fields in found)
    code = ExitCode.USAGE_ERROR if is_refused else ExitCode.OK
    if arguments["json"]:
        show(json.dumps({"version": VERSION, "exit_code": int(code), "scenarios": found}))
    else:
        checked = [_checked(found)] if arguments["check"] and found else []
        show("\n\n".join([*map(_text, found), *checked]) or "no scenarios found")
    return code


def _fields(scenario: Scenario) -> dict[str, Any]:
    told = scenario.model_dump(include={"about", "entry", "command", "determinism", "gpus", "runtime_sections"})
    return {**told, "sizes": list(scenario.sizes)}


def _checked(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the result of the check, for people."""
    num_bad = sum("problem" in fields for fields in found)
    checked = f"{count(len(found), 'scenario file')} checked"
    return f"{checked}: {num_bad:,} cannot be read" if num_bad else f"{checked}: fine"


def _text(fields: Mapping[str, Any]) -> str:
    """A few lines on one scenario."""
    if "problem" in fields:
        return f"{one_line(fields['name'])}: cannot be read\n  {one_line(fields['problem'])}"
    sizes = ", ".join(fields["sizes"]) or "one"
    runs = one_line(fields["entry"] or fields["command"])
    return (
        f"{one_line(fields['name'])}: {one_line(fields['about'])}\n"
        f"  level {fields['determinism']}, sizes {one_line(sizes)}, GPUs {fields['gpus']}, {runs}"
    )
