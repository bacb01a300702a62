"""Gates for tests of what is said of them."""

from pathlib import Path

from harness.bits.findings import Finding
from harness.lab.experiments.worktrees import Commit
from harness.lab.gate.change import Change, Comparison, GateCode
from harness.lab.gate.gate import DEFAULT, SECONDS, STEP, CostChange, Gate, GateScenario

BASE = Commit("b" * 40, "bbbbbbb", "The base, 100 %", "Ada", "2026-11-19")
HEAD = Commit("a" * 40, "aaaaaaa", "The head", "Ada", "2026-11-20")
STEADY = CostChange(SECONDS, STEP, 0.2, 0.21, 0.004, False, False)
SLOWER = CostChange(SECONDS, "rollout", 0.1, 0.2, 0.004, True, True)
SEED = GateCode.SETTING_CHANGED(name="seed", base="1", head="2")
NOISY = CostChange(SECONDS, "update", 0.1, 0.2, 0.5, False, True)


def reported(message: str) -> Finding:
    """A reason that holds a message of others."""
    return GateCode.BASE_REJECTED(message=message)


def scenario_of(
    name: str, change: Change, *reasons: Finding, costs: tuple[CostChange, ...] = (STEADY,)
) -> GateScenario:
    """A scenario with a finding and costs."""
    return GateScenario(name, Comparison(change, reasons), costs, "base bbbbbbb")


def gate_of(*scenarios: GateScenario, fail_on: tuple[str, ...] = DEFAULT) -> Gate:
    """A gate that has ended."""
    return Gate(HEAD, False, BASE, fail_on, scenarios, Path("gates/1"))
