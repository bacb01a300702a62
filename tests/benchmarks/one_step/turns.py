"""The child's side of a benchmark by turns: it waits for a word, takes one step, and says what the step took.

    parent ──a word──▶ child ──a line of JSON──▶ parent

    step      wall and processor time of the step and of its phases, and the process's peak memory so far
    products  seconds in matrix products and attention, by torch's profiler
    flops     floating-point operations of products and attention, by torch's counter

The end of the words is the end of the child. Whatever libraries print goes to standard error.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

aten = torch.ops.aten
ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
ONEDNN = "mkldnn::_linear_pointwise"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", ONEDNN, ATTENTION, f"{ATTENTION}_backward")


def peak_bytes() -> int:
    """The most memory this process has held at once, since it began or since somebody reset it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def attention_flops(q: list[int], k: list[int], *_: Any, **__: Any) -> int:
    """Of shapes [batch, heads, positions, width]: two products, as if every query saw every key."""
    return 4 * q[0] * q[1] * q[2] * k[2] * q[3]


def attention_backward_flops(_: Any, q: list[int], k: list[int], *__: Any, **___: Any) -> int:
    """Five products: one is computed again."""
    return 10 * q[0] * q[1] * q[2] * k[2] * q[3]


def linear_flops(x: list[int], weight: list[int], *_: Any, **__: Any) -> int:
    """Of [rows, inputs] and [outputs, inputs], by oneDNN."""
    return 2 * x[0] * x[1] * weight[0]


class Turns:
    """Words in, lines out, and a step measured between them."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._word, self._measuring = "", ExitStack()
        self._told: dict[str, float] = {}
        self._began = 0.0, 0.0
        self._peak_bytes = 0

    def say(self, **values: Any) -> None:
        """A line to the parent."""
        print(json.dumps(values), file=self._out, flush=True)

    def begin(self) -> bool:
        """Wait for a word and begin to measure; False where there is no more."""
        self._word = sys.stdin.readline().strip()
        self._told = {}
        if self._word == "products":
            self._profile = self._measuring.enter_context(profile(activities=[ProfilerActivity.CPU]))
        if self._word == "flops":
            formulas: dict[Any, Any] = {
                torch.ops.mkldnn._linear_pointwise: linear_flops,
                aten._scaled_dot_product_flash_attention_for_cpu: attention_flops,
                aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward_flops,
            }
            self._counter = self._measuring.enter_context(FlopCounterMode(display=False, custom_mapping=formulas))
        self._began = time.perf_counter(), time.process_time()
        return bool(self._word)

    def end(self) -> None:
        """The step is done: say what it took."""
        self.add("step", self._began)
        self._measuring.close()
        if self._word == "products":
            events = self._profile.key_averages()
            by_products = sum(event.self_cpu_time_total for event in events if event.key in PRODUCTS)
            self._told["products_share"] = by_products / sum(event.self_cpu_time_total for event in events)
        if self._word == "flops":
            self._told["flops"] = self._counter.get_total_flops()
        self.note_peak()
        self.say(**self._told, peak_bytes=self._peak_bytes)

    def note_peak(self) -> None:
        """Remember the highest so far, which somebody may be about to reset."""
        self._peak_bytes = max(self._peak_bytes, peak_bytes())

    def add(self, name: str, began: tuple[float, float]) -> None:
        """Put to a part's time what has passed since."""
        for kind, now, then in zip(("wall", "cpu"), (time.perf_counter(), time.process_time()), began, strict=True):
            key = f"{kind}/{name}"
            self._told[key] = self._told.get(key, 0.0) + now - then

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure a part of the step."""
        began = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.add(name, began)
