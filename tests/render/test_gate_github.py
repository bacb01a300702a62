"""Output of a gate on GitHub Actions: annotations, and the summary of the job."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.lab.gate.change import Change, GateCode
from harness.render.gate import annotations, append_summary, summary
from harness.render.github import SUMMARY_VARIABLE
from tests.render.gates import SEED, gate_of, reported, scenario_of
from tests.support.github_commands import read_back


def test_each_scenario_that_is_not_what_it_was_is_annotated() -> None:
    gate = gate_of(
        scenario_of("equal", Change.EQUAL),
        scenario_of("moved", Change.NUMERICS),
        scenario_of("other", Change.CONFIGURATION, SEED),
        scenario_of("new", Change.NEW),
        scenario_of("written", Change.ACCEPTED),
    )
    told = [read_back(line) for line in annotations(gate)]
    assert [(kind, properties["title"]) for kind, properties, _ in told] == [
        ("error", "moved: numerics"),
        ("warning", "other: configuration changed"),
    ]
    assert told[1][2] == "CONFIGURATION CHANGED\nseed was 1 and is 2"


def test_the_summary_is_a_table_and_what_there_is_to_say(golden: Callable[[str, str], None]) -> None:
    gate = gate_of(
        scenario_of("grpo_reverse_text", Change.EQUAL),
        scenario_of(
            "ppo_<b>|`x`",
            Change.BEHAVIOUR,
            GateCode.TOKENS_CHANGED(first_step=2, num_different=5, num_compared=64),
            reported("``` and a fence"),
        ),
    )
    golden("gate_summary.md", summary(replace(gate, notes=(reported("a note"),))))


def test_the_summary_is_added_to_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n", encoding="utf-8")
    gate = gate_of(scenario_of("a", Change.EQUAL))
    append_summary(gate, {SUMMARY_VARIABLE: str(path)})
    assert path.read_text("utf-8").startswith("before\n### rlharness gate: passed\n")
    append_summary(gate, {})
    append_summary(gate, {SUMMARY_VARIABLE: str(tmp_path)})
    assert "cannot be written" in capsys.readouterr().err
