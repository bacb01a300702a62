"""A drawn dozen of faults are found, ten honest pairs are alike, and a fault is found by what a user types."""

import json
import os
import random
import re
from pathlib import Path

import pytest

from harness.core.exit_codes import ExitCode
from tests.benchmarks.mutations.catalogue import FAULTS
from tests.benchmarks.mutations.fault import Fault
from tests.benchmarks.mutations.runner import carry_out
from tests.benchmarks.mutations.settings import payload
from tests.benchmarks.mutations.workers import ROOT, Workers
from tests.support.cli_commands import type_command

pytestmark = pytest.mark.full

SEED = "a dozen"
NUM_FAULTS = 12
NUM_PAIRS = 10
SCENARIO = """
about: the engine with a fault in it
entry: tests.benchmarks.mutations.entry:run
determinism: invariant
gpus: 0
sizes: {smoke: {}, full: {}}
runtime_sections: [runtime, output, fault]
config: %s
"""


def _is_quick(fault: Fault) -> bool:
    """Whether it needs no processes and no long run; the tables say of some that nothing finds them."""
    table = (ROOT / "harness" / "DESIGN.md").read_text("utf-8")
    (row,) = re.findall(rf"^\| {fault.name}: .+$", table, re.MULTILINE)
    return not fault.is_in_ranks and fault.setting != "long" and "**nothing**" not in row


@pytest.mark.timeout(300)
def test_a_dozen_are_found_and_honest_pairs_are_alike() -> None:
    chosen = random.Random(SEED).sample([fault for fault in FAULTS if _is_quick(fault)], NUM_FAULTS)
    said: list[str] = []
    with Workers() as workers:
        results = carry_out(chosen, NUM_PAIRS, workers, said.append)
    assert [line for line in results.shortcomings if "are localised" not in line] == []
    assert len({finding.check for finding in results.findings}) >= 3, "the dozen is of more than one kind"
    assert said[-1] == f"honest pairs: {NUM_PAIRS} of {NUM_PAIRS}"


@pytest.mark.timeout(120)
def test_a_fault_is_found_by_what_a_user_types(tmp_path: Path) -> None:
    config = json.dumps({**payload("grpo"), "fault": {}})
    (tmp_path / "faulty.yaml").write_text(SCENARIO % config, "utf-8")
    few = ("--set", "training.num_steps=2", "--set", "warm_start.num_steps=1")
    words = ("faulty.yaml", "--set", "fault.name=prompts_of_a_set", *few, "--out", "runs", "--json")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = type_command(tmp_path, "replay", *words, PYTHONPATH=path)
    assert done.code == ExitCode.DIVERGED, done.stdout + done.stderr
    (comparison,) = json.loads(done.stdout)["comparisons"]
    first = comparison["first"]["a"]
    assert (first["phase"], first["name"]) == ("rollout", "prompt_ids")
    deeds = json.loads((tmp_path / "runs" / "run-1" / "fault.json").read_text("utf-8"))
    assert deeds["num_reached"] == 2
