"""Looks at the operations of a device, and picks the cheapest strategy that holds: seconds at start-up, seeded.

No library promises batch-invariant kernels; they are measured. A probe is finite, so it certifies what runs: give the
model's own product shapes. Each case is an operation on a part of a batch, which should have the bits that one thread
gave for the whole batch. Strategies are tried from cheap to dear, each on all cases, until one holds.

`python -m rlcore.numerics.probe` prints a JSON line for each device and type, for `rlharness doctor`: {"dtype",
"device"} and either {"problem"} or {"strategy", "length", "duration_s", "sizes"}, the last up to how many rows, or keys
of attention, torch's own operations and the strategy's keep the bits of a row. Widths are the probe's own there; a run
looks again, at those of its model.
"""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from torch import Tensor

from rlcore.errors import LevelError
from rlcore.numerics.activations import swiglu
from rlcore.numerics.attention import attention, visible
from rlcore.numerics.level import (
    ALL_THREADS,
    Strategy,
    check_invariant_device,
    check_settings,
    following,
    uses_triton,
)
from rlcore.numerics.log_softmax import log_softmax, token_logprobs_and_entropy
from rlcore.numerics.norms import rms_norm
from rlcore.numerics.product import hold_mkl_mode, linear

STRATEGIES = (Strategy(), Strategy("pad16_keys512", keys=512), Strategy("tile32", 32, 32, 64, is_tiled=True))
"""From cheap to dear. Torch's own operation is not among them, even where it seems to hold."""
GPU_STRATEGIES = Strategy("triton", is_triton=True), Strategy("triton_one_tile", is_tiled=True, is_triton=True)
"""The same for GPUs: tiles by the number of rows, or one tile for all."""
SHAPES = ((64, 64), (64, 192), (128, 344), (384, 384), (100, 37))
"""Products that are looked at where the model's own are not given."""
HEADS = ((4, 4, 16), (4, 2, 32), (6, 2, 64))
LENGTH = 128
MIN_LENGTH = 64
KEYS_AT_ONCE = 16
"""Lengths are certified, and caches are read, in such multiples."""
THREADS = (1, 2)
"""Numbers of threads with which every strategy is looked at; others where a run is to compute with them."""
PARTS = tuple(slice(first, first + rows) for first, rows in enumerate((1, 2, 3, 5, 7, 9, 15, 17, 33, 100)))
"""Rows that are computed alone: how many, and from where."""
NUM_ROWS = 128
GPU_ROWS = 4096
"""Rows of a batch on a GPU, whose libraries and tiles change up to there."""
MOST_NUMBERS = 1 << 27
"""In one tensor that the probe draws, beyond its first 128 rows."""
WIDEST_NORM = 16384
"""Of those that a GPU's kernel is compiled for: it holds a whole row."""
SIZES = (16, 64, 256, 1024, 4096)
"""Rows and keys that `main` looks at; on a CPU up to 256."""
SEED = 20260301
NORM = partial(rms_norm, eps=1e-6)
Shapes = Sequence[tuple[int, int]]
"""(inputs, outputs) of products."""
Heads = Sequence[tuple[int, int, int]]
"""(heads, kv_heads, width) of attention."""
Draw = Callable[..., Tensor]
Case = tuple[str, Sequence[Tensor], Sequence[Tensor]]
"""(what it is, the tensors that came out, those that should)."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One operation under one strategy: how often its bits were not those of the row alone."""

    operation: str
    strategy: str
    """"off" is torch's own operation, looked at so that it is seen what the strategy is for."""
    num_cases: int
    num_different: int
    first: str
    """The first case that differs; empty where all held."""

    def __str__(self) -> str:
        differ = f"{self.num_different} differ, first {self.first}"
        return f"{self.operation} {self.strategy}: {self.num_cases} cases, {differ}"


@dataclass(frozen=True, slots=True)
class InvarianceReport:
    """The cheapest strategy that holds for one type on a device, and what it was looked at with."""

    strategy: Strategy
    dtype: torch.dtype
    shapes: Shapes
    heads: Heads
    length: int
    """The most keys that attention was looked at with."""
    device: str = "cpu"

    @property
    def threads(self) -> tuple[int, ...]:
        """Numbers of threads that matter: on a GPU none does."""
        return THREADS if torch.device(self.device).type == "cpu" else THREADS[:1]


