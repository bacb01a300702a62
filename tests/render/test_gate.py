"""What `rlharness gate` prints: whole against a golden, and as JSON."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.lab.gate.change import Change, Comparison, GateCode, Rounding, classify_change
from harness.lab.gate.golden import Acceptance, Golden
from harness.render.gate import gate_json, gate_text
from harness.trace.diff import diff
from harness.trace.verdict import REWARDS, TOKENS, Count, Element
from tests.render.gates import SEED, gate_of, reported, scenario_of
from tests.support.traces import flip_bit, steps_of, trace

ROUNDING = Rounding(1, 12, 5, "backward layers.0.weight", 3, 1200, "optimizer layers.0.weight", 2e-7, "backward", True)
EXITED = GateCode.RUN_FAILED(side="head", message="exit code 1", remedy="")


def test_the_text_is_the_golden(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    a = trace(tmp_path / "a", steps_of(3))
    b = trace(tmp_path / "b", steps_of(3, flip_bit(1, "backward", "layers.0.weight")))
    scenarios = (
        replace(scenario_of("equal", Change.EQUAL), comparison=Comparison(Change.EQUAL, verdict=diff(a, a))),
        replace(
            scenario_of("moved", Change.NUMERICS),
            comparison=Comparison(Change.NUMERICS, verdict=diff(a, b), rounding=ROUNDING),
            notes=(reported("a note\x1b[31m"),),
        ),
        scenario_of("other", Change.CONFIGURATION, SEED),
    )
    gate = replace(gate_of(*scenarios), is_dirty=True, notes=(reported("a last note"),))
    golden("gate.txt", gate_text(gate, colour=False) + "\n")


@pytest.mark.parametrize("change", Change)
def test_every_change_has_a_label_and_json(change: Change) -> None:
    gate = gate_of(scenario_of("a", change, reported("why")), fail_on=())
    plain, coloured = gate_text(gate, colour=False), gate_text(gate, colour=True)
    assert "  a\n  the base cannot be run: why\n" in plain
    assert "\x1b[" not in plain
    assert "\x1b[" in coloured
    told = json.loads(json.dumps(gate_json(gate)))
    (scenario,) = told["scenarios"]
    assert (scenario["change"], scenario["reasons"]) == (change.value, ["the base cannot be run: why"])
    assert scenario["reason_codes"] == [{"code": "base_rejected", "message": "why"}]
    assert told["exit_code"] == (ExitCode.INCOMPLETE_RECORDING if change is Change.BROKEN else ExitCode.OK)
    assert told["base"]["subject"] == "The base, 100 %"


def test_what_is_counted_is_said_once_and_the_next_command_with_it(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", steps_of(3))
    b = trace(tmp_path / "b", steps_of(3, flip_bit(1, "rollout", "tokens")))
    counts = {TOKENS: Count(64, 5, 0, Element(2, 0, "tokens", (8, 8), 9)), REWARDS: Count(8)}
    finding = classify_change(replace(diff(a, b), attribution=counts), None)
    scenario = replace(scenario_of("a b", Change.BEHAVIOUR), comparison=finding)
    assert gate_text(gate_of(scenario), colour=False).splitlines()[1:5] == [
        "BEHAVIOUR CHANGED  a b: step 1: the tokens of the rollout differ",
        "  tokens flipped: 5 of 64 (7.8 %); first step 2, sequence 1, position 1",
        "  unchanged: 8 rewards",
        "  look closer: rlharness diff 'gates/1/a b/base/run-1' 'gates/1/a b/head/run-1'",
    ]
    typed = ("a b", "--size", "full", "--set", "seed=3")
    unsteady = replace(scenario_of("a b", Change.NONDETERMINISTIC), replay=typed)
    line = "  look closer: rlharness replay 'a b' --size full --set seed=3\n"
    assert line in gate_text(gate_of(unsteady), colour=False), "as the gate has run it"


def test_what_was_accepted_is_told_with_its_reason(tmp_path: Path) -> None:
    found = trace(tmp_path / "a", steps_of(2))
    golden = Golden(found, (Acceptance("2026-11-20", "aaaaaaa+", "the clip is lower", "Ada"),))
    scenario = scenario_of("a", Change.ACCEPTED, GateCode.GOLDEN_FIRST())
    gate = gate_of(replace(scenario, golden=golden, against="golden 0123"))
    assert gate_text(gate, colour=False).splitlines()[1:-1] == [
        "ACCEPTED  a (golden 0123)",
        "  the first golden of this machine and environment",
        "  golden of 2 steps",
        "  accepted on 2026-11-20 at aaaaaaa+: the clip is lower",
        "passed: 1 accepted",
    ]
    assert gate_json(gate)["scenarios"][0]["golden"][0]["by"] == "Ada"
    equal = replace(
        scenario, comparison=Comparison(Change.EQUAL, verdict=diff(found, found)), golden=golden, against="golden 0123"
    )
    assert gate_text(gate_of(equal), colour=False).splitlines()[1:3] == [
        "EQUAL  a (golden 0123): 2 steps, every recorded bit",
        "  accepted on 2026-11-20 at aaaaaaa+: the clip is lower",
    ]


def test_what_did_not_run_shows_the_end_of_what_it_printed(tmp_path: Path) -> None:
    output = tmp_path / "output.log"
    output.write_text("step 0\nerror: \x1b[31mno such thing\n", encoding="utf-8")
    gate = gate_of(replace(scenario_of("a", Change.BROKEN, EXITED), output=output))
    lines = [f"last lines of its output ({output}):", "| step 0", "| error: no such thing"]
    assert gate_text(gate, colour=False).splitlines()[2:6] == ["  head: exit code 1", *(f"  {each}" for each in lines)]
    (told,) = gate_json(gate)["scenarios"]
    assert told["output"] == str(output)
