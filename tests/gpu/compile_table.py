"""Compiles every kernel of level invariant for GPUs that are not here, by Triton's own ptxas: no GPU is needed.

`python tests/gpu/compile_table.py [CAPABILITY ...]` (80 90 100 120 unless given) prints a table in Markdown: registers
of a thread + bytes that spill / KiB of shared memory, the most of a kernel's specialisations, and the matrix
instructions. Operations run on tensors without memory, of Qwen3-0.6B's shapes, so that kernels are specialised as in a
run. Kernels that read rows come last, in one sentence.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from rlcore.numerics import gpu
from rlcore.numerics.attention import attention, write_rows
from rlcore.numerics.level import following
from rlcore.numerics.log_softmax import token_logprobs_and_entropy
from rlcore.numerics.norms import last_sum, rms_norm
from rlcore.numerics.probe import GPU_STRATEGIES, with_gradients

CAPABILITIES = (80, 90, 100, 120)
SHARED_KIB = {80: 163, 90: 227, 100: 227, 120: 99}
"""That one program may have (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability")."""
NUM_SMS = {80: 108, 90: 132, 100: 148, 120: 188}


class Compiled(NamedTuple):
    """One specialisation of a kernel for one capability."""

    kernel: str
    capability: int
    registers: int
    spilled_bytes: int
    shared_kib: float
    instructions: str


class Driver:
    """A driver of a GPU that is not there."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # kernels are kept by it

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind


@contextmanager
def compiling(capability: int) -> Iterator[dict[str, list[Compiled]]]:
    """Compile what is launched inside, and launch nothing; specialisations by kernel."""
    found: dict[str, list[Compiled]] = {}
    run, machine = JITFunction.run, gpu.machine

    def compile_only(kernel: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> None:
        compiled = run(kernel, *given, grid=(1,), warmup=True, **named)
        constants = [str(named[name]) for name in ("BM", "BN", "BLOCK") if name in named]
        kinds = "fp32" if named.get("PRECISION") == "ieee" else ""
        name = " ".join(filter(None, (kernel.fn.__name__, "x".join(constants), kinds)))
        found.setdefault(name, []).append(_of(name, capability, compiled))

    driver.set_active(Driver(capability))
    gpu.machine = lambda device: gpu.Machine(divmod(capability, 10), NUM_SMS[capability])  # type: ignore[assignment]
    JITFunction.run = compile_only
    try:
        yield found
    finally:
        JITFunction.run, gpu.machine = run, machine


def _of(name: str, capability: int, compiled: Any) -> Compiled:
    text = compiled.asm["ptx"]
    kinds = {"wgmma": "wgmma", "tcgen05.mma": "tcgen05", "mma.sync": "mma.sync"}
    dump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(dump), "--dump-resource-usage", file.name]
        used = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", used))
    instructions = next((kind for found, kind in kinds.items() if found in text), "")
    spilled = int(numbers["STACK"]) + int(numbers["LOCAL"])
    return Compiled(name, capability, int(numbers["REG"]), spilled, compiled.metadata.shared / 1024, instructions)


def launch_products(dtype: torch.dtype) -> None:
    """Each tile, forward and both gradients."""
    x, weight, grad = _draw(4096, 1024, dtype), _draw(2048, 1024, dtype), _draw(4096, 2048, dtype)
    for tile in gpu.machine(x.device).products(dtype):
        gpu.product(x, weight, tile=tile)
        gpu.product(grad, weight, is_w_turned=True, tile=tile)
        gpu.product(grad, x, is_x_turned=True, is_w_turned=True, tile=tile)


def launch_others(dtype: torch.dtype) -> None:
    """Attention, decoded and of a full pass, and what is computed row by row."""
    q, k = _draw(8, 1024, 16, 128, dtype).transpose(1, 2), _draw(8, 1024, 8, 128, dtype).transpose(1, 2)
    attention(q[:, :, :1], k, k, torch.empty(8, dtype=torch.int64, device="meta"))
    with_gradients(attention, torch.empty_like(q), q, k, k)
    x, weight = _draw(4096, 1024, dtype), _draw(1024, dtype)
    with_gradients(partial(rms_norm, eps=1e-6), x, x, weight)
    gpu.swiglu(x)
    gpu.swiglu(x, _draw(4096, 512, dtype))
    logits, tokens = _draw(512, 151936, dtype), torch.empty(512, dtype=torch.int64, device="meta")
    read = lambda logits: torch.stack(token_logprobs_and_entropy(logits, tokens))  # noqa: E731
    with_gradients(read, _draw(2, 512, torch.float32), logits)
    last_sum(_draw(512, 1024, torch.float32))
    write_rows(_draw(4096, 128, dtype), torch.empty(64, dtype=torch.int64, device="meta"), _draw(64, 128, dtype))


def _draw(*shape: Any) -> Tensor:
    *sizes, dtype = shape
    return torch.empty(sizes, dtype=dtype, device="meta")


def table(capabilities: list[int]) -> str:
    """Return the table: a row for each kernel, a column for each capability."""
    found: dict[str, dict[int, str]] = {}
    kinds: dict[int, set[str]] = {}
    for capability in capabilities:
        with following(GPU_STRATEGIES[0]), compiling(capability) as compiled:
            for dtype in (torch.bfloat16, torch.float32):
                launch_products(dtype)
                launch_others(dtype)
        for name, some in compiled.items():
            registers, shared_kib = max(each.registers for each in some), max(each.shared_kib for each in some)
            spilled = max(each.spilled_bytes for each in some)
            text = f"{registers}{f'+{spilled}' if spilled else ''}/{shared_kib:.0f}"
            text += " TOO MUCH" if shared_kib > SHARED_KIB[capability] else ""
            found.setdefault(name, {})[capability] = text
            kinds.setdefault(capability, set()).update(each.instructions for each in some)
    head = ["kernel", *(f"sm_{each} {' '.join(sorted(filter(None, kinds[each])))}" for each in capabilities)]
    plain = [
        name for name, cells in found.items() if all(cell.endswith("/0") and "+" not in cell for cell in cells.values())
    ]
    lines = [head, ["---"] * len(head)]
    lines += [
        [f"`{name}`", *(cells.get(each, "") for each in capabilities)]
        for name, cells in found.items()
        if name not in plain
    ]
    most = max(int(re.split(r"[+/]", cell)[0]) for name in plain for cell in found[name].values())
    others = f"{len(plain)} kernels that read rows have at most {most} registers."
    return "\n".join([*(f"|{'|'.join(line)}|" for line in lines), "", others])


if __name__ == "__main__":
    print(table([int(word) for word in sys.argv[1:]] or list(CAPABILITIES)))
