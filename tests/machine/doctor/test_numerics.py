"""What the engine's probe said, as a finding: strategies that hold, types without one, children without an answer."""

import sys
from pathlib import Path
from typing import Any

from harness.bits.findings import Severity
from harness.doctor.host import Host, open_probes
from harness.doctor.numerics import check_numerics, classify_numerics
from harness.machine.findings import MachineFinding
from harness.process.children import Answer
from harness.process.invocation import Invocation
from tests.support.finding_checks import sound

SIZES = [
    {"operation": "linear", "torch": 0, "ours": 256},
    {"operation": "attention", "torch": 16, "ours": 64},
    {"operation": "rows", "torch": 256, "ours": 256},
]
HELD = {"dtype": "float32", "device": "cpu", "strategy": "pad16", "length": 128, "duration_s": 1.25, "sizes": SIZES}
ALSO = HELD | {"dtype": "bfloat16", "device": "cuda", "strategy": "triton", "sizes": SIZES[:1]}
LACKING = {"dtype": "bfloat16", "device": "cpu", "machine": "torch 2.13.0", "problem": "no strategy keeps the bits"}


def judged(*lines: dict[str, Any]) -> MachineFinding:
    (finding,) = sound([classify_numerics(lines)])
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
    (late,) = sound(check_numerics(Host({}, lambda *_: [Answer("late", "no answer within 110 s")])))
    assert (late.severity, late.measured) == (Severity.WARNING, "no answer within 110 s")


def test_without_torch_it_is_not_checked(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    with open_probes(Invocation(tmp_path, {})) as probes:
        (finding,) = sound(check_numerics(Host({}, probes.ask)))
    assert finding.severity is Severity.FINE
    assert finding.measured == "not checked: torch is not installed (pip install 'rlharness[engine]')"
