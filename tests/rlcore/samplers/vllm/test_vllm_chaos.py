"""Settings of vLLM under chaos: they move no bit."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.lab.chaos.search import ChaosOptions, make_subject
from harness.process.invocation import Invocation
from tests.guards.planted.settings import payload
from tests.lab.chaos.in_process import searched
from tests.support.vllm_engines import instead_of_starts, need_vllm

need_vllm()
SCENARIO = """
about: the engine with vLLM
entry: rlcore.entrypoint:run
determinism: invariant
gpus: 0
runtime_sections: [runtime, sampler, output]
chaos:
  factors:
    runtime.arrival_seed: {{min: 0, max: 9}}
    runtime.preempt_every: [5, 1]
    sampler.name: [torch, vllm]
    sampler.block_size: [4]
    sampler.max_batched_tokens: [64]
  packages: {{sampler.name: vllm}}
  where:
    sampler.block_size: {{sampler.name: vllm}}
    sampler.max_batched_tokens: {{sampler.name: vllm}}
config: {config}
"""
NAMES = {"runtime.arrival_seed", "runtime.concurrency", "runtime.preempt_every"}
OF_VLLM = {"sampler.name", "sampler.block_size", "sampler.max_batched_tokens", "sampler.num_blocks"}


@pytest.fixture(autouse=True)
def shared_engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs borrow engines in turn."""
    with instead_of_starts(monkeypatch):
        yield


def test_the_sampler_and_its_settings_move_no_bit(tmp_path: Path) -> None:
    """Both perturbations of this seed switch to vLLM, the second with smaller blocks."""
    asked = payload("grpo", {"sampler.name": "torch", "training.num_steps": 2, "runtime.concurrency": 16})
    (tmp_path / "own.yaml").write_text(SCENARIO.format(config=json.dumps(asked)), "utf-8")
    chaos = searched(tmp_path, "own.yaml", num_probes=2, seed=3)
    assert (chaos.exit_code, chaos.finding, chaos.num_probes) == (ExitCode.OK, None, 2)


@pytest.mark.parametrize("name", ["grpo_reverse_text", "grpo_sorting", "ppo_arithmetic"])
def test_shipped_scenarios_perturb_vllm(name: str, tmp_path: Path) -> None:
    found = {each.name: each for each in make_subject(Invocation(tmp_path, {}), ChaosOptions(name)).factors}
    assert found.keys() >= NAMES | OF_VLLM
    assert found["sampler.name"].usual == "torch"
    assert not found["sampler.block_size"].is_effective({})
