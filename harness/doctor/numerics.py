"""Whether level invariant can be held here: what the engine's probe certifies on each device, asked of a child."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.doctor.host import Answer, Host, module_command
from harness.machine.findings import Finding, Severity
from harness.process.program_output import as_float

SURVEY = "rlcore.numerics.probe"
SURVEY_S = 110.0
"""torch's import from a cold network file system, and a dearer strategy where the cheap one fails."""
MISSING = re.compile(r"^ModuleNotFoundError: No module named '(torch|numpy)'", re.MULTILINE)
EXTRA = "pip install 'rlharness[engine]'"


@dataclass(frozen=True, slots=True)
class Survey:
    """Report of the child on one type on one device."""

    dtype: str
    device: str = "cpu"
    strategy: str = ""
    """Empty where none holds."""
    duration_s: float = 0.0
    sizes: Sequence[dict[str, Any]] = field(default=())
    """By operation: up to how many rows, or keys of attention, torch's own keeps a row's bits, and the strategy's."""
    problem: str = ""

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> "Survey":
        """Return the report in a line; what has another type there counts as absent."""
        found = {name: line[name] for name, kind in _TYPES.items() if isinstance(line.get(name), kind)}
        sizes = [each for each in found.pop("sizes", []) if isinstance(each, dict) and each.keys() >= _OF_AN_OPERATION]
        return cls(**found, duration_s=as_float(line.get("duration_s", 0.0)), sizes=sizes)

    def __str__(self) -> str:
        held = [
            f"{_NAMES.get(each['operation'], each['operation'])} {each['torch']} / {each['ours']}"
            for each in self.sizes
        ]
        return f"{self.dtype} on {self.device}: {self.strategy} holds, rows keep their bits up to {', '.join(held)}"


_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("dtype", "device", "strategy", "problem"), str),
    "sizes": list,
}
_OF_AN_OPERATION = {"operation", "torch", "ours"}
_NAMES = {"linear": "rows of products", "attention": "keys of attention", "rows": "rows of norms, SwiGLU and softmax"}


async def inspect_numerics(host: Host) -> Sequence[Finding]:
    """A kernel strategy for each type, or why there is none."""
    return [check_numerics(await host.ask(module_command(SURVEY), limit_s=SURVEY_S))]


def check_numerics(answer: Answer) -> Finding:
    """Return the finding for the output of the child."""
    if missing := MISSING.search(answer.output):
        return Finding("numerics", Severity.FINE, f"not checked: {missing[1]} is not installed ({EXTRA})")
    surveys = [Survey.of(line) for line in answer.objects() if isinstance(line.get("dtype"), str)]
    if answer.problem or answer.exit_code != 0 or not surveys:
        return _no_answer(answer)
    lacking = [survey for survey in surveys if not survey.strategy]
    if lacking:
        return Finding(
            "numerics",
            Severity.BROKEN,
            "; ".join(f"{survey.dtype} on {survey.device}: {survey.problem}" for survey in lacking),
            breaks="training at level invariant, which refuses to start",
            remedy="determinism: deterministic, in the scenario; or another build of torch",
        )
    took_s = sum(survey.duration_s for survey in surveys)
    return Finding(
        "numerics",
        Severity.FINE,
        f"{'; '.join(map(str, surveys))} (torch's own operations / rlcore's; checked for {took_s:.1f} s)",
    )


def _no_answer(answer: Answer) -> Finding:
    said = " ".join(line.strip() for line in answer.output.splitlines() if not line.startswith("{"))[-300:]
    return Finding(
        "numerics",
        Severity.WARNING,
        answer.problem or f"the probe failed: {said or f'it exited with {answer.exit_code}'}",
        breaks="level invariant may not hold here",
        remedy=f"python -m {SURVEY} shows the whole error",
    )
