"""Level deterministic on a real GPU: gradients of torch's attention have the same bits each time, by every backend.

One command on a machine that has a GPU: `rlharness run tests/gpu --gpus auto`. What it measures is printed with `-s`.
"""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from tests.support.suite_runs import environment  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
    pytest.mark.gpus(1),
]

PROGRAM = """
import json, sys, time
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from harness.recording.determinism import set_flags

without_effect = set_flags("deterministic") if sys.argv[1] == "level" else ()
if sys.argv[1] == "warn":
    torch.set_deterministic_debug_mode("warn")
torch.manual_seed(0)
q, k, v = (torch.randn(2, 8, 4096, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
weight = torch.randn(2, 8, 4096, 64, device="cuda", dtype=torch.bfloat16)
found = {"without_effect": without_effect}
for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION"):
    kinds, seconds = set(), []
    for _ in range(20):
        with sdpa_kernel([getattr(SDPBackend, name)]):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        gradients = torch.autograd.grad((out * weight).sum(), (q, k, v))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        kinds.add(tuple(hash(each.view(torch.int16).cpu().numpy().tobytes()) for each in gradients))
    found[name] = len(kinds)
    found[f"{name} ms"] = round(1e3 * min(seconds), 3)
print(json.dumps(found))
"""


def found(how: str) -> dict[str, object]:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, how]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fields: dict[str, object] = json.loads(done.stdout)
    return fields


def test_gradients_of_attention_have_the_same_bits_each_time() -> None:
    fields = found("level")
    print(torch.cuda.get_device_name(), "deterministic:", fields, "warning mode alone:", found("warn"))
    assert (fields["without_effect"], fields["FLASH_ATTENTION"], fields["EFFICIENT_ATTENTION"]) == ([], 1, 1)


def test_warning_mode_alone_is_not_enough() -> None:
    """If this passes with 1 each, torch's warning mode has become deterministic, and the kernels can go."""
    fields = found("warn")
    assert (fields["FLASH_ATTENTION"], fields["EFFICIENT_ATTENTION"]) != (1, 1)
