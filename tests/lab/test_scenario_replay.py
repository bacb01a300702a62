"""`rlharness replay SCENARIO`: other values of what must not matter, the same bits; and a plan for each run."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.lab.experiments.command_spec import RecordingOptions, ScenarioOptions
from harness.lab.replay.replay import ReplayOptions, ReplayPlan, make_plan
from harness.process.invocation import Invocation
from tests.lab.scenario_texts import write_tiny
from tests.support.cli_commands import Done, type_command

pytest.importorskip("torch")
VARY = ("--sweep", "runtime.num_parts=1,7")


def replay(directory: Path, *words: str, **env: str) -> Done:
    write_tiny(directory)
    return type_command(directory, "replay", "tiny", *VARY, *words, **env)


@pytest.mark.full
@pytest.mark.timeout(120)
def test_what_must_not_matter_does_not_and_where_it_does_that_is_shown(tmp_path: Path) -> None:
    holds = replay(tmp_path, "--out", "holds")
    assert holds.code == ExitCode.OK, holds.stdout + holds.stderr
    assert holds.stdout.startswith("A: run 1  B: run 2\nEQUAL  3 steps, every recorded bit\n")
    assert "    runtime.num_parts  A 1  B 7\n" in holds.stdout, "it is told that they were not alike"
    seen = [json.loads((tmp_path / "holds" / f"run-{run}" / "seen.json").read_text("utf-8")) for run in (1, 2)]
    assert [each["config"]["runtime"]["num_parts"] for each in seen] == [1, 7]
    assert len({each["hash"] for each in seen}) == 2, "the hash seed is free too at level invariant"
    assert "PYTHONHASHSEED" not in holds.stdout

    leaks = replay(tmp_path, "--out", "leaks", "--set", "leaks=true", "--json")
    assert leaks.code == ExitCode.DIVERGED
    told = json.loads(leaks.stdout)
    (comparison,) = told["comparisons"]
    assert (comparison["first"]["a"]["phase"], comparison["first"]["a"]["name"]) == ("loss", "loss")
    words = ["rlharness", "replay", "tiny", "--size", "smoke", "--set", "leaks=true", *VARY]
    assert (told["command"], told["level"]) == (words, "invariant")

    other = type_command(tmp_path, "diff", "holds/run-1", "leaks/run-1")
    assert other.code == ExitCode.NOT_COMPARABLE
    assert "(identity): leaks" in other.stdout


# ------------------------------------------------------------------------------------------------------------ plans


def plan(cwd: Path, *, trailing: tuple[str, ...] = (), **given_ones: Any) -> ReplayPlan:
    write_tiny(cwd)
    of_scenario = {name: given_ones.pop(name) for name in ("size", "overrides", "sweep") if name in given_ones}
    recording = RecordingOptions(given_ones.pop("level", ""))
    changes = ScenarioOptions(**of_scenario, recording=recording)
    options = ReplayOptions(**{"scenario": "tiny", "out": "r", **given_ones}, scenario_options=changes)
    return make_plan(Invocation(cwd, os.environ, trailing), options, "id", lambda: b"input")


@pytest.mark.parametrize(
    ("given_ones", "said"),
    [
        ({"trailing": ("python", "train.py")}, "both the scenario tiny and a command are given"),
        ({"scenario": None, "overrides": ("a=1",), "trailing": ("ls",)}, "--set without a scenario"),
        (
            {"scenario": None, "sweep": ("a=1",), "size": "full", "trailing": ("ls",)},
            "--size, --sweep without a scenario",
        ),
        (
            {"scenario": None, "level": "invariant", "trailing": ("ls",)},
            "the level 'invariant' cannot be guaranteed for a program",
        ),
        ({"num_runs": 1}, "--runs 1 leaves nothing to compare with"),
        ({"sweep": ("seed=1,2",)}, "--sweep seed: it is part of the run identity"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(
    tmp_path: Path, given_ones: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        plan(tmp_path, **given_ones)
    assert refused.value.what.startswith(said)
    assert not (tmp_path / "r").exists()
