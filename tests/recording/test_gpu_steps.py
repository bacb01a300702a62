"""What recording a step asks of a GPU: launches, copies and waits, counted on a stand-in; and what it reads."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from harness.bits.digests import shardsum
from harness.lab.experiment.recording_result import read_reports
from harness.recording.automatic import AutomaticRecorder
from harness.recording.process import ProcessLog
from harness.recording.recorder import Recorder, RecorderCallback, Sink, look
from harness.recording.run_spec import RunEnded, RunSpec
from harness.recording.tensors import Digested, tensor_bytes
from harness.trace import read_trace
from harness.trace.values import Float
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
        self.orders = SimpleNamespace(
            has_entry=False, callbacks={}, keep=(), op_step=None, all_state=False, last_step=None
        )
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

    def call(name: str, hook: Callable[..., Any], *arguments: Any) -> None:
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

        def after_step(optimizer: torch.optim.Optimizer = optimizer) -> None:
            recorder.after_step(optimizer)
            recorder._steps.finish()

        call("after step", after_step)
        optimizer.zero_grad()
    return found[-4:]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> CountedGpu:
    return pretend_gpu(monkeypatch)


GOES_ON, ENDS = nullcontext(), pytest.raises(RunEnded)
WEIGHTS = NUM_LAYERS * (WIDTH + 1) * WIDTH


def counts(launches: int, waits: int = 0) -> dict[str, int]:
    """What hooks ask for once addresses are known."""
    return {"launches": launches, "uploads": 0, "copies": launches, "waits": waits}


@pytest.mark.full
@pytest.mark.parametrize("clips", [False, True])
def test_a_hook_takes_one_launch_and_waits_for_the_step_before_it_alone(gpu: CountedGpu, clips: bool) -> None:
    """Weights and gradients are read twice, frozen weights once; large moments in every eighth step."""
    hooks = [(name, {**asked, "uploads": 0}, words) for name, asked, words in program_steps(gpu, 3, clips=clips)]
    assert hooks == [
        ("before backward", counts(1), 2 * WEIGHTS),
        ("after backward", counts(1), WEIGHTS),
        ("before step", counts(1), WEIGHTS),
        ("after step", counts(1, waits=4), WEIGHTS + 2 * NUM_LAYERS * WIDTH),
    ]


def test_an_update_of_the_engine_takes_a_launch_for_gradients_and_one_for_weights(gpu: CountedGpu) -> None:
    """40 gradients, 40 weights, each with AdamW's three states."""
    model = Model().trained
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, WIDTH)).sum().backward()
    optimizer.step()
    record = Record(Recorder(cast("Sink", Log())))
    record.begin_step(0)
    record.all("backward", ((name, each.grad) for name, each in model.named_parameters() if each.grad is not None))
    named = [(name, (each, *optimizer.state[each].values())) for name, each in model.named_parameters()]
    record.all("optimizer", ((name, value) for name, values in named for value in values))
    assert ({**gpu.taken(), "uploads": 0}, gpu.num_words) == (counts(2), 4 * WEIGHTS)


# --------------------------------------------------------------------------------------------- written a step later


def test_a_step_is_written_when_the_next_one_ends_or_somebody_asks(gpu: CountedGpu) -> None:
    log = Log()
    recorder = Recorder(cast("Sink", log))
    weight = torch.arange(100.0)
    for step in range(3):
        recorder.begin_step(step)
        (seen,) = look([("w", weight)])
        recorder.record_seen("forward", [seen])
        weight += 1
        recorder.end_step(loss=lambda step=step: Float.of(float(step)))
        assert (len(log.steps), gpu.taken()["waits"]) == (step, min(step, 1))
    assert recorder.flush() == {"loss": Float.of(2.0)}
    expected = [shardsum(tensor_bytes(torch.arange(100.0) + step), 4) for step in range(3)]
    assert [each.digest for values in log.steps for each in values] == expected, "as they were when they were recorded"


@pytest.mark.parametrize(
    ("how", "end"), [({"callbacks": [RecorderCallback()]}, nullcontext()), ({"last_step": 0}, ENDS)]
)
def test_a_step_that_a_callback_looks_at_and_the_last_one_are_written_at_once(
    how: Any, end: Any, gpu: CountedGpu
) -> None:
    recorder = Recorder(cast("Sink", log := Log()), **how)
    recorder.begin_step(0)
    recorder.record("forward", "w", torch.arange(100.0))
    with end:
        recorder.end_step()
    assert len(log.steps) == 1


def test_a_value_that_is_as_it_was_is_left_out_though_nobody_knew_when_it_was_recorded(gpu: CountedGpu) -> None:
    log = Log()
    recorder = Recorder(cast("Sink", log))
    weight, before = torch.arange(100.0), dict[str, Digested]()
    recorder.begin_step(0)
    for addend in (0, 0, 1):
        weight += addend
        (seen,) = look([("w", weight)])
        recorder.record_seen("forward", [seen], previous=before)
        before = {"w": seen.digested}
    recorder.end_step()
    assert gpu.taken()["waits"] == 0
    recorder.flush()
    assert [(each.occurrence, each.digest) for each in log.steps[0]] == [
        (0, shardsum(tensor_bytes(torch.arange(100.0)), 4)),
        (1, shardsum(tensor_bytes(torch.arange(100.0) + 1), 4)),
    ]


def test_a_step_that_is_held_is_written_before_the_steps_of_a_restart(gpu: CountedGpu, tmp_path: Path) -> None:
    log = ProcessLog(RunSpec(directory=str(tmp_path)))
    log.recorder = recorder = Recorder(log)

    def take(step: int) -> None:
        recorder.begin_step(step)
        recorder.record("forward", "w", torch.arange(100.0) + step)
        recorder.end_step()

    for step in (0, 1):
        take(step)
    log.repeat()
    for step in (1, 2):
        take(step)
    log.close()
    assert read_trace(tmp_path).ranks[0].columns(1).values()[0].digest == shardsum(
        tensor_bytes(torch.arange(100.0) + 1), 4
    )
    assert (read_trace(tmp_path).steps, log.is_recording) == ((0, 1, 2), False)
    assert not read_reports(tmp_path)[0].problem
