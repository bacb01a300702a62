"""The plan of a run as text, whole against a golden, and as JSON."""

import json
from collections.abc import Callable

from harness.render.plan_text import plan_json, plan_text
from harness.runner.need import Need
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.packing import Job, Plan, plan
from tests.support.packing_cases import EIGHT

UNITS = [
    ("tests/rl/test_grpo_end_to_end.py", Need(8), 240.0),
    ("tests/rl/test_ppo.py", Need(4), 300.0),
    ("tests/rl/test_weight_sync.py", Need(2), 420.0),
    ("tests/sampler/test_paged_attention.py", Need(1), 900.0),
    ("tests/sampler/test_tiny.py", Need(1), 1.0),
    ("tests/test_numa.py", Need(exclusive=True), 45.0),
    ("tests/core/test_\x1b[31mconfig.py", Need(), 30.0),
    ("tests/test_cluster.py", Need(16), 600.0),
]
PATHS = [path for path, _, _ in UNITS]


def sample() -> Plan:
    jobs = [Job(i, need, seconds) for i, (_, need, seconds) in enumerate(UNITS)]
    return plan(jobs, LeaseTable(EIGHT, 2))


def test_the_text_is_the_golden(golden: Callable[[str, str], None]) -> None:
    golden("plan.txt", "\n".join(plan_text(sample(), PATHS)) + "\n")


def test_estimated_durations_are_called_so_and_prove_no_bound() -> None:
    made = sample()
    unknown = plan_text(made, PATHS, estimates=range(len(UNITS)))
    assert "durations    estimated for 8 of 8 files, 30 s assumed for each" in unknown
    assert "lower bound  1185.0 s, of estimated durations" in unknown
    some = plan_text(made, PATHS, estimates={0, 1})
    assert "durations    estimated for 2 of 8 files" in some
    assert json.loads(json.dumps(plan_json(made, PATHS, {1, 0})))["estimated"] == PATHS[:2]


def test_the_json_is_the_plan() -> None:
    made = sample()
    found = json.loads(json.dumps(plan_json(made, PATHS)))
    assert (found["lower_bound_s"], found["lower_bound_term"]) == (made.bound.value_s, "beside")
    assert len(found["units"]) == len(UNITS) - 1
    numbers = {"gpu_ids": [], "start_s": 0.0, "end_s": 45.0, "exclusive": True}
    assert found["units"][0] == {"path": "tests/test_numa.py", **numbers}
    reason = "needs 16 GPUs; this run has 8 x H200 143 GB"
    assert found["never"] == [{"path": "tests/test_cluster.py", "reason": reason}]


def test_a_plan_of_nothing_says_so() -> None:
    assert plan_text(plan([], LeaseTable(EIGHT, 2)), []) == ["nothing to run"]
