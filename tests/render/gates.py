"""Gates for tests of what is said of them."""

from pathlib import Path

from harness.bits.findings import Finding
from harness.lab.experiment.worktrees import Commit
from harness.lab.gate.change import Change, Comparison, GateCode
from harness.lab.gate.gate import DEFAULT, Gate, GateScenario

BASE = Commit("b" * 40, "bbbbbbb", "The base, 100 %", "Ada", "2026-11-19")
HEAD = Commit("a" * 40, "aaaaaaa", "The head", "Ada", "2026-11-20")
SEED = GateCode.SETTING_CHANGED(name="seed", base="1", head="2")


def reported(message: str) -> Finding:
    """A reason that holds a message of others."""
    return GateCode.BASE_REJECTED(message=message)


def scenario_of(name: str, change: Change, *reasons: Finding) -> GateScenario:
    """A scenario with a finding."""
    return GateScenario(name, Comparison(change, reasons), "base bbbbbbb")


def gate_of(*scenarios: GateScenario, fail_on: tuple[str, ...] = DEFAULT) -> Gate:
    """A gate that has ended."""
    return Gate(HEAD, False, BASE, fail_on, scenarios, Path("gates/1"))
