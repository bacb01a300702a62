"""Gates for tests of what is said of them."""

from pathlib import Path

from harness.lab.experiments.worktrees import Commit
from harness.lab.gate.change import Change, Finding
from harness.lab.gate.costs import SECONDS, STEP, CostChange
from harness.lab.gate.policy import Policy
from harness.lab.gate.reasons import Reason, ReasonCode, Reported, SettingChanged
from harness.lab.gate.result import Gate, GateScenario

BASE = Commit("b" * 40, "bbbbbbb", "The base, 100 %", "Ada", "2026-11-19")
HEAD = Commit("a" * 40, "aaaaaaa", "The head", "Ada", "2026-11-20")
STEADY = CostChange(SECONDS, STEP, 0.2, 0.21, 0.004, False, False)
SLOWER = CostChange(SECONDS, "rollout", 0.1, 0.2, 0.004, True, True)
SEED = SettingChanged(ReasonCode.SETTING_CHANGED, "seed", "1", "2")
NOISY = CostChange(SECONDS, "update", 0.1, 0.2, 0.5, False, True)


def reported(message: str) -> Reason:
    """A reason that is worded as "remedy: " and this message."""
    return Reported(ReasonCode.REMEDY, message)


def scenario_of(name: str, change: Change, *reasons: Reason, costs: tuple[CostChange, ...] = (STEADY,)) -> GateScenario:
    """A scenario with a finding and costs."""
    return GateScenario(name, Finding(change, reasons), costs, "base bbbbbbb")


def gate_of(*scenarios: GateScenario, policy: Policy | None = None) -> Gate:
    """A gate that has ended."""
    return Gate(HEAD, False, BASE, policy or Policy(), scenarios, Path("gates/1"))
