"""Training in several processes with a real GPU: a group over NCCL, and a run whose model is on the GPU of an actor.

rlharness run tests/gpu/test_training_on_gpus.py --gpus auto
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from harness.bits.exit_codes import ExitCode
from tests.support.cli_commands import type_command
from tests.support.suite_runs import ROOT

pytestmark = [
    pytest.mark.gpus(1),
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]
ON_GPU = ("--size", "tiny", "--level", "deterministic", "--set", "model.device=cuda")
SPREAD = ("--set", "deployment.backend=ray", "--set", "deployment.gpus_per_rank=1")


def test_a_rank_over_nccl_has_the_bits_of_a_trainer_without_a_group() -> None:
    rendezvous = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.nccl_training"],
        cwd=ROOT,
        env={**os.environ, **rendezvous, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "equal"), done.stderr


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_a_run_in_an_actor_with_a_gpu_is_equal_to_one_in_the_controller(tmp_path: Path) -> None:
    here = type_command(tmp_path, "train", "grpo_reverse_text", "--out", "here", *ON_GPU)
    there = type_command(tmp_path, "train", "grpo_reverse_text", "--out", "there", *ON_GPU, *SPREAD)
    assert (here.code, there.code) == (ExitCode.OK, ExitCode.OK), here.stderr + there.stderr
    found = type_command(tmp_path, "diff", "here", "there")
    assert found.stdout.startswith("EQUAL  3 steps, every recorded bit"), found.stdout


def test_a_run_whose_models_leave_the_gpu_while_it_samples_is_equal_to_one_whose_models_stay(tmp_path: Path) -> None:
    words = ("train", "grpo_reverse_text", *ON_GPU, "--set", "algorithm.kl_coef=0.05")
    stays = type_command(tmp_path, *words, "--out", "stays")
    leaves = type_command(tmp_path, *words, "--out", "leaves", "--set", "deployment.offload=[policy, reference]")
    assert (stays.code, leaves.code) == (ExitCode.OK, ExitCode.OK), stays.stderr + leaves.stderr
    found = type_command(tmp_path, "diff", "stays", "leaves")
    assert found.stdout.startswith("EQUAL  "), found.stdout
