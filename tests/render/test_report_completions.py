"""Flipped tokens: found, cut to what was generated, and put into text without a tokenizer."""

import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.render.report.completions import MAX_SEQUENCES, MAX_STEPS, MAX_TOKENS, flipped_rollouts
from harness.render.report.shown_completions import MAX_SHOWN, Shown, ShownPair, read_shown, shown_pairs
from harness.render.report.views import MAX_BY_LETTER, MAX_SHOWN_CHARS, shown_view, visible
from harness.render.report.vocabulary import parse_vocabulary, read_vocabulary
from harness.trace.reader import Trace
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


def pair(
    directory: Path, a: Sequence[list[Kept]], b: Sequence[list[Kept]], *, keeps: bool = True
) -> tuple[Trace, Trace]:
    return trace_of_values(directory / "a", a), trace_of_values(directory / "b", b, keeps=keeps)


def test_the_sequences_that_differ_are_shown_without_their_filling(tmp_path: Path) -> None:
    a = step_of([[1, 2, 3], [4, 5], [6]], [0.5, 1.0, 0.0])
    b = step_of([[1, 2, 3], [4, 9, 1], [6]], [0.5, 0.25, 0.0])
    (found,) = flipped_rollouts(*pair(tmp_path, [a, a], [a, b]))
    assert (found.step, found.rank, found.name, found.num_sequences, found.num_flipped) == (1, 0, "tokens", 3, 1)
    (twin,) = found.sequences
    assert (twin.number, twin.a, twin.b, twin.num_prompt) == (1, (*PROMPT, 4, 5), (*PROMPT, 4, 9, 1), 2)
    assert twin.flipped == (3, 4)
    assert (twin.reward_a, twin.reward_b) == (1.0, 0.25)


def test_without_a_mask_and_rewards_all_is_shown(tmp_path: Path) -> None:
    a, b = step_of([[1, 2]], has_mask=False), step_of([[1, 3]], has_mask=False)
    ((twin,),) = [each.sequences for each in flipped_rollouts(*pair(tmp_path, [a], [b]))]
    assert (twin.a, twin.num_prompt, twin.reward_a, twin.flipped) == ((*PROMPT, 1, 2, PAD), 0, None, (3,))


def test_equal_tokens_and_tokens_that_were_not_kept_show_nothing(tmp_path: Path) -> None:
    a, b = step_of([[1, 2]]), step_of([[1, 3]])
    assert flipped_rollouts(*pair(tmp_path, [a], [a])) == []
    assert flipped_rollouts(*pair(tmp_path / "b", [a], [b], keeps=False)) == []
    assert flipped_rollouts(*pair(tmp_path / "c", [a], [step_of([[1, 3], [4, 5]])])) == []


def test_no_more_is_shown_than_somebody_reads(tmp_path: Path) -> None:
    a = step_of([[1] * (MAX_TOKENS + 9)] * (MAX_SEQUENCES + 5))
    b = step_of([[2] * (MAX_TOKENS + 9)] * (MAX_SEQUENCES + 5))
    found = flipped_rollouts(*pair(tmp_path, [a] * 9, [a, *[b] * 8]))
    assert [each.step for each in found] == list(range(1, 1 + MAX_STEPS))
    assert len(found[0].sequences) == MAX_SEQUENCES < found[0].num_flipped
    assert len(found[0].sequences[0].a) == MAX_TOKENS


# --------------------------------------------------------------------------------------------------- numbers to text


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<eos>"}]}, "ab<eos>"),
        ({"model": {"vocab": [["\u2581the", -1.5], ["x", -2.0]]}}, " thex"),
        (
            {"model": {"vocab": {"\u0120he": 0, "\u00c3\u00a9": 1, "\u00c3": 2}}, "decoder": {"type": "ByteLevel"}},
            " heé\\xc3",
        ),
        (
            {"model": {"vocab": {"\u0120he": 0, "漢": 1}}, "pre_tokenizer": {"pretokenizers": [{"type": "ByteLevel"}]}},
            " he漢",
        ),
        ({"model": {"vocab": {"\u0120he": 0}}, "decoder": None}, "\u0120he"),
    ],
)
def test_a_vocabulary_is_read_whatever_the_tokenizer(fields: dict[str, object], found: str) -> None:
    vocabulary = parse_vocabulary(fields)
    assert "".join(vocabulary[number] for number in sorted(vocabulary)) == found


