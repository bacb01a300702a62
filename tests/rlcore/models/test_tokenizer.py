"""Characters to tokens and back; token numbers follow from the alphabet."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcore.errors import InvalidValueError
from rlcore.models.tokenizer import BOS, SPECIAL, CharacterTokenizer, load_tokenizer

ALPHABET = "abcxyz 0123+=\\n<>é"


@given(st.text(ALPHABET))
def test_a_text_comes_back(text: str) -> None:
    tokenizer = CharacterTokenizer(ALPHABET)
    tokens = tokenizer.encode(text)
    assert len(tokens) == len(text)
    assert tokenizer.decode([SPECIAL.index(BOS), *tokens, tokenizer.eos_id, tokenizer.pad_id]) == text


@given(st.text([character for character in ALPHABET if character not in "<>"]))
def test_the_library_reads_a_text_alike(text: str) -> None:
    tokenizer = CharacterTokenizer(ALPHABET)
    assert tokenizer.backend.encode(text).ids == tokenizer.encode(text)


def test_numbers_follow_from_the_alphabet_alone(tmp_path: Path) -> None:
    one, two = CharacterTokenizer("cab"), CharacterTokenizer("abccc")
    assert one.encode("abc") == two.encode("abc") == [3, 4, 5]
    assert (one.pad_id, one.eos_id, one.vocab_size) == (0, 2, 6)
    one.save(tmp_path)
    assert load_tokenizer(tmp_path).encode("abc") == [3, 4, 5]


def test_text_never_makes_a_special_token() -> None:
    tokenizer = CharacterTokenizer("<>adp")
    assert tokenizer.decode(tokenizer.encode(SPECIAL[0])) == SPECIAL[0]
    assert tokenizer.pad_id not in tokenizer.encode(SPECIAL[0])


def test_what_has_no_token_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="'d' in a text"):
        CharacterTokenizer("abc").encode("abd")
