"""`rlharness train` with vLLM's engine in a process of its own, in the environment that the level prepares."""

import os
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from tests.support.cli_commands import type_command
from tests.support.suite_runs import ROOT
from tests.support.vllm_engines import need_vllm, write_entry_point

need_vllm()
SMALL = ("--size", "tiny", "--set", "training.num_steps=2")
SERVED = ("--set", "sampler.name=vllm", "--set", "sampler.engine=process")


def test_a_run_with_an_engine_process_is_equal_to_one_without(tmp_path: Path) -> None:
    path = os.pathsep.join((str(ROOT), write_entry_point()))
    unset = {"VLLM_BATCH_INVARIANT": ""}  # engines in this process have set it
    local = type_command(tmp_path, "train", "grpo_reverse_text", "--out", "local", *SMALL, **unset)
    train = ("train", "grpo_reverse_text", "--out", "served", *SMALL, *SERVED)
    served = type_command(tmp_path, *train, PYTHONPATH=path, **unset)
    assert (local.code, served.code) == (ExitCode.OK, ExitCode.OK), local.stderr + served.stderr
    assert "starting the engine's process" in served.stderr
    found = type_command(tmp_path, "diff", "local", "served")
    assert found.code == ExitCode.OK and found.stdout.startswith("EQUAL  2 steps, every recorded bit"), found.stdout


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_reward_model_of_vllm_starts_with_an_empty_cache(tmp_path: Path) -> None:
    """vLLM then starts a child that inspects the model, with the engine's variables and not with those of the level."""
    cache, unset = tmp_path / "cache", {"VLLM_BATCH_INVARIANT": ""}
    train = ("train", "grpo_reward_model", "--out", "a", "--size", "tiny", "--set", "training.num_steps=1")
    done = type_command(tmp_path, *train, VLLM_CACHE_ROOT=str(cache), **unset)
    assert done.code == ExitCode.OK, done.stderr
    assert list((cache / "modelinfos").iterdir()), "the child has run"
