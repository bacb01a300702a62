"""`rlharness scenarios`: list what can be trained and replayed by name, in the package and in the user's project."""

from typing import Any

import click

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.text import count, one_line
from harness.cli import options as opt
from harness.process.invocation import Invocation
from harness.render.console import show


@click.command()
@opt.option("--check", "Exit with 4 if a file is not a scenario.")
@opt.json_flag
@click.pass_obj
def scenarios(invocation: Invocation, /, *, check: bool, is_json: bool) -> int:
    """List the scenarios that can be trained and replayed by name."""

    from harness.lab.experiment.scenario import all_scenarios

    shown = {"about", "entry", "command", "determinism", "gpus", "runtime_sections"}
    found: list[dict[str, Any]] = []
    for file in all_scenarios(invocation.cwd):
        try:
            scenario = file.read()
            fields = {**scenario.model_dump(include=shown), "sizes": list(scenario.sizes)}
        except UsageError as error:
            fields = {"problem": error.what}
        found.append({"name": file.name, "path": str(file.file), **fields})
    num_bad = sum("problem" in fields for fields in found)
    code = ExitCode.USAGE_ERROR if check and num_bad else ExitCode.OK
    if is_json:
        opt.show_json({"version": 1, "exit_code": int(code), "scenarios": found})
        return code
    texts = []
    for each in found:
        name = one_line(each["name"])
        if "problem" in each:
            texts.append(f"{name}: cannot be read\n  {one_line(each['problem'])}")
        else:
            sizes = one_line(", ".join(each["sizes"]) or "one")
            runs = one_line(each["entry"] or each["command"])
            level = f"  level {each['determinism']}, sizes {sizes}, GPUs {each['gpus']}, {runs}"
            texts.append(f"{name}: {one_line(each['about'])}\n{level}")
    if check and found:
        result = f"{num_bad:,} cannot be read" if num_bad else "fine"
        texts.append(f"{count(len(found), 'scenario file')} checked: {result}")
    show("\n\n".join(texts) or "no scenarios found")
    return code
