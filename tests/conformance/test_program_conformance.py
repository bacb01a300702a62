"""The suite over programs of other projects: its table and its results, and two programs that need torch alone."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.trace.format import PHASES
from tests.conformance.programs.__main__ import RESULTS, merged, row
from tests.conformance.programs.checks import Seen, check
from tests.conformance.programs.table import HERE, PROGRAMS, SCRIPTS, Environment, Program

BY_NAME = {each.name: each for each in PROGRAMS}
NUM_PROGRAMS = 75


def test_the_table_names_each_program_once_and_what_must_be_seen_of_it() -> None:
    assert len(BY_NAME) == len(PROGRAMS) >= NUM_PROGRAMS
    for each in PROGRAMS:
        assert (SCRIPTS / f"{each.arguments.split()[0]}.py").exists(), each.name
        assert each.place.phase in PHASES and 0 <= each.place.step < each.num_steps, each.name
    assert {each.environment for each in PROGRAMS} == set(Environment)
    for environment in Environment:
        lines = (HERE / f"{environment}.txt").read_text("utf-8").splitlines()
        assert all(line.startswith("#") or line.count("==") == 1 for line in lines)


def as_expected(program: Program) -> Seen:
    """What the table wants to be seen."""
    seen = Seen(program, weights="equal", verdict="equal", place=program.place)
    seen.num_steps, seen.num_logs = program.num_steps, program.num_logs
    seen.judge()
    return seen


def test_what_differs_from_the_table_is_a_problem() -> None:
    program = BY_NAME["dqn"]
    assert as_expected(program).problems == []
    wrong: dict[str, Any] = {
        "weights": "ab12 unrecorded, cd34 recorded",
        "verdict": "diverged",
        "num_steps": 5,
        "num_logs": 2,
        "place": replace(program.place, step=4),
    }
    for name, value in wrong.items():
        seen = replace(as_expected(program), **{name: value})
        seen.judge()
        assert len(seen.problems) == 1, name


def test_results_are_kept_by_program() -> None:
    first, second = as_expected(BY_NAME["dqn"]), as_expected(BY_NAME["muon"])
    second.problems.append("wrong")
    old = merged({}, {"muon": row(first, {}), "gone": row(first, {})})
    rows = merged(old, {"muon": row(second, {}), "dqn": row(first, {})})
    assert {name: each["not as expected"] for name, each in rows.items()} == {"dqn": "", "muon": "wrong"}
    kept = json.loads(RESULTS.read_text("utf-8"))
    assert list(kept) == [each.name for each in PROGRAMS]
    assert [name for name, each in kept.items() if each["not as expected"]] == []


@pytest.mark.full
@pytest.mark.parametrize("name", ["dqn", "threads-in-turn"])
def test_a_program_keeps_its_bits_and_a_planted_cause_is_named(name: str, tmp_path: Path) -> None:
    seen = check(BY_NAME[name], Path(sys.executable).parent, tmp_path)
    assert seen.problems == []
