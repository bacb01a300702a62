"""What a step hands to its recorder: the same values in the same order, one after the other or many at once."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from rlcore.observability.events import BatchExtended, Event, GradientsReduced, StepBegins, StepEnds, WeightsMoved
from rlcore.observability.recording import StepRecorder
from rlcore.trace import NullRecorder, Recorder


class Plain:
    """Takes values one after the other."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.num_calls = 0

    def begin_step(self, step: int) -> None:
        self.calls.append(("begin", str(step)))

    def record(self, phase: str, name: str, value: Any) -> None:
        self.num_calls += 1
        self.calls.append((phase, name, str(value)))

    def end_step(self, **values: Any) -> None:
        self.calls.append(("end", *values))


class AtOnce(Plain):
    """Takes many values at once, too."""

    def record_all(self, phase: str, values: Iterable[tuple[str, Any]]) -> None:
        self.num_calls += 1
        self.calls += [(phase, name, str(value)) for name, value in values]


def events() -> list[Event]:
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    batch: Any = {"ref_logprobs": torch.ones(2), "values": torch.zeros(2)}
    return [
        StepBegins(0, None),
        BatchExtended(batch, "reference", ("ref_logprobs", "values")),
        GradientsReduced("policy", gradients),
        WeightsMoved("policy", model, optimizer),
        StepEnds({"loss": 0.5}),
    ]


def test_many_at_once_are_the_same_values_in_one_call_for_each_event() -> None:
    plain, at_once = Plain(), AtOnce()
    for event in events():
        for recorder in (plain, at_once):
            StepRecorder(recorder).observe(event)
    assert at_once.calls == plain.calls
    assert (plain.num_calls, at_once.num_calls) == (2 + 2 + 8, 3)


def test_every_value_is_made_for_any_recorder() -> None:
    """Ranks make the values of sharded models together: one that records none takes part."""
    made: list[str] = []

    def own(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in named:
            made.append(name)
            yield name, tensor

    recorders: list[Recorder] = [NullRecorder(), Plain(), AtOnce()]
    for recorder in recorders:
        StepRecorder(recorder, own=own).observe(events()[2])
    assert made == ["weight", "bias"] * 3