def machine() -> str:
    """Return what a report is good for: another of any of these may choose other kernels. It asks for no GPU."""
    isa = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__}, {platform.machine()} {isa}, {os.cpu_count()} cores"


@contextmanager
def num_threads(count: int, *phases: str) -> Iterator[None]:
    """torch computes with this many threads inside, which is in these phases of a step.

    Raises LevelError at the end if something inside has set another number, where a level of determinism is on.
    """
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
        if torch.are_deterministic_algorithms_enabled():
            check_num_threads(count, *phases)
    finally:
        torch.set_num_threads(before)


def check_num_threads(expected: int | None, *phases: str) -> int:
    """Check that torch computes with this number of threads; None: with any. Return its number. Raises LevelError."""
    found = torch.get_num_threads()
    if expected not in (None, found):
        raise LevelError(
            f"torch computes with {found} threads: something has set the number since, such as an import",
            legal=f"{expected}",
            remedy="leave torch.set_num_threads alone; runtime.training_threads and runtime.sampling_threads set it",
            phases=phases,
        )
    return found


def certify(
    dtype: torch.dtype = torch.float32,
    *,
    shapes: Shapes = SHAPES,
    heads: Heads = HEADS,
    length: int = LENGTH,
    device: str = "cpu",
) -> InvarianceReport:
    """Return the first of a device's strategies that holds for these products and heads.

    `length` is the most keys there will be. Raises LevelError where none holds. MKL's mode is held first
    (`hold_mkl_mode`).
    """
    hold_mkl_mode(os.environ)
    check_settings(ALL_THREADS)
    length = max(MIN_LENGTH, length + -length % KEYS_AT_ONCE)
    problems, strategies = [], STRATEGIES if torch.device(device).type == "cpu" else GPU_STRATEGIES
    for strategy in strategies:
        report = InvarianceReport(strategy, dtype, shapes, heads, length, device)
        different = [str(measurement) for measurement in measure(report) if measurement.num_different]
        if not different:
            return report
        problems += different
    raise LevelError(
        f"no kernel strategy is batch-invariant on {device} of this machine ({machine()}): {'; '.join(problems)}",
        legal=", ".join(strategy.name for strategy in strategies),
        remedy="determinism: deterministic, or another build of torch",
    )


def check_threads(report: InvarianceReport, count: int) -> None:
    """Check that a certified strategy gives the same bits with this number of threads; raise LevelError if not.

    No other strategy is tried: its bits would differ, and the number of threads should not affect results.
    """
    found = measure(report, (count,))
    if different := [str(measurement) for measurement in found if measurement.num_different]:
        raise LevelError(
            f"results differ bitwise between {count} threads and one ({machine()}): {'; '.join(different)}",
            legal=f"numbers of threads with equal results on this machine; {' and '.join(map(str, THREADS))} have them",
            remedy=f"runtime.sampling_threads and runtime.training_threads: {THREADS[-1]}",
        )


@contextmanager
def invariant(report: InvarianceReport) -> Iterator[None]:
    """Level invariant for what this context computes; undone however it ends.

    Entering and leaving compare bits that differ where the strategy is not at work. Raises LevelError where they do.
    """
    with following(replace(report.strategy, longest=report.length)):
        check_effect(report)
        yield
        check_effect(report)


def check_effect(report: InvarianceReport) -> None:
    """See that rows keep their bits now, in this process; a few milliseconds. Raises LevelError."""
    check_settings(ALL_THREADS)
    remedy = "certify again, in this process and with its settings: rlcore.numerics.probe.certify"
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        x, weight, q = (
            torch.randn(shape, generator=generator).to(report.device, report.dtype)
            for shape in ((64, 96), (96, 96), (2, 1, 48, 32))
        )
        rows = torch.cat([linear(x[[row]], weight) for row in range(3)])
        if not torch.equal(rows, linear(x, weight)[:3]):
            raise LevelError("matmul is not batch-invariant: rows differ between batch sizes 1 and 64", remedy=remedy)
        positions = [0, 7, 46]
        decoded = torch.cat([_attention_at(q, q, q, slice(position, position + 1)) for position in positions], 2)
        if not torch.equal(decoded, attention(q, q, q)[:, :, positions]):
            raise LevelError(f"attention at positions {positions} differs between decoding and one pass", remedy=remedy)


