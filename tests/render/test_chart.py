"""The picture of a plan, whole against a golden, and its edges."""

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.render.chart import chart, plan_json
from harness.runner.need import Need
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.packing import Job, Plan, plan
from tests.support.packing_cases import EIGHT, NEEDS, QUICK, inventory, jobs_of

ANSI = re.compile("\x1b\\[[0-9;]*m")
UNITS = [
    ("tests/rl/test_grpo_end_to_end.py", Need(8), 240.0),
    ("tests/rl/test_ppo.py", Need(4), 300.0),
    ("tests/rl/test_weight_sync.py", Need(2), 420.0),
    ("tests/rl/test_rollout_server_with_a_long_name.py", Need(2), 100.0),
    ("tests/sampler/test_paged_attention.py", Need(1), 900.0),
    ("tests/sampler/test_sampling.py", Need(1), 60.0),
    ("tests/sampler/test_stop.py", Need(1), 9.0),
    ("tests/sampler/test_tiny.py", Need(1), 1.0),
    ("tests/test_numa.py", Need(exclusive=True), 45.0),
    ("tests/core/test_config.py", Need(), 30.0),
    ("tests/test_metrics.py", Need(), 20.0),
    ("tests/test_docs.py", Need(), 15.0),
    ("tests/test_cluster.py", Need(16), 600.0),
]
PATHS = [path for path, _, _ in UNITS]


def sample() -> Plan:
    jobs = [Job(i, need, seconds) for i, (_, need, seconds) in enumerate(UNITS)]
    return plan(jobs, LeaseTable(EIGHT, 2))


def test_a_plan_looks_as_the_golden(golden: Callable[[str, str], None]) -> None:
    drawn = chart(sample(), PATHS, width=100)
    golden("plan.txt", drawn)


def test_estimated_durations_are_called_so_and_prove_no_bound() -> None:
    made = sample()
    all_of_them = range(len(UNITS))
    unknown = chart(made, PATHS, estimates=all_of_them).splitlines()
    assert "durations    estimated for 13 of 13 files, 30 s assumed for each that never ran" in unknown
    assert "lower bound  1185.0 s, of estimated durations" in unknown
    assert not any(line.startswith("split") for line in unknown)
    some = chart(made, PATHS, estimates={0, 1}).splitlines()
    assert "durations    estimated for 2 of 13 files, 30 s assumed for each that never ran" in some
    assert any(line.startswith("split") for line in some), "the file that sets the bound was measured"
    assert json.loads(json.dumps(plan_json(made, PATHS, {1, 0})))["estimated"] == PATHS[:2]
    assert plan_json(made, PATHS)["estimated"] == []


def test_colour_adds_nothing_but_colour() -> None:
    plain, coloured = (chart(sample(), PATHS, width=100, colour=colour) for colour in (False, True))
    assert "\x1b" not in plain
    assert plain != coloured
    assert ANSI.sub("", coloured) == plain
    assert all(line.count("\x1b[0m") == len(ANSI.findall(line)) / 2 for line in coloured.splitlines())


def test_the_json_is_the_plan() -> None:
    made = sample()
    told = json.loads(json.dumps(plan_json(made, PATHS)))
    assert told["makespan_s"] == made.makespan_s
    assert (told["lower_bound_s"], told["lower_bound_term"]) == (made.bound.value_s, "beside")
    assert told["bounding_unit"] == "tests/sampler/test_paged_attention.py"
    assert told["lower_bound_exclusive_s"] == 45.0
    assert sorted(told["order"]) == sorted(PATHS)
    assert len(told["units"]) == len(UNITS) - 1
    assert told["units"][0] == {
        "path": "tests/test_numa.py",
        "gpu_ids": [],
        "start_s": 0.0,
        "end_s": 45.0,
        "exclusive": True,
    }
    assert told["never"] == [{"path": "tests/test_cluster.py", "reason": "needs 16 GPUs; this run has 8 x H200 143 GB"}]


def test_a_plan_of_nothing_says_so() -> None:
    assert chart(plan([], LeaseTable(EIGHT, 2)), []) == "nothing to run\n"
    never = plan([Job(0, Need(16), 1.0)], LeaseTable(EIGHT, 2))
    assert chart(never, ["tests/test_x.py"]).splitlines() == [
        "nothing to run",
        "cannot run   1 file",
        "  tests/test_x.py: needs 16 GPUs; this run has 8 x H200 143 GB",
    ]


def test_names_from_strangers_cannot_break_the_picture() -> None:
    jobs = [Job(0, Need(8), 10.0)]
    drawn = chart(plan(jobs, LeaseTable(EIGHT, 1)), ["tests/te\x1b[31mst\n_\u202e漢.py"], width=60)
    assert "\x1b" not in drawn
    rows = [line for line in drawn.splitlines() if line.startswith("gpu")]
    assert {len(row) for row in rows} == {60}
    assert all(row.isascii() for row in rows), "a character may be two columns wide"


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.5, ["0 s", "0.1 s", "0.2 s", "0.3 s", "0.4 s"]),
        (3600.0, ["0 min", "10 min", "20 min", "30 min", "40 min", "50 min", ""]),
        (20_000.0, ["0 h", "1 h", "2 h", "3 h", "4 h", "5 h"]),
        (10_000_000.0, ["0 h", "24 h"]),
    ],
)
def test_the_axis_is_marked_at_round_times(seconds: float, labels: list[str]) -> None:
    drawn = chart(plan([Job(0, Need(), seconds)], LeaseTable(inventory(), 1)), PATHS, width=78)
    axis = drawn.splitlines()[1]
    assert [label.strip() for label in axis.split("|")[1:]][: len(labels)] == labels


@pytest.mark.full
@QUICK
@given(jobs_of(NEEDS), st.integers(40, 200))
def test_every_line_of_the_picture_fits(jobs: list[Job], width: int) -> None:
    paths = [f"tests/test_{i}.py" for i in range(len(jobs))]
    drawn = chart(plan(jobs, LeaseTable(EIGHT, 2)), paths, width=width)
    rows = [line for line in drawn.splitlines() if line.startswith(("gpu", "cpu"))]
    assert {len(row) for row in rows} <= {width}
    assert drawn.endswith("\n")
    assert not any(line.endswith(" ") for line in drawn.splitlines())
