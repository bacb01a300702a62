"""A run that stops within a step: the process's side. Orders lie in the pipe before the run begins."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.recording.recorder import Recorder
from harness.recording.stepping import Stepping
from harness.recording.stepping_messages import ANSWERS, ORDERS, recorded_value_of
from harness.recording.tensors import digest_tensor
from harness.trace.reader import Trace
from harness.trace.tensor_file import read_tensor
from tests.support.recorded_steps import record

TO_THE_END: Mapping[str, Any] = {"do": "run", "boundaries": False, "phases": [], "values": [], "position": None}
NEXT = {**TO_THE_END, "boundaries": True}


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


def stepped(directory: Path, *orders: Mapping[str, Any], **options: Any) -> tuple[Trace, list[dict[str, Any]]]:
    """(the trace, what was answered) of the program under these orders, given for step 1; then nobody asks any more."""
    directory.mkdir(exist_ok=True)
    for name in (ORDERS, ANSWERS):
        os.mkfifo(directory / name)
    writing = os.open(directory / ORDERS, os.O_RDWR)
    reading = os.open(directory / ANSWERS, os.O_RDONLY | os.O_NONBLOCK)
    for order in orders:
        os.write(writing, json.dumps(order).encode() + b"\n")
    stepping = Stepping(str(directory / ORDERS), str(directory / ANSWERS), 1, **options)
    os.close(writing)
    made = record(directory / "trace", program, stepping, keep=())
    answers = os.read(reading, 1 << 20).decode().splitlines()
    os.close(reading)
    return made, [json.loads(line) for line in answers]


def stops(answers: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """(why, phase, how many leaves before it) of each stop."""
    found, position = [], 0
    for answer in answers:
        position += answer["e"] == "value"
        if answer["e"] == "stopped":
            found.append((answer["why"], answer["phase"], position))
    return found


def test_it_stops_wherever_a_phase_begins_and_at_both_ends(tmp_path: Path) -> None:
    made, answers = stepped(tmp_path, *[NEXT] * 7)
    assert stops(answers) == [
        ("begin", "", 0),
        ("phase", "reward", 2),
        ("phase", "backward", 3),
        ("phase", "optimizer", 4),
        ("phase", "backward", 5),
        ("phase", "optimizer", 6),
        ("end", "", 7),
    ]
    assert answers[0] == {"e": "passed", "step": 0}
    assert answers[-1] == {"e": "passed", "step": 2}
    told = [recorded_value_of(answer["value"]) for answer in answers if answer["e"] == "value"]
    assert told == made.columns(1, 0).values()


@pytest.mark.parametrize(
    ("places", "stop"),
    [
        ({"phases": ["optimizer"]}, ("phase", "optimizer", 4)),
        ({"values": ["weight"]}, ("value", "", 4)),
        ({"values": ["optimizer/weight"]}, ("value", "", 5)),
        ({"position": 3}, ("phase", "backward", 3)),
        ({"position": 1}, ("pause", "rollout", 1)),
        ({"phases": ["sync"]}, ("end", "", 7)),
    ],
)
def test_it_stops_where_it_was_asked_to(tmp_path: Path, places: Mapping[str, Any], stop: tuple[str, str, int]) -> None:
    _, answers = stepped(tmp_path, {**TO_THE_END, **places}, TO_THE_END, TO_THE_END)
    assert stops(answers)[1] == stop


def test_looking_changes_no_bit(tmp_path: Path) -> None:
    show = {"do": "show", "value": 0, "indices": [[0, 4, 1]]}
    orders = [order for at in range(7) for order in (NEXT, {**show, "value": min(at, 1)})]
    made, _ = stepped(tmp_path / "looked", *orders, TO_THE_END)
    plain = record(tmp_path / "plain", program, keep=())
    assert [log.heads for log in made.ranks.values()] == [log.heads for log in plain.ranks.values()]
    assert made.curve == plain.curve


def test_values_are_those_that_were_recorded_whatever_the_program_does_to_them_later(tmp_path: Path) -> None:
    show = {"do": "show", "value": 3, "indices": [[0, 3, 1]]}
    save = {"do": "save", "value": 3, "path": str(tmp_path / "saved")}
    made, answers = stepped(tmp_path, TO_THE_END, show, save, TO_THE_END)
    shown, saved = answers[-3:-1]
    assert shown["is_as_recorded"] and saved == {"e": "saved", "is_as_recorded": True}
    recorded_value = made.columns(1, 0).values()[3]
    data = read_tensor(tmp_path / "saved", recorded_value)
    assert data is not None
    value = torch.frombuffer(bytearray(data), dtype=torch.float32)
    assert digest_tensor(value).digest == recorded_value.digest
    assert shown["range"]["max"] == float(value.max())


def test_what_is_too_large_to_be_copied_is_shown_as_it_is_now_and_says_so(tmp_path: Path) -> None:
    show = {"do": "show", "value": 3, "indices": [[0, 3, 1]]}
    _, answers = stepped(tmp_path, TO_THE_END, show, {**show, "value": 6}, TO_THE_END, max_copied_bytes=40)
    changed, unchanged = answers[-3:-1]
    assert not changed["is_as_recorded"]
    assert unchanged["is_as_recorded"]


def test_a_pause_stops_at_the_next_value_and_one_that_comes_late_does_nothing(tmp_path: Path) -> None:
    _, answers = stepped(tmp_path, TO_THE_END, {"do": "pause"}, TO_THE_END, TO_THE_END)
    assert stops(answers) == [("begin", "", 0), ("pause", "rollout", 0), ("end", "", 7)]
    (tmp_path / "late").mkdir()
    made, answers = stepped(tmp_path / "late", NEXT, NEXT, NEXT, NEXT, NEXT, NEXT, {"do": "pause"}, TO_THE_END)
    assert made.steps == (0, 1, 2)
    assert len(stops(answers)) == 7


def test_nobody_to_ask_ends_the_run(tmp_path: Path) -> None:
    made, answers = stepped(tmp_path, NEXT)
    assert stops(answers) == [("begin", "", 0)], "it does not go on to the place that somebody has asked for"
    assert made.steps == (0,)


# -------------------------------------------------------------------------------------------------------- describing
