"""What recording a step asks of a GPU: launches, uploads and waits, counted on a stand-in; and what it reads.

`python tests/recording/test_gpu_steps.py` prints the table of harness/DESIGN.md.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn

from harness.recording.automatic import AutomaticRecorder
from harness.recording.process import ProcessLog
from tests.recording.counted_gpu import CountedGpu

NUM_LAYERS = 20
WIDTH = 160
"""So that weights are above the size from which digests are remembered."""


class Model(nn.Module):
    """Layers that are trained, and as many that are frozen: 40 parameters, 40 that nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        self.trained = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)))
        self.frozen = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS))).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for trained, frozen in zip(self.trained, self.frozen, strict=True):
            x = torch.tanh(trained(x) + frozen(x))
        return x


class Log:
    """The log of a process that records everything and writes nothing."""

    def __init__(self) -> None:
        self.orders = SimpleNamespace(has_entry=False, callbacks={}, keep=(), op_step=None)
        self.callbacks: list[Any] = []
        self.is_recording = True
        self.steps: list[list[Any]] = []

    def append(self, step: int, recorded_values: Any, tensors: Any) -> None:
        self.steps.append(list(recorded_values))

    def log_values(self, values: Any) -> None:
        self.values = values


def foreign_steps(gpu: CountedGpu, num_steps: int, *, clips: bool) -> Iterator[tuple[str, dict[str, int], int]]:
    """(hook, counts, words that were read) of the last of some steps of a program that knows of no recorder."""
    torch.manual_seed(0)
    log = Log()
    recorder = AutomaticRecorder(cast("ProcessLog", log))
    model = Model()
    optimizer = torch.optim.AdamW(model.trained.parameters())
    recorder.see_optimizer(optimizer)
    for _ in range(num_steps):
        found: list[tuple[str, dict[str, int], int]] = []

        def note(hook: str, *, found: list[tuple[str, dict[str, int], int]] = found) -> None:
            found.append((hook, gpu.taken(), gpu.num_words))
            gpu.num_words = 0

        loss = model(torch.ones(4, WIDTH)).square().mean()
        gpu.taken()
        with torch.no_grad():
            recorder.before_backward(loss)
        note("before backward")
        loss.backward()
        with torch.no_grad():
            recorder.after_backward()
        note("after backward")
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        with torch.no_grad():
            recorder.before_step(optimizer)
        note("before step")
        optimizer.step()
        with torch.no_grad():
            recorder.after_step(optimizer)
        note("after step")
        optimizer.zero_grad()
    yield from found
