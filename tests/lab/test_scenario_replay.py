"""`rlharness replay SCENARIO`: other values of what must not matter, the same bits; and a plan for each run."""

import json
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
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
