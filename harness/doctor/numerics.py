"""Whether level invariant can be held here: what the engine's probe certifies on each device, asked of a child."""

import re
from collections.abc import Mapping
from typing import Any

from harness.doctor.children import Answer, Host, module_command
from harness.machine.findings import BROKEN, FINE, WARNING, MachineCode, MachineFinding
from harness.process.program_output import as_float

SURVEY = "rlcore.numerics.probe"
SURVEY_S = 110.0
"""torch's import from a cold network file system, and a dearer strategy where the cheap one fails."""
MISSING = re.compile(r"^ModuleNotFoundError: No module named '(torch|numpy)'", re.MULTILINE)
NAMES = {"linear": "rows of products", "attention": "keys of attention", "rows": "rows of norms, SwiGLU and softmax"}


class NumericsCode(MachineCode):
    """Codes of level invariant."""

    # fmt: off
    NOT_CHECKED = "numerics_not_checked", FINE, "numerics", """
        not checked: {module} is not installed (pip install 'rlharness[engine]')"""
    HELD = "numerics_held", FINE, "numerics", """
        {strategies} (torch's own operations / rlcore's; checked for {took_s:.1f} s)"""
    NOT_HELD = "numerics_not_held", BROKEN, "numerics", """
        {problems}
        breaks: training at level invariant, which refuses to start
        remedy: determinism: deterministic, in the scenario; or another build of torch"""
    UNKNOWN = "numerics_unknown", WARNING, "numerics", f"""
        {{problem}}
        breaks: level invariant may not hold here
        remedy: python -m {SURVEY} shows the whole error"""
    # fmt: on


async def check_numerics(host: Host) -> list[MachineFinding]:
    """A kernel strategy for each type, or why there is none."""
    return [classify_numerics(await host.ask(module_command(SURVEY), SURVEY_S))]


def classify_numerics(answer: Answer) -> MachineFinding:
    """Return the finding for the output of the child: a JSON line for each type on each device."""
    if missing := MISSING.search(answer.output):
        return NumericsCode.NOT_CHECKED(module=missing[1])
    surveys = [line for line in answer.objects("dtype", "device") if "problem" in line or "strategy" in line]
    if answer.problem or answer.exit_code != 0 or not surveys:
        said = " ".join(line.strip() for line in answer.output.splitlines() if not line.startswith("{"))[-300:]
        failed = f"the probe failed: {said or f'it exited with {answer.exit_code}'}"
        return NumericsCode.UNKNOWN(problem=answer.problem or failed)
    if lacking := [f"{each['dtype']} on {each['device']}: {each['problem']}" for each in surveys if "problem" in each]:
        return NumericsCode.NOT_HELD(problems="; ".join(lacking))
    took_s = sum(as_float(each.get("duration_s", 0.0)) for each in surveys)
    return NumericsCode.HELD(strategies="; ".join(map(_strategy, surveys)), took_s=took_s)


def _strategy(survey: Mapping[str, Any]) -> str:
    """The strategy, and by operation up to how many rows torch's own keeps a row's bits, and the strategy's."""
    sizes = survey.get("sizes")
    kept = [each for each in sizes if isinstance(each, dict)] if isinstance(sizes, list) else []
    held = (
        f"{NAMES.get(str(each.get('operation')), each.get('operation'))} {each.get('torch')} / {each.get('ours')}"
        for each in kept
    )
    return f"{survey['dtype']} on {survey['device']}: {survey['strategy']} holds, rows keep their bits up to " + (
        ", ".join(held)
    )
