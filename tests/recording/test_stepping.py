"""A run that pauses within a step: the process's side. Lines lie in the pipe before the run begins."""

import json
import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from harness.recording import stepping
from harness.recording.program_state import kept_generators
from harness.recording.recorder import Recorder
from harness.recording.stepping import ANSWERS, ORDERS, Stepping
from harness.trace.reader import Trace
from tests.support.recorded_steps import record


def program(recorder: Recorder) -> None:
    """Three steps, in which the gradient is written to after it was recorded; numbers are drawn."""
    torch.manual_seed(7)
    weight = torch.zeros(3)
    for step in range(3):
        recorder.begin_step(step)
        recorder.record("rollout", "names", ["a", "b"])
        recorder.record("rollout", "pulls", torch.randint(5, (4,)))
        rewards = torch.rand(4)
        recorder.record("reward", "rewards", rewards)
        for _ in range(2):
            gradient = torch.rand(3)
            recorder.record("backward", "weight", gradient)
            gradient.mul_(0.5)
            weight += gradient
            recorder.record("optimizer", "weight", weight)
        recorder.end_step(reward_mean=rewards.mean())


class Person(threading.Thread):
    """Types a line whenever one is asked for; then nobody is there. After a pause, None, the next one comes at once."""

    def __init__(self, directory: Path, lines: Sequence[str | None]) -> None:
        super().__init__(daemon=True)
        self._answers, self._writing = directory / ANSWERS, os.open(directory / ORDERS, os.O_RDWR)
        self._lines = list(lines)
        self.messages: list[dict[str, Any]] = []

    def run(self) -> None:
        with self._answers.open() as answers:
            for answer in answers:
                self.messages.append(json.loads(answer))
                if not self._lines and self._writing >= 0:
                    os.close(self._writing)
                    self._writing = -1
                while self._lines:
                    line = self._lines.pop(0)
                    os.write(self._writing, json.dumps(line).encode() + b"\n")
                    if line is not None:
                        break


def stepped(directory: Path, *lines: str | None, **state: Any) -> tuple[Trace, list[dict[str, Any]]]:
    """(the trace, the answers) of the program, debugged at step 1 with these lines."""
    directory.mkdir(exist_ok=True)
    recorded = record(directory / "recorded", program, keep=())
    for name in (ORDERS, ANSWERS):
        os.mkfifo(directory / name)
    person = Person(directory, lines)
    person.start()
    hook = Stepping(str(directory), str(directory / "trace"), [str(recorded.directory)], **{"step": 1, **state})
    made = record(directory / "trace", program, hook, keep=())
    assert hook._console is not None
    os.close(hook._console.pipe._answers)
    person.join()
    return made, person.messages


def places(messages: list[dict[str, Any]]) -> list[str]:
    """Where the prompts were."""
    return [message["prompt"].split(", ")[1].rstrip(") ") for message in messages if "prompt" in message]


def said(messages: list[dict[str, Any]], number: int) -> str:
    """The answer to a line, by its number from 1 on."""
    return "\n".join(messages[number]["answer"]["lines"])


def test_it_pauses_wherever_a_phase_begins_and_at_both_ends(tmp_path: Path) -> None:
    made, messages = stepped(tmp_path, *["next"] * 6, "step", "continue")
    phases = ["before reward", "before backward", "before optimizer", "before backward", "before optimizer"]
    assert places(messages) == ["beginning", *phases, "end", "beginning", "end"]
    assert said(messages, 6).count("1 value: as recorded") == 1
    assert "its root digest is the recorded one, " in said(messages, 6)
    assert "7 values, every bit" in said(messages, 6)
    assert made.steps == (0, 1, 2)


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        (("next optimizer",), "before optimizer"),
        (("break optimizer", "c"), "before optimizer"),
        (("b weight", "c"), "after backward weight"),
        (("b optimizer/weight", "c"), "after optimizer weight"),
        (("next sync",), "end"),
        ((None, "b pulls", "c"), "after rollout pulls"),
    ],
)
def test_it_pauses_where_it_was_asked_to(tmp_path: Path, lines: tuple[str, ...], place: str) -> None:
    _, messages = stepped(tmp_path, *lines)
    assert places(messages)[-1] == place