def test_the_engines_own_tokenizer_is_read_as_it_decodes(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("rlcore.models.tokenizer")
    made = tokenizers.CharacterTokenizer("abc >\n")
    place = tmp_path / "checkpoints" / "step-000040" / "policy"
    place.mkdir(parents=True)
    made.backend.save(str(place / "tokenizer.json"))
    vocabulary = read_vocabulary(tmp_path)
    assert len(vocabulary) == made.vocab_size
    assert "".join(vocabulary[token] for token in made.encode("cab >\n")) == "cab >\n"


def test_the_latest_checkpoint_counts_and_what_is_no_tokenizer_is_passed_over(tmp_path: Path) -> None:
    assert read_vocabulary(tmp_path) == {}
    for step, text in (("000010", '{"model": {"vocab": {"old": 0}}}'), ("000020", '{"model": {"vocab": {"new": 0}}}')):
        place = tmp_path / "checkpoints" / f"step-{step}" / "policy"
        place.mkdir(parents=True)
        (place / "tokenizer.json").write_text(text, "utf-8")
    assert read_vocabulary(tmp_path) == {0: "new"}
    for broken in ("[]", '{"model": {}}', '{"model": {"vocab": 7}}', "{", '{"model": {"vocab": {"x": "y"}}}', "\0"):
        (tmp_path / "checkpoints" / "step-000020" / "policy" / "tokenizer.json").write_text(broken, "utf-8")
        assert read_vocabulary(tmp_path) == {0: "old"}


# ------------------------------------------------------------------------------------------------- what entries showed


def test_shown_completions_are_paired_by_prompt(tmp_path: Path) -> None:
    lines = [
        {"step": 0, "prompt": "p", "completion": "x", "answer": "a", "reward": 0.5},
        {"step": 10, "prompt": "p", "completion": "y", "reward": None},
        {"step": 10, "prompt": "q", "completion": "z"},
    ]
    text = "\n".join([*map(json.dumps, lines), "{", "[]", '{"step": "x"}', '{"step": 10}', '{"step": 10, "prom'])
    (tmp_path / "completions.jsonl").write_text(text, "utf-8")
    a = read_shown(tmp_path)
    assert a == [Shown(0, "p", "x", "a", 0.5), Shown(10, "p", "y", "", None), Shown(10, "q", "z", "", None)]
    b = [Shown(10, "p", "y", "", None), Shown(10, "q", "other", "", 1.0), Shown(20, "p", "w", "", None)]
    found = shown_pairs(a, b)
    assert [(each.a.prompt, each.is_different) for each in found] == [("q", True), ("p", False)]
    assert [each.a.completion for each in shown_pairs(a, None)] == ["y", "z"]
    assert shown_pairs(a, []) == shown_pairs([], None) == []
    assert len(shown_pairs(a[1:2] * 50, None)) == MAX_SHOWN
    assert read_shown(tmp_path / "nowhere") == []


def pieces_of(a: str, b: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """What is shown of two completions, in pieces, each with whether the other has something else there."""
    pair = ShownPair(*(Shown(1, "p", text, "", None) for text in (a, b)))
    one, other = (side["pieces"] for side in shown_view(pair)["sides"])
    return one, other


def test_what_two_runs_showed_is_told_by_letters_and_of_long_texts_by_words() -> None:
    assert pieces_of("abc", "abd") == ([("ab", False), ("c", True)], [("ab", False), ("d", True)])
    words = " ".join(f"word{number}" for number in range(MAX_BY_LETTER // 5))
    one, _ = pieces_of(f"{words} cat {words}", f"{words} car {words}")
    assert one == [(f"{words} ", False), ("cat ", True), (words, False)]
    whole, _ = pieces_of("x" * (MAX_SHOWN_CHARS + 7), "y")
    assert whole[0][0].endswith("x… and 7 more characters")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("a", "b"),
    [("a" * 5000, "ab" * 2500), ("a " * 5000, "a b " * 2500), ("a" * 200, "ab" * 100), ("x y " * 48, "y x " * 48)],
)
def test_a_model_that_repeats_itself_takes_no_time(a: str, b: str) -> None:
    one, other = pieces_of(a, b)
    assert ("".join(text for text, _ in one), "".join(text for text, _ in other)) == (a, b)


def test_what_is_not_seen_is_shown_but_for_what_joins_letters() -> None:
    family, persian = "\U0001f469\u200d\U0001f467", "\u0645\u06cc\u200c\u062e"
    assert (visible(family), visible(persian)) == (family, persian)
    assert visible("a\u200db") == "a\\u200db", "between these it means nothing"
    assert visible("\xe9\u200d\u200d\xe9") == "\xe9\\u200d\\u200d\xe9"
    assert visible("\xe9\u200d") == "\xe9\\u200d"
    assert visible("\u202ea\n\t\r\x1b") == "\\u202ea\u21b5\u21e5\u240d\\x1b"


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("completions.jsonl", "tokenizer.json"):
        os.mkfifo(tmp_path / name)
    assert read_shown(tmp_path) == []
    assert read_vocabulary(tmp_path) == {}
