"""What the engine's probe said, as a finding: strategies that hold, types without one, children without an answer."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from harness.bits.findings import Severity
from harness.doctor.children import Answer, Host
from harness.doctor.numerics import SURVEY, check_numerics, classify_numerics
from harness.machine.findings import MachineFinding
from tests.support.finding_checks import sound

SIZES = [
    {"operation": "linear", "torch": 0, "ours": 256},
    {"operation": "attention", "torch": 16, "ours": 64},
    {"operation": "rows", "torch": 256, "ours": 256},
]
HELD = {"dtype": "float32", "device": "cpu", "strategy": "pad16", "length": 128, "duration_s": 1.25, "sizes": SIZES}
ALSO = HELD | {"dtype": "bfloat16", "device": "cuda", "strategy": "triton", "sizes": SIZES[:1]}
LACKING = {"dtype": "bfloat16", "device": "cpu", "machine": "torch 2.13.0", "problem": "no strategy keeps the bits"}


def judged(*lines: dict[str, Any], **answer: Any) -> MachineFinding:
    (finding,) = sound([classify_numerics(Answer("\n".join(["a warning", *map(json.dumps, lines)]), **answer))])
    return finding


def test_each_strategy_is_reported_with_the_sizes_up_to_which_rows_keep_their_bits() -> None:
    finding = judged(HELD, ALSO)
    assert (finding.check, finding.severity) == ("numerics", Severity.FINE)
    assert finding.measured == (
        "float32 on cpu: pad16 holds, rows keep their bits up to rows of products 0 / 256, keys of attention 16 / 64, "
        "rows of norms, SwiGLU and softmax 256 / 256; bfloat16 on cuda: triton holds, rows keep their bits up to "
        "rows of products 0 / 256 (torch's own operations / rlcore's; checked for 2.5 s)"
    )


def test_a_type_without_a_strategy_is_broken() -> None:
    finding = judged(HELD, LACKING)
    assert (finding.severity, finding.measured) == (Severity.BROKEN, "bfloat16 on cpu: no strategy keeps the bits")
    assert "invariant" in finding.breaks
    assert "determinism: deterministic" in finding.remedy


def test_no_whole_answer_is_a_warning() -> None:
    assert judged(HELD, problem="no answer within 110 s", exit_code=None).measured == "no answer within 110 s"
    died = judged(HELD, exit_code=1)
    assert died.severity is Severity.WARNING
    assert died.measured.startswith("the probe failed: a warning")
    assert judged().severity is Severity.WARNING, "nothing was said"


def test_the_child_is_the_engines_own_program() -> None:
    """Started as a check starts it, where torch is not to be found."""
    asked: list[Sequence[str]] = []

    async def ask(argv: Sequence[str], limit_s: float) -> Answer:
        asked.append(argv)
        hide = "import sys; sys.path[:] = [path for path in sys.path if 'site-packages' not in path]; "
        command = [*argv[:-1], hide + argv[-1]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return Answer(done.stdout + done.stderr, done.returncode)

    (finding,) = sound(asyncio.run(check_numerics(Host({}, ask))))
    assert finding.severity is Severity.FINE
    assert finding.measured == "not checked: torch is not installed (pip install 'rlharness[engine]')"
    assert asked[0][0] == sys.executable
    assert SURVEY in asked[0][-1]
