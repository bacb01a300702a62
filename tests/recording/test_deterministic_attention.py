"""Gradients of torch's attention are computed in error mode, where its kernels are deterministic; nothing else is.

There is no GPU here. On the device "meta", autograd calls the same operations, and a dispatch mode sees the flags with
which they would reach their kernels. tests/gpu has the bits.
"""

import json
import subprocess
import sys

import pytest

from tests.support.suite_runs import environment

pytest.importorskip("torch")

PROGRAM = """
import json, sys, threading
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from harness.recording import determinism
from harness.recording.determinism import set_flags, without_effect

level = sys.argv[1]
found = {"without_effect": set_flags(level)}


class Spy(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        mode = torch.get_deterministic_debug_mode()
        seen.setdefault(func.name().removeprefix("aten::"), mode)
        return func(*args, **(kwargs or {}))


def attention(name):
    q = torch.empty(1, 2, 256, 16, device="meta", dtype=torch.bfloat16, requires_grad=True)
    operation = getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention")
    arguments = {"flash": (), "efficient": (None, True), "cudnn": (None, True)}[name]
    return q, operation(q, q, q, *arguments)[0]


def modes():
    # of the gradients of each kind of attention, and of all other operations
    global seen
    found, others = {}, set()
    for name in ("flash", "efficient", "cudnn"):
        seen = {}
        q, out = attention(name)
        with Spy():
            out.sum().backward()
        assert q.grad.shape == q.shape
        assert torch.get_deterministic_debug_mode() == (level == "deterministic")
        found[name] = seen[f"_scaled_dot_product_{name}_attention_backward"]
        others |= {mode for key, mode in seen.items() if "attention" not in key}
    return found, sorted(others)


found["plain"] = modes()
determinism.make_attention_deterministic("AutogradMeta")
found["hooked"] = modes()

q, out = attention("flash")
(first,) = torch.autograd.grad(out.sum(), q, create_graph=True)
try:
    first.sum().backward()
except RuntimeError as error:
    found["twice"] = str(error)

torch.use_deterministic_algorithms(True)
q, out = attention("flash")
out.sum().backward()
found["left"] = torch.get_deterministic_debug_mode()
torch.backends.cuda.enable_cudnn_sdp(True)
found["undone"] = without_effect()
print(json.dumps(found))
"""


def found(level: str) -> tuple[dict[str, object], str]:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, level]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fields: dict[str, object] = json.loads(done.stdout)
    return fields, done.stderr


def test_gradients_of_attention_run_in_error_mode_and_nothing_else_does() -> None:
    fields, told = found("deterministic")
    assert fields["plain"] == [{"flash": 1, "efficient": 1, "cudnn": 1}, [1]], "without our kernel"
    assert fields["hooked"] == [{"flash": 2, "efficient": 2, "cudnn": 2}, [1]]
    assert fields["without_effect"] == []
    assert fields["undone"] == ["torch.nn.functional.scaled_dot_product_attention"]
    assert fields["left"] == 2, "the program's own error mode stays"
    assert fields["twice"] == "derivative for aten::_scaled_dot_product_flash_attention_backward is not implemented"
    assert told == (
        "rlharness: cuDNN's attention has no deterministic gradients: select another backend with sdpa_kernel()\n"
    )


@pytest.mark.full
def test_at_level_off_nothing_is_changed() -> None:
    fields, told = found("off")
    assert fields["plain"] == fields["hooked"] == [{"flash": 0, "efficient": 0, "cudnn": 0}, [0]]
    assert told == ""
