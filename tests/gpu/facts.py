"""Measure on a GPU what only a GPU can show: `python tests/gpu/facts.py PART`, from the root of a checkout.

Each part appends one line of JSON for each fact to the file that $GPU_FACTS names, prints it too, and continues after a
failure, which is a fact as well. `--device cpu` tries a part on the host with small sizes; parts that read the driver
then report what they cannot do. `settle.sh` runs all of them, and `facts_page.py` makes a page of their lines.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

FACTS_FILE = "GPU_FACTS"
GIB = 2**30
COUNTS = (1, 2, 7, 15, 16, 17, 64, 1000)
"""Numbers of rows whose bits are compared with those of the same rows in a large batch."""


class Part:
    """One part: where its facts go, and the device that it measures."""

    def __init__(self, name: str, device: str) -> None:
        self.name = name
        self.device = device
        self.is_gpu = device == "cuda"

    def fact(self, name: str, value: object) -> None:
        """Write one fact, whose value is what JSON knows, or its text."""
        line = json.dumps({"part": self.name, "fact": name, "value": value}, default=str)
        print(line, flush=True)
        if path := os.environ.get(FACTS_FILE):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    @contextmanager
    def tried(self, name: str) -> Iterator[None]:
        """Report an exception as a fact, with its traceback on standard error."""
        try:
            yield
        except Exception as error:  # whatever it is, it is a fact, and the next measurement follows
            traceback.print_exc()
            self.fact(f"{name}: failed", f"{type(error).__name__}: {str(error)[:300]}")

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def seconds(self, function: Callable[[], object], times: int = 5) -> float:
        """Return the seconds of one call, the least of several."""
        function()
        self.wait()
        best = float("inf")
        for _ in range(times):
            began = time.perf_counter()
            function()
            self.wait()
            best = min(best, time.perf_counter() - began)
        return best


# ---------------------------------------------------------------------------------------------------------- the driver


def nvml(part: Part) -> None:
    """What the driver answers raw, what rlharness makes of it, and what a context adds."""
    import pynvml

    from harness.machine.gpus import read_inventory
    from harness.machine.nvml import compute_processes, display_bytes, fabric_problem, memory_of

    pynvml.nvmlInit()
    began = time.perf_counter()
    for index in range(pynvml.nvmlDeviceGetCount()):
        with part.tried(f"GPU {index}"):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            questions: dict[str, Callable[[Any], object]] = {
                "name": pynvml.nvmlDeviceGetName,
                "memory v1": pynvml.nvmlDeviceGetMemoryInfo,
                "memory v2": lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2),
                "NUMA node": pynvml.nvmlDeviceGetNumaNodeId,
                "MIG mode": pynvml.nvmlDeviceGetMigMode,
                "display active": pynvml.nvmlDeviceGetDisplayActive,
                "persistence": pynvml.nvmlDeviceGetPersistenceMode,
                "compute mode": pynvml.nvmlDeviceGetComputeMode,
                "remapped rows": pynvml.nvmlDeviceGetRemappedRows,
                "events": lambda handle: hex(pynvml.nvmlDeviceGetSupportedEventTypes(handle)),
                "read: total, used": memory_of,
                "read: processes": lambda handle: [str(process) for process in compute_processes(handle)],
                "read: display": display_bytes,
                "read: fabric": fabric_problem,
            }
            for name, question in questions.items():
                try:
                    part.fact(f"GPU {index} {name}", " ".join(str(question(handle)).split()))
                except pynvml.NVMLError as error:
                    part.fact(f"GPU {index} {name}", f"{type(error).__name__}: {error}")
    part.fact("seconds to ask all", round(time.perf_counter() - began, 3))
    began = time.perf_counter()
    found = read_inventory("auto", os.environ)
    part.fact("inventory", [str(gpu) for gpu in found.gpus])
    part.fact("inventory, left out", [left_out.reason for left_out in found.left_out])
    part.fact("seconds of the inventory", round(time.perf_counter() - began, 3))
    with part.tried("context"):
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        before = memory_of(handle)
        torch.zeros(1, device="cuda")
        after = memory_of(handle)
        part.fact("a context holds, MB", round((after[1] - before[1]) / 1e6) if before and after else None)
        part.fact("processes with our context", [str(process) for process in compute_processes(handle)])
    pynvml.nvmlShutdown()


HOLDER = """
import sys, time, torch
kind, gib = sys.argv[1], int(sys.argv[2])
if kind == "memory":
    held = [torch.empty(2**30, dtype=torch.uint8, device="cuda").fill_(1) for _ in range(gib)]
elif kind == "pinned":
    torch.zeros(1, device="cuda"); held = [torch.empty(2**30, dtype=torch.uint8, pin_memory=True) for _ in range(gib)]
else:
    torch.ones(1, device="cuda").sum().item()
    for _ in range(64): torch.cuda._sleep(2**40)
