"""What the shipped scenarios say must not matter does not: a few perturbations of each, at their smallest size."""

import json
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.lab.experiment.scenario import all_scenarios
from tests.support.cli_commands import type_command

pytest.importorskip("torch")
COUNTS = {"grpo_reverse_text": 3, "grpo_recommendation": 3, "grpo_products": 3, "grpo_sorting": 3, "ppo_arithmetic": 3}
SERVED = {"grpo_reward_model"}
"""Scenarios that need vLLM: tests/rlcore/samplers/vllm/test_vllm_layers.py perturbs that run."""


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("scenario", "count"), COUNTS.items())
def test_perturbations_move_no_bit(tmp_path: Path, scenario: str, count: int) -> None:
    done = type_command(tmp_path, "chaos", scenario, "--size", "tiny", "--count", str(count), "--json")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert (told["finding"], told["num_probes"]) == (None, count)
    assert told["num_runs"] > count + 2, "some of them were killed and gone on from"


def test_each_shipped_scenario_is_among_them() -> None:
    assert {each.name for each in all_scenarios(Path("nowhere"))} == COUNTS.keys() | SERVED
