"""Settings of vLLM under chaos: they move no bit."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
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
    sampler.block_size: [4]
    sampler.max_batched_tokens: [64]
config: {config}
"""


@pytest.fixture(autouse=True)
def shared_engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs borrow engines in turn."""
    with instead_of_starts(monkeypatch):
        yield


def test_the_sampler_and_its_settings_move_no_bit(tmp_path: Path) -> None:
    """A perturbation of this seed has smaller blocks."""
    asked = payload("grpo", {"sampler.name": "vllm", "training.num_steps": 2, "runtime.concurrency": 16})
    (tmp_path / "own.yaml").write_text(SCENARIO.format(config=json.dumps(asked)), "utf-8")
    chaos = searched(tmp_path, "own.yaml", num_probes=2, seed=3)
    assert (chaos.exit_code, chaos.finding, chaos.num_probes) == (ExitCode.OK, None, 2)