def measure(
    report: InvarianceReport, threads: Sequence[int] = (), *, is_naive: bool = False, num_rows: int = 0
) -> list[Measurement]:
    """Compare every case of a report with each of these numbers of threads; `is_naive`: torch's own operations.

    Batches have `num_rows` rows, on a GPU as many as its largest tiles want.
    """
    strategy, device = None if is_naive else report.strategy, torch.device(report.device)
    num_rows = num_rows or (GPU_ROWS if device.type == "cuda" else NUM_ROWS)
    measurements = []
    for operation, cases in (
        ("linear", partial(_product_cases, report.shapes, num_rows)),
        ("attention", partial(_attention_cases, report.heads, report.length)),
        ("rows", partial(_row_cases, report.shapes, num_rows)),
    ):
        num_cases, different = 0, []
        for count in threads or report.threads:
            generator = torch.Generator(device).manual_seed(SEED)

            def draw(*shape: int, generator: torch.Generator = generator) -> Tensor:
                return torch.randn(shape, generator=generator, device=device).to(report.dtype)

            with following(strategy), num_threads(count):
                for what, found, expected in cases(draw):
                    num_cases += 1
                    if not all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)):
                        different.append(f"{what}, threads {count}")
        name = strategy.name if strategy else "off"
        measurements.append(Measurement(operation, name, num_cases, len(different), "".join(different[:1])))
    return measurements


def held_sizes(report: InvarianceReport, sizes: Sequence[int]) -> list[dict[str, object]]:
    """Return up to which of these rows, or keys, each operation keeps its rows' bits: torch's own, and the strategy's.

    0 is for none of them.
    """
    strategies = STRATEGIES if torch.device(report.device).type == "cpu" else GPU_STRATEGIES
    found: dict[str, dict[str, object]] = {}
    for key, tried in (("torch", (None,)), ("ours", strategies)):
        lost = set[str]()
        for size in sizes:
            for strategy in tried:
                looked_at = replace(report, strategy=strategy or report.strategy, length=size)
                measured = measure(looked_at, is_naive=strategy is None, num_rows=size)
                if not any(each.num_different for each in measured):
                    break
            for each in measured:
                entry = found.setdefault(each.operation, {"operation": each.operation, "torch": 0, "ours": 0})
                if each.num_different:
                    lost.add(each.operation)
                elif each.operation not in lost:
                    entry[key] = size
    return [*found.values()]


def with_gradients(compute: Callable[..., Tensor], grad: Tensor, *inputs: Tensor) -> list[Tensor]:
    """Return [result, gradient of each input]."""
    own = [x.detach().clone().requires_grad_() for x in inputs]
    with torch.enable_grad():
        result = compute(*own)
        return [result.detach(), *torch.autograd.grad(result, own, grad)]


