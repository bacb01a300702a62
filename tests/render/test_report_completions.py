"""Flipped tokens: found, cut to what was generated, and put into text without a tokenizer."""

import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.lab.report.subjects import Pair, Subject
from harness.render.report.completions import (
    MAX_SEQUENCES,
    MAX_STEPS,
    MAX_TOKENS,
    flipped_rollouts,
    read_vocabulary,
    visible,
)
from harness.trace.diff import diff
from harness.trace.tensor_file import Kept
from tests.support.traces import trace_of_values, value

PROMPT, PAD = (7, 8), 0


def step_of(
    completions: Sequence[Sequence[int]], rewards: Sequence[float] = (), *, has_mask: bool = True
) -> list[Kept]:
    """A rollout as rlcore has it: prompt, completion, what fills it up; a mask of what was generated."""
    width = max(map(len, completions)) + len(PROMPT) + 1
    rows = [[*PROMPT, *each, *[PAD] * (width - len(PROMPT) - len(each))] for each in completions]
    mask = [[len(PROMPT) <= at < len(PROMPT) + len(each) for at in range(width)] for each in completions]
    shape = (len(rows), width)
    tokens = struct.pack(f"<{len(rows) * width}q", *(token for row in rows for token in row))
    made = [value("rollout", "tokens", "i64", shape, tokens)]
    if has_mask:
        made.append(value("rollout", "loss_mask", "bool", shape, bytes(each for row in mask for each in row)))
    if rewards:
        made.append(value("reward", "rewards", "f64", (len(rewards),), struct.pack(f"<{len(rewards)}d", *rewards)))
    return made


def flipped(directory: Path, a: Sequence[list[Kept]], b: Sequence[list[Kept]], *, keeps: bool = True) -> list[Any]:
    one, other = trace_of_values(directory / "a", a), trace_of_values(directory / "b", b, keeps=keeps)
    return list(flipped_rollouts(Pair(Subject("A", "a", one), Subject("B", "b", other), diff(one, other))))


def test_the_sequences_that_differ_are_shown_without_their_filling(tmp_path: Path) -> None:
    a = step_of([[1, 2, 3], [4, 5], [6]], [0.5, 1.0, 0.0])
    b = step_of([[1, 2, 3], [4, 9, 1], [6]], [0.5, 0.25, 0.0])
    (found,) = flipped(tmp_path, [a, a], [a, b])
    assert (found["title"], found["num_sequences"], found["num_flipped"], found["is_text"]) == ("Step 1", 3, 1, False)
    prompt = [("7 ", False), ("8 ", False), ("4 ", False)]
    assert found["sequences"] == [
        (1, [("A", [*prompt, ("5 ", True)], 1.0), ("B", [*prompt, ("9 ", True), ("1 ", True)], 0.25)])
    ]


def test_without_a_mask_and_rewards_all_is_shown(tmp_path: Path) -> None:
    a, b = step_of([[1, 2]], has_mask=False), step_of([[1, 3]], has_mask=False)
    ((_, ((_, tokens, reward), _)),) = flipped(tmp_path, [a], [b])[0]["sequences"]
    assert ("".join(text for text, _ in tokens), reward) == ("7 8 1 2 0 ", None)


def test_equal_tokens_and_tokens_that_were_not_kept_show_nothing(tmp_path: Path) -> None:
    a, b = step_of([[1, 2]]), step_of([[1, 3]])
    assert flipped(tmp_path, [a], [a]) == []
    assert flipped(tmp_path / "b", [a], [b], keeps=False) == []
    assert flipped(tmp_path / "c", [a], [step_of([[1, 3], [4, 5]])]) == []


def test_no_more_is_shown_than_somebody_reads(tmp_path: Path) -> None:
    a = step_of([[1] * (MAX_TOKENS + 9)] * (MAX_SEQUENCES + 5))
    b = step_of([[2] * (MAX_TOKENS + 9)] * (MAX_SEQUENCES + 5))
    found = flipped(tmp_path, [a] * 9, [a, *[b] * 8])
    assert [each["title"] for each in found] == [f"Step {at}" for at in range(1, 1 + MAX_STEPS)]
    assert len(found[0]["sequences"]) == MAX_SEQUENCES < found[0]["num_flipped"]
    assert len(found[0]["sequences"][0][1][0][1]) == MAX_TOKENS


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<eos>"}]}, "ab<eos>"),
        ({"model": {"vocab": [["\u2581the", -1.5], ["x", -2.0]]}}, " thex"),
        (
            {"model": {"vocab": {"\u0120he": 0, "\u00c3\u00a9": 1, "\u00c3": 2}}, "decoder": {"type": "ByteLevel"}},
            " heé\\xc3",
        ),
        ({"model": {"vocab": {"\u0120he": 0}}, "decoder": None}, "\u0120he"),
    ],
)
def test_a_vocabulary_is_read_whatever_the_tokenizer(tmp_path: Path, fields: dict[str, object], found: str) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(fields), "utf-8")
    vocabulary = read_vocabulary(tmp_path)
    assert "".join(vocabulary[number] for number in sorted(vocabulary)) == found


def test_the_latest_checkpoint_counts_and_what_is_no_tokenizer_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")  # not waited for
    assert read_vocabulary(tmp_path) == {}
    for step, text in (("000010", '{"model": {"vocab": {"old": 0}}}'), ("000020", '{"model": {"vocab": {"new": 0}}}')):
        place = tmp_path / "checkpoints" / f"step-{step}" / "policy"
        place.mkdir(parents=True)
        (place / "tokenizer.json").write_text(text, "utf-8")
    assert read_vocabulary(tmp_path) == {0: "new"}
    for broken in ("[]", '{"model": {"vocab": 7}}', "{", '{"model": {"vocab": {"x": "y"}}}', "\0"):
        (tmp_path / "checkpoints" / "step-000020" / "policy" / "tokenizer.json").write_text(broken, "utf-8")
        assert read_vocabulary(tmp_path) == {0: "old"}


def test_what_is_not_seen_is_shown() -> None:
    assert visible("\u202ea\n\t\r\x1b") == "\\u202ea\u21b5\u21e5\u240d\\x1b"
