"""What recording a step asks of a GPU: launches, uploads and waits, counted on a stand-in; and what it reads."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from harness.recording.automatic import AutomaticRecorder
from harness.recording.gpu_batch import NUM_SAMPLES, SAMPLE_WORDS
from harness.recording.process import ProcessLog
from harness.recording.recorder import Recorder, Sink
from rlcore.log import Record
from tests.recording.counted_gpu import CountedGpu, pretend_gpu

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


Hook = tuple[str, dict[str, int], int]
"""Its name, what it asked of the GPU, and how many words were read."""


def program_steps(gpu: CountedGpu, num_steps: int, *, clips: bool = False) -> list[Hook]:
    """The hooks of the last of some steps of a program that knows of no recorder."""
    torch.manual_seed(0)
    recorder = AutomaticRecorder(cast("ProcessLog", Log()))
    model = Model()
    optimizer = torch.optim.AdamW(model.trained.parameters())
    recorder.see_optimizer(optimizer)
    found: list[Hook] = []

    def call(name: str, hook: Callable[..., None], *arguments: Any) -> None:
        with torch.no_grad():
            hook(*arguments)
        found.append((name, gpu.taken(), gpu.num_words))
        gpu.num_words = 0

    for _ in range(num_steps):
        loss = model(torch.ones(4, WIDTH)).square().mean()
        call("before backward", recorder.before_backward, loss)
        loss.backward()
        call("after backward", recorder.after_backward)
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        call("before step", recorder.before_step, optimizer)
        optimizer.step()
        call("after step", recorder.after_step, optimizer)
        optimizer.zero_grad()
    return found[-4:]


def engine_step(gpu: CountedGpu, recorder: Any) -> Hook:
    """What one update of rlcore's engine records: 40 gradients, 40 weights, each with AdamW's three states."""
    model = Model().trained
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, WIDTH)).sum().backward()
    optimizer.step()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    states = {name: (parameter, *optimizer.state[parameter].values()) for name, parameter in model.named_parameters()}
    record = Record(recorder)
    record.begin_step(0)
    record.all("backward", gradients.items())
    record.all("optimizer", ((name, value) for name, values in states.items() for value in values))
    words, gpu.num_words = gpu.num_words, 0
    return "update", gpu.taken(), words


class OneByOne:
    """A recorder of three calls."""

    def __init__(self, recorder: Recorder) -> None:
        self.begin_step, self.record, self.end_step = recorder.begin_step, recorder.record, recorder.end_step


def counts(launches: int, waits: int) -> dict[str, int]:
    return {"launches": launches, "uploads": waits, "waits": waits, "by torch": 0}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> CountedGpu:
    return pretend_gpu(monkeypatch)


WEIGHTS = NUM_LAYERS * (WIDTH + 1) * WIDTH
LARGE, SMALL = NUM_LAYERS * WIDTH * WIDTH, NUM_LAYERS * WIDTH
SAMPLES = NUM_LAYERS * NUM_SAMPLES * SAMPLE_WORDS


@pytest.mark.full
@pytest.mark.parametrize("clips", [False, True])
def test_a_hook_takes_a_launch_for_each_word_size_and_one_wait(gpu: CountedGpu, clips: bool) -> None:
    """Gradients are read once unless they are clipped, frozen weights not at all: of both, samples."""
    hooks = program_steps(gpu, 3, clips=clips)
    gradients = WEIGHTS if clips else SMALL
    assert hooks == [
        ("before backward", counts(2, 1), WEIGHTS + SMALL + SAMPLES),
        ("after backward", counts(1, 1), WEIGHTS + SAMPLES),
        ("before step", counts(2, 1), gradients + SAMPLES + SMALL + SAMPLES),
        ("after step", counts(2, 1), 3 * WEIGHTS),
    ]


def test_an_update_of_the_engine_takes_one_wait_for_gradients_and_one_for_weights(gpu: CountedGpu) -> None:
    assert engine_step(gpu, Recorder(cast("Sink", Log()))) == ("update", counts(3, 2), 4 * WEIGHTS)
    one_by_one = engine_step(gpu, OneByOne(Recorder(cast("Sink", Log()))))
    assert one_by_one == ("update", counts(200, 200), 4 * WEIGHTS)
