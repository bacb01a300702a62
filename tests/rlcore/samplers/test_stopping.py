"""Stop strings are found at the token that completes them, wherever tokens meet, and reading them is cheap."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.samplers.stopping import StopText, reason
from rlcore.types import Messages, SamplingParams, StopReason

few = settings(max_examples=2 * settings().max_examples)


class PieceTokenizer:
    """Token n is the n-th piece of bytes; those that are no whole character come out as a replacement character."""

    vocab_size, eos_id, pad_id, stop_ids = 100, 0, 0, ()

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = list(pieces)
        self.num_decoded = 0

    def encode(self, text: str) -> list[int]:
        return [self.pieces.index(character.encode()) for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        self.num_decoded += len(tokens)
        return b"".join(self.pieces[token] for token in tokens).decode("utf-8", "replace")

    def save(self, directory: Path) -> None:
        raise AssertionError("nobody saves this one")

    def encode_prompt(self, prompt: str | Messages) -> tuple[str, list[int]]:
        raise NotImplementedError

    def is_saved_in(self, directory: Path) -> bool:
        return False


def first_found(tokens: Sequence[int], tokenizer: PieceTokenizer, stops: Sequence[str]) -> int | None:
    """The token that completes one of the texts, by decoding everything again each time."""
    for end in range(1, len(tokens) + 1):
        text = b"".join(tokenizer.pieces[token] for token in tokens[:end]).decode("utf-8", "ignore")
        if any(stop in text for stop in stops):
            return end - 1
    return None


@few
@given(
    st.text(alphabet="abé☕😀", max_size=30),
    st.lists(st.integers(1, 3), max_size=60),
    st.lists(st.text(alphabet="abé☕😀", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_a_stop_string_is_found_where_it_is_completed(text: str, sizes: list[int], stops: list[str]) -> None:
    """However the bytes of a text are cut into tokens, also amid a character."""
    rest, pieces = text.encode(), []
    for size in (*sizes, *[1] * len(text.encode())):
        pieces.append(rest[:size])
        rest = rest[size:]
    pieces = [piece for piece in pieces if piece]
    tokenizer = PieceTokenizer(pieces)
    watch = StopText(tokenizer, stops)
    found = next((place for place in range(len(pieces)) if watch.put(place)), None)
    assert found == first_found(range(len(pieces)), tokenizer, stops)


def test_reading_is_cheap() -> None:
    """Tokens decoded grow with the text, not with its square; also where they never make a character."""
    for piece in (b"a", b"\xff", b""):
        tokenizer = PieceTokenizer([piece])
        watch = StopText(tokenizer, ["zz"])
        assert not any(watch.put(0) for _ in range(1000))
        assert tokenizer.num_decoded <= 100_000


@pytest.mark.parametrize("stops", [["abc"], ["abc", "z"], ["z", "bc"]])
def test_every_character_of_a_stop_string_may_be_a_token(stops: list[str]) -> None:
    watch = StopText(PieceTokenizer([b"a", b"b", b"c"]), stops)
    assert [watch.put(token) for token in (0, 0, 1, 0, 1, 2)] == [False] * 5 + [True]


def test_a_stop_string_of_one_character_keeps_no_tail() -> None:
    watch = StopText(PieceTokenizer([b"a", b"b"]), ["b"])
    assert [watch.put(token) for token in (0, 0, 1)] == [False, False, True]
    assert watch.is_found


@pytest.mark.parametrize(
    ("token", "by_text", "expected"),
    [
        (9, True, StopReason.EOS),
        (5, True, StopReason.STOP_ID),
        (1, True, StopReason.STOP_STRING),
        (1, False, StopReason.LENGTH),
    ],
)
def test_reasons_have_an_order(token: int, by_text: bool, expected: StopReason) -> None:
    params = SamplingParams(max_tokens=2, stop_ids=(5, 9))
    assert reason([1, token], params, eos_id=9, by_text=by_text) == expected