def test_it_runs_up_to_a_position_again_and_proves_it(tmp_path: Path) -> None:
    _, messages = stepped(tmp_path / "first", *["next"] * 3, "back")
    again = messages[-1]["again"]
    assert (again["position"], len(again["before"])) == (3, 3)
    _, messages = stepped(tmp_path / "second", **again)
    assert places(messages) == ["before backward"]
    assert "3 values reproduced, every bit" in said(messages, 0)
    _, messages = stepped(tmp_path / "third", **{**again, "before": [*again["before"][:2], "00"]})
    assert "NOT reproduced: reward rewards has different bits" in said(messages, 0)


def test_what_is_typed_changes_no_bit_of_the_run_and_no_generator(tmp_path: Path) -> None:
    draws = ("p torch.rand(9)", "weight.sum().requires_grad", "p __import__('random').random()", "list", "show pulls")
    made, messages = stepped(tmp_path, "next", *draws, "p __import__('numpy').random.rand()", "step", "c")
    plain = record(tmp_path / "plain", program, keep=())
    assert [log.heads[step] for log in made.ranks.values() for step in (0, 1)] == [
        log.heads[step] for log in plain.ranks.values() for step in (0, 1)
    ]
    assert "***" not in json.dumps(messages)
    states = str((random.getstate(), numpy.random.get_state(), torch.get_rng_state().tolist()))
    with kept_generators():
        random.random(), numpy.random.rand(), torch.rand(3)
    assert states == str((random.getstate(), numpy.random.get_state(), torch.get_rng_state().tolist()))


def test_values_are_those_that_were_recorded_whatever_the_program_writes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("next optimizer", "show backward/weight", "p gradient - backward", "next", "next", "show weight#0")
    _, messages = stepped(tmp_path / "copied", *lines, "show backward/weight#0", "show gradient")
    assert "has written to it" not in said(messages, 7)
    monkeypatch.setattr(stepping, "MAX_COPIED_BYTES", 56)
    _, messages = stepped(tmp_path / "held", *lines, "show backward/weight#0")
    assert said(messages, 7).endswith("the program has written to it since it was recorded; this is its current value")


def test_a_nan_is_a_stop_and_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, messages = stepped(tmp_path / "without", "break nan", "c")
    assert places(messages)[-1] == "end"
    monkeypatch.setattr(torch, "zeros", lambda size: torch.full((size,), float("nan")))
    _, messages = stepped(tmp_path / "with", "break nan", "c", "list")
    assert places(messages)[-1] == "after optimizer weight"
    assert "1 with NaN, first weight" in said(messages, 2)
    assert "  =  weight  f32 [3]  nan" in said(messages, 3)


def test_names_of_values_are_known_where_no_variable_has_them_and_errors_are_answers(tmp_path: Path) -> None:
    lines = (
        "next",
        "names",
        "p len(names)",
        "p rewards[0",
        "p 1 / 0",
        "back 3",
        "show nothing",
        "nothing",
        "compare x",
    )
    _, messages = stepped(tmp_path, *lines)
    assert said(messages, 2) == "['a', 'b']"
    assert said(messages, 3) == "2"
    refused = [line for each in messages for line in each["answer"]["lines"][:1] if line.startswith("***")]
    assert refused[0].startswith("*** SyntaxError")
    assert refused[1:3] == ["*** ZeroDivisionError: division by zero", "*** 'back 3'"]
    assert refused[3:5] == ["*** NameError: name 'nothing' is not defined"] * 2
    assert refused[5] == "*** no value 'x' is recorded so far"
