"""Whether level invariant can be held here: what the engine's probe certifies on each device, asked of a child."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.doctor import probe
from harness.doctor.host import Host
from harness.machine.findings import BROKEN, FINE, WARNING, MachineCode, MachineFinding

SURVEY = "rlcore.numerics.probe"
SURVEY_S = 110.0
"""torch's import from a cold network file system, and a dearer strategy where the cheap one fails."""
MISSING = re.compile(r"^ModuleNotFoundError: No module named '(torch|numpy)'")
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


def check_numerics(host: Host) -> Iterator[MachineFinding]:
    """A kernel strategy for each type, or why there is none."""
    (answer,) = host.ask(SURVEY_S, (probe.run_survey, SURVEY))
    if answer.kind == "ok":
        yield classify_numerics(answer.value)
    elif missing := MISSING.match(answer.value):
        yield NumericsCode.NOT_CHECKED(module=missing[1])
    else:
        yield NumericsCode.UNKNOWN(problem=answer.value)


def classify_numerics(surveys: Sequence[Mapping[str, Any]]) -> MachineFinding:
    """Return the finding for what the probe says of each type on each device."""
    if lacking := [f"{each['dtype']} on {each['device']}: {each['problem']}" for each in surveys if "problem" in each]:
        return NumericsCode.NOT_HELD(problems="; ".join(lacking))
    took_s = sum(each["duration_s"] for each in surveys)
    return NumericsCode.HELD(strategies="; ".join(map(_strategy, surveys)), took_s=took_s)


def _strategy(survey: Mapping[str, Any]) -> str:
    """The strategy, and by operation up to how many rows torch's own keeps a row's bits, and the strategy's."""
    held = ", ".join(f"{NAMES[each['operation']]} {each['torch']} / {each['ours']}" for each in survey["sizes"])
    return f"{survey['dtype']} on {survey['device']}: {survey['strategy']} holds, rows keep their bits up to {held}"