if kind != "kernel": torch.cuda.synchronize()
print("ready", flush=True)
time.sleep(600)
"""


def kill(part: Part) -> None:
    """Seconds from SIGKILL until a process is gone, and until its memory is back: the limits of a lease's end."""
    import pynvml

    from harness.machine.inventory import IDLE_MEMORY_BYTES
    from harness.machine.nvml import memory_of

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    total, used = memory_of(handle) or (0, 0)
    pinned = min(32, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // GIB // 4)
    for kind, gib in (("memory", 2), ("memory", max(2, (total - used) // GIB - 8)), ("pinned", pinned), ("kernel", 0)):
        with part.tried(f"SIGKILL of {kind} {gib} GiB"):
            base = (memory_of(handle) or (0, 0))[1]
            child = subprocess.Popen([sys.executable, "-c", HOLDER, kind, str(gib)], stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            child.stdout.readline()
            child.send_signal(signal.SIGKILL)
            began = time.perf_counter()
            gone = back = None
            while (passed := time.perf_counter() - began) < 90 and None in (gone, back):
                if gone is None and child.poll() is not None:
                    gone = round(passed, 2)
                if back is None and (memory_of(handle) or (0, 0))[1] - base < IDLE_MEMORY_BYTES:
                    back = round(passed, 2)
                time.sleep(0.01)
            part.fact(f"SIGKILL of {kind} {gib} GiB: process gone, memory back, s", [gone, back])
    pynvml.nvmlShutdown()


# ------------------------------------------------------------------------------------------------------------ numbers


def digest(part: Part) -> None:
    """Digests where the tensors lie: equal to the reference for every dtype and layout, across word 2^31, and fast."""
    from harness.bits.digests import packsum, shardsum
    from harness.bits.shard_sums import Shard
    from harness.recording.tensors import digest_placed, tensor_bytes

    differing = []
    names = [name for name in dir(torch) if name.startswith(("float8", "bfloat16", "float16", "float32", "float64"))]
    names += ["uint8", "bool", "int16", "int32", "int64", "complex64", "complex128"]
    for name in names:
        dtype = getattr(torch, name)
        size = torch.empty(0, dtype=dtype).element_size()
        for layout in ("flat", "transposed", "stepped", "offset"):
            raw = torch.randint(2 if name == "bool" else 256, (4100 * size,), dtype=torch.uint8).view(dtype)
            host, there = (_laid_out(tensor, layout) for tensor in (raw, raw.to(part.device)))
            with part.tried(f"digest of {name}, {layout}"):
                summed = packsum if size < 4 and part.is_gpu else shardsum
                if digest_placed([_shard(there)])[0].digest != summed(tensor_bytes(host), size):
                    differing.append(f"{name} {layout}")
    part.fact("dtypes and layouts that differ from the reference", differing)
    words = torch.randint(-(2**31), 2**31 - 1, (5000,), dtype=torch.int32)
    for first in (2**31 - 6000, 2**31 - 3000, 2**31 + 7, 2**32 - 3000):
        with part.tried(f"5000 words from {first}"):
            shard = Shard(words.to(part.device), (first + 5000,), (first,))
            part.fact(f"5000 words from {first} have the reference's digest", _is_reference(shard, words, first))
    _digest_speed(part)


def _laid_out(flat: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "transposed":
        return flat.view(41, 100).t()
    return {"flat": flat, "stepped": flat.view(41, 100)[::3, 1::2], "offset": flat[1:]}[layout]


def _shard(tensor: torch.Tensor) -> Any:
    from harness.recording.tensors import shard_of

    return shard_of(tensor)


def _is_reference(shard: Any, words: torch.Tensor, first: int) -> bool:
    from harness.bits.digests import shardsum
    from harness.recording.tensors import digest_placed, tensor_bytes

    return bool(digest_placed([shard])[0].digest == shardsum(tensor_bytes(words), 4, first))


def _digest_speed(part: Part) -> None:
    from harness.recording.tensors import digest_placed

    size = GIB if part.is_gpu else 2**20
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=part.device)
    target = torch.empty_like(source)
    copied = 2 * size / part.seconds(lambda: target.copy_(source)) / 1e9
    part.fact("copy, read and written, GB/s", round(copied))
    for name in ("float32", "bfloat16", "uint8", "int64"):
        with part.tried(f"digest of {name}"):
            shard = _shard(source.view(getattr(torch, name)))
            reached = size / part.seconds(lambda shard=shard: digest_placed([shard])) / 1e9  # type: ignore[misc]
            part.fact(f"digest of {name}, GB/s and part of the copy", [round(reached), round(reached / copied, 2)])
    many = [torch.randn(4096, device=part.device) for _ in range(300 if part.is_gpu else 30)]
    together = part.seconds(lambda: digest_placed(many))
    apart = part.seconds(lambda: [digest_placed([each]) for each in many])
    part.fact(f"{len(many)} tensors of 4096, digested together and one by one, ms", [_ms(together), _ms(apart)])


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)


def rows(part: Part) -> None:
    """Number of rows from which the reduction of a row has other bits: norms and means of a batch-invariant engine."""
    widths = (16, 64, 128, 172, 256, 384, 1024, 4096) if part.is_gpu else (64, 256)
    operations: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "norm": lambda x: torch.linalg.vector_norm(x.float(), dim=-1),
        "mean": lambda x: x.float().mean(-1),
        "log_softmax": lambda x: torch.log_softmax(x, -1, dtype=torch.float32),
    }
    for dtype in (torch.float32, torch.bfloat16):
        for width in widths:
            batch = torch.randn(2048, width, device=part.device, dtype=dtype)
            differing = {name: _other_bits(operation, batch, COUNTS) for name, operation in operations.items()}
            part.fact(f"{dtype} rows of {width}: numbers of rows with other bits than 2048", differing)


def _other_bits(
    operation: Callable[[torch.Tensor], torch.Tensor], batch: torch.Tensor, counts: tuple[int, ...]
) -> list[int]:
    whole = operation(batch)
    return [count for count in counts if not torch.equal(operation(batch[:count].clone()), whole[:count])]


def products(part: Part) -> None:
    """Numbers of rows that give a row of a product other bits than a prefill does."""
    torch.set_float32_matmul_precision("highest")
    most = 16384 if part.is_gpu else 256
    shapes = ((64, 384), (384, 1536), (1024, 4096), (4096, 32000)) if part.is_gpu else ((64, 128),)
    counts = tuple(count for count in (1, 16, 32, 48, 64, 128, 256, 1024, 4096, 8192) if count < most)
    for dtype in (torch.float32, torch.bfloat16):
        for inputs, outputs in shapes:
            with part.tried(f"{dtype} {inputs} to {outputs}"):
                weight = torch.randn(outputs, inputs, device=part.device, dtype=dtype)
                batch = torch.randn(most, inputs, device=part.device, dtype=dtype)
                differing = _other_bits(lambda x, weight=weight: functional.linear(x, weight), batch, counts)  # type: ignore[misc]
                part.fact(f"{dtype} {inputs} to {outputs}: numbers of rows with other bits than {most}", differing)


def attention(part: Part) -> None:
    """Whether gradients of torch's attention repeat under each determinism mode: `warn` is the level deterministic."""
    length = 1024 if part.is_gpu else 32
    for dtype in (torch.float32, torch.bfloat16):
        for heads, kv_heads, width in ((8, 8, 64), (8, 2, 64)):
            sizes = heads, kv_heads, kv_heads
            inputs = [
                torch.randn(1, n, length, width, device=part.device, dtype=dtype, requires_grad=True) for n in sizes
            ]
            for mode in ("default", "warn", "error"):
                name = f"{dtype}, heads {heads}/{kv_heads}, mode {mode}"
                torch.set_deterministic_debug_mode(mode)
                try:
                    with part.tried(name):
                        first = _gradients(inputs)
                        num_other = sum(not _are_equal(first, _gradients(inputs)) for _ in range(20))
                        part.fact(f"{name}: of 20 backward passes, with other gradients", num_other)
                finally:
                    torch.set_deterministic_debug_mode("default")


def _gradients(inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    q, k, v = inputs
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return torch.autograd.grad(out.float().square().sum(), inputs)


def _are_equal(first: tuple[torch.Tensor, ...], second: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# --------------------------------------------------------------------------------------------------------------- a step


class Block(torch.nn.Module):
    """One layer of a decoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.ModuleList(torch.nn.RMSNorm(width) for _ in range(2))
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm[0](x)).view(*x.shape[:2], 3, -1, 64).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        result: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm[1](x))))
        return result


def step(part: Part) -> None:
    """Milliseconds of steps of a decoder of 1e9 parameters with AdamW: `settle.sh` runs it alone, and traced."""
    width, layers, tokens = (2048, 20, 2048) if part.is_gpu else (64, 2, 32)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block(width) for _ in range(layers))).to(part.device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    part.fact("parameters", sum(parameter.numel() for parameter in model.parameters()))
    batch = torch.randn(4 if part.is_gpu else 1, tokens, width, device=part.device, dtype=torch.bfloat16)
    told = []
    for _ in range(8):
        part.wait()
        began = time.perf_counter()
        model(batch).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        part.wait()
        told.append(_ms(time.perf_counter() - began))
    part.fact("steps, ms", told)


PARTS = {each.__name__: each for each in (nvml, kill, digest, rows, products, attention, step)}
DRIVER_PARTS = ("nvml", "kill")


def main() -> int:
    """Measure one part; 0 unless a GPU is asked for that is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "has-gpu"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--name", help="name of the part in its facts, in place of its own")
    arguments = parser.parse_args()
    part = Part(arguments.name or arguments.part, arguments.device)
    if arguments.part == "has-gpu":
        return 0 if torch.cuda.is_available() else 1
    if (part.is_gpu or arguments.part in DRIVER_PARTS) and not torch.cuda.is_available():
        part.fact("not done", "no CUDA device is visible")
        return 0
    with part.tried(part.name):
        PARTS[arguments.part](part)
    return 0


if __name__ == "__main__":
    sys.exit(main())
