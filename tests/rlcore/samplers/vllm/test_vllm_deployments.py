"""Ray, shards of the weights and two engines of vLLM: a run in many processes, to the bits of one."""

import os
from pathlib import Path

from harness.bits.exit_codes import ExitCode
from tests.support.cli_commands import type_command
from tests.support.suite_runs import ROOT
from tests.support.vllm_engines import need_vllm, write_entry_point

need_vllm()
SMALL = ("--size", "tiny", "--set", "training.num_steps=2", "--set", "output.checkpoint_every=1")
SPREAD = {
    "deployment.backend": "ray",
    "deployment.num_ranks": "2",
    "deployment.sharding": "full",
    "sampler.name": "vllm",
    "sampler.replicas": "2",
}


def test_a_run_on_ray_with_shards_and_two_engines_is_equal_to_one_process(tmp_path: Path) -> None:
    variables = {"VLLM_BATCH_INVARIANT": "", "PYTHONPATH": os.pathsep.join((str(ROOT), write_entry_point()))}
    local = type_command(tmp_path, "train", "grpo_reverse_text", "--out", "local", *SMALL, **variables)
    settings = [word for key, value in SPREAD.items() for word in ("--set", f"{key}={value}")]
    spread = type_command(tmp_path, "train", "grpo_reverse_text", "--out", "spread", *SMALL, *settings, **variables)
    assert (local.code, spread.code) == (ExitCode.OK, ExitCode.OK), local.stderr + spread.stderr
    found = type_command(tmp_path, "diff", "local", "spread")
    assert found.code == ExitCode.OK and found.stdout.startswith("EQUAL  2 steps, every recorded bit"), found.stdout
    here = ("--set", "deployment.backend=in_process", "--set", "sampler.name=torch")
    again = type_command(tmp_path, "reproduce", "spread", "--step", "1", *here, **variables)
    assert again.code == ExitCode.OK, again.stdout + again.stderr