def _rows_of(num_rows: int, width: int) -> tuple[int, list[slice]]:
    """Return how many rows of this width are drawn, within memory, and those that are computed alone."""
    count = min(num_rows, max(NUM_ROWS, MOST_NUMBERS // width))
    return count, [part for part in (*PARTS, slice(NUM_ROWS, count)) if part.start < part.stop <= count]


def _product_cases(shapes: Shapes, num_rows: int, draw: Draw) -> Iterator[Case]:
    """Some rows of a product, forward and backward, alone; and the weight's gradient."""
    for inputs, outputs in dict.fromkeys(shapes):
        count, parts = _rows_of(num_rows, max(inputs, outputs))
        x, weight, grad = draw(count, inputs), draw(outputs, inputs), draw(count, outputs)
        with num_threads(1):
            y, dx, dw = with_gradients(linear, grad, x, weight)
        shape = f"{inputs} to {outputs}"
        by_weight = partial(linear, weight=weight)
        for part in parts:
            yield f"{len(x[part])} rows of {shape}", with_gradients(by_weight, grad[part], x[part]), (y[part], dx[part])
        if uses_triton():
            from rlcore.numerics import gpu

            yield from ((f"{shape} in {tile}", [by], [y]) for tile, by in gpu.products_by_tile(x, weight).items())
        yield f"weight of {shape}", with_gradients(linear, grad, x, weight), (y, dx, dw)


def _attention_cases(heads: Heads, length: int, draw: Draw) -> Iterator[Case]:
    """A pass in parts: one position decoded, alone, over fewer keys; a shorter pass; a part after a part."""
    for num_heads, num_kv_heads, width in dict.fromkeys(heads):
        q, grad = (draw(2, num_heads, length, width) for _ in range(2))
        k, v = (draw(2, num_kv_heads, length, width) for _ in range(2))
        with num_threads(1):
            whole = with_gradients(attention, grad, q, k, v)
        y = whole[0]
        shape = f"heads {num_heads}/{num_kv_heads} of {width}"
        own = (position for position in (0, 1, 6, 33) if position < length)
        for position in (*own, *range(15, length, 16)):  # so that each number of keys a cache is read by comes
            for keys in sorted({position + 1, length}):
                here = slice(position, position + 1)
                decoded = _attention_at(q[1:], k[1:, :, :keys], v[1:, :, :keys], here)
                yield f"position {position} over {keys} keys, {shape}", [decoded], [y[1:, :, here]]
        for here in (slice(3, 9), slice(length // 3, length - 7)):
            yield f"positions {here.start} to {here.stop}, {shape}", [_attention_at(q, k, v, here)], [y[:, :, here]]
        stride = 64 * -(-length // 1024)  # sixteen long passes at most: each costs the square of its length
        for count in (1, 5, 16, 33, *range(64, length, stride), length - 1):
            short = attention(q[:, :, :count], k[:, :, :count], v[:, :, :count])
            yield f"a pass of {count}, {shape}", [short], [y[:, :, :count]]
        yield f"gradients, {shape}", with_gradients(attention, grad, q, k, v), whole


def _row_cases(shapes: Shapes, num_rows: int, draw: Draw) -> Iterator[Case]:
    """Norms, SwiGLU and log-softmax of some rows, forward and backward; a gradient that is a sum over rows."""
    for width in sorted({width for shape in shapes for width in shape}):
        count, parts = _rows_of(num_rows, width)
        x, other, grad, weight = draw(count, width), draw(count, width), draw(count, width), draw(width)
        if uses_triton() and width > WIDEST_NORM:
            weight = weight[:0]
        with num_threads(1):
            whole = _row_operations(weight, x, other, grad)
            normed = with_gradients(NORM, grad, x, weight) if len(weight) else []
        for part in parts:
            found = _row_operations(weight, x[part], other[part], grad[part])
            yield f"{len(x[part])} rows of {width}", found, [result[part] for result in whole]
        if len(weight):
            yield "weight of a norm", with_gradients(NORM, grad, x, weight), normed


def _row_operations(weight: Tensor, x: Tensor, other: Tensor, grad: Tensor) -> list[Tensor]:
    """Compute each for these rows, and the gradient of each with respect to them; no norm without a weight."""
    found = [
        *(with_gradients(NORM, grad, x, weight)[:2] if len(weight) else ()),
        *with_gradients(swiglu, grad, torch.cat((x, other), -1)),
        *with_gradients(lambda logits: log_softmax(logits).to(logits.dtype), grad, x),
    ]
    if uses_triton():  # one kernel of its own, in place of log_softmax
        tokens = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        read = lambda logits: torch.stack(token_logprobs_and_entropy(logits, tokens), -1)  # noqa: E731
        found += with_gradients(read, grad[:, :2].float(), x)
    return found


def _attention_at(q: Tensor, k: Tensor, v: Tensor, here: slice) -> Tensor:
    """Attention of the queries of these positions."""
    seen = visible(torch.full((q.shape[0],), here.start, device=q.device), here.stop - here.start, k.shape[2])
    return attention(q[:, :, here], k, v, seen)


def main(*devices: str) -> None:
    """Print a line for each device and type."""
    for device, dtype in product(devices, (torch.float32, torch.bfloat16)):
        line: dict[str, object] = {"dtype": str(dtype).removeprefix("torch."), "device": device}
        began_s = time.perf_counter()
        try:
            check_invariant_device(device)
            report = certify(dtype, device=device)
        except LevelError as error:
            line["problem"] = error.what
        else:
            line |= {"strategy": report.strategy.name, "length": report.length}
            few = replace(report, shapes=SHAPES[:1], heads=HEADS[:1])
            line["sizes"] = held_sizes(few, SIZES[: 3 if device == "cpu" else None])
            line["duration_s"] = time.perf_counter() - began_s
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main("cpu", *["cuda"] * torch.cuda.is_available())
