"""The engine on a GPU: it learns and repeats itself, what is refused there, and what its level costs.

All of it through the commands a user types, whose environment is set before the interpreter starts.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpus(1),
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]
ON_GPU = ("--set", "model.device=cuda")
REPEATED = ("--level", "deterministic")


def rlharness(*words: str | Path, expected: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "harness", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout


def steps_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("scenario", ["grpo_reverse_text", "ppo_arithmetic"])
def test_a_run_repeats_every_bit_on_a_gpu(scenario: str, tmp_path: Path) -> None:
    """At level deterministic, in fresh processes."""
    rlharness("replay", scenario, "--size", "smoke", "--out", tmp_path / "replay", *ON_GPU, *REPEATED)


@pytest.mark.parametrize("swept", ["runtime.concurrency=1,16", "runtime.token_budget=2048,8192"])
def test_at_level_invariant_runtime_settings_move_no_bit_on_a_gpu(swept: str, tmp_path: Path) -> None:
    """By rlcore's own kernels; torch's depend on the batch, see the next test."""
    words = ("--level", "invariant", "--sweep", swept, "--size", "smoke")
    rlharness("replay", "grpo_reverse_text", "--out", tmp_path / "replay", *ON_GPU, *words)


def test_without_the_level_concurrency_moves_bits_on_a_gpu(tmp_path: Path) -> None:
    """At level off a GPU's products depend on the batch: 10 is the exit code of a divergence."""
    words = ("--level", "off", "--sweep", "runtime.concurrency=1,16", "--size", "smoke")
    rlharness("replay", "grpo_reverse_text", "--out", tmp_path / "replay", *ON_GPU, *words, expected=10)


def test_it_learns_on_a_gpu(tmp_path: Path) -> None:
    rlharness("train", "grpo_reverse_text", "--out", tmp_path / "run", *ON_GPU, *REPEATED)
    rewards = [
        line["evaluation/reward_mean"] for line in steps_of(tmp_path / "run") if "evaluation/reward_mean" in line
    ]
    assert rewards[0] >= 0.6
    assert rewards[-1] - rewards[0] >= 0.15


def test_what_the_level_costs_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, for the documents; that both levels come to an end is all that is asserted."""
    told = {}
    for level in ("off", "deterministic"):
        rlharness("train", "grpo_reverse_text", "--size", "smoke", "--level", level, "--out", tmp_path / level, *ON_GPU)
        steps = [line for line in steps_of(tmp_path / level) if "loss" in line][1:]
        phases = ("rollout", "update", "optimizer", "sync")
        told[level] = {name: statistics.median(line[f"seconds/{name}"] for line in steps) for name in phases}
    with capsys.disabled():
        for name, off in told["off"].items():
            print(f"{name}: off {off * 1e3:.1f} ms, deterministic {told['deterministic'][name] / off:.2f} times that")
    assert all(seconds > 0 for level in told.values() for seconds in level.values())


def test_digests_of_weights_are_those_of_the_host_and_weights_stay_on_the_gpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every kind of tensor; then how fast, printed for the documents."""
    from torch.profiler import ProfilerActivity, profile

    from harness.bits import gpu_digests
    from harness.bits.tensor_digests import tensor_digests

    pytest.importorskip("triton")
    assert gpu_digests.problem(torch.device("cuda", torch.cuda.current_device())) == ""
    generator = torch.Generator().manual_seed(1)
    shapes = ((), (7,), (0, 3), (1023, 5), (256, 1024))
    on_host = {
        f"{dtype} {shape}": (torch.randn(shape, generator=generator) * 9).to(dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
        for shape in shapes
    }
    on_gpu = {name: tensor.cuda() for name, tensor in on_host.items()}
    on_gpu["at an odd address"] = on_gpu["torch.bfloat16 (1023, 5)"].reshape(-1)[1:]
    on_host["at an odd address"] = on_host["torch.bfloat16 (1023, 5)"].reshape(-1)[1:]
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        found = tensor_digests(on_gpu)
    assert found == tensor_digests(on_host)
    assert sum("DtoH" in event.name for event in profiler.events()) == 1

    weights = {str(number): torch.randn(4096, 4096, device="cuda").bfloat16() for number in range(64)}
    tensor_digests(weights)
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    tensor_digests(weights)
    seconds = time.perf_counter() - began_s
    with capsys.disabled():
        print(f"\n{torch.cuda.get_device_name()}: digests of 2.1 GB in 64 tensors, {seconds * 1e3:.1f} ms")
