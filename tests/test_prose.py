"""The texts that users read in code keep to the rules of prose, and the checker finds each planted breach."""

from pathlib import Path

import pytest

from tests.support.prose import banned_words, long_sentences, num_banned_of, sentences, texts_for_users

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("room", ["harness", "rlcore"])
def test_texts_for_users_have_no_banned_words(room: str) -> None:
    assert {package: num for package, num in num_banned_of(ROOT / room).items() if num} == {}


# ------------------------------------------------------------------------------------------- each check finds a breach

MODULE = '''
"""Nobody reads this module."""

import click

from harness.core.errors import UsageError

LIMIT = 3
"""What is told of it."""


class Kind:
    """A card."""

    def method(self):
        """Look behind."""

    def _hidden(self):
        """The place of a leaf."""


@click.command(short_help="A judgement.")
@click.option("--x", help="Stand inside, or " "otherwise.")
def command(x):
    """Go on."""
    problem = UsageError("whoever asks", legal="one lane")
    if x:
        raise refused(f"{x} is none", [f"in the {x} of a graft"])
    raise problem


def _private():
    """A hunt."""
    return "an envelope"
'''


def test_each_text_for_users_is_found_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(MODULE, "utf-8")
    texts = {each.text: each.line for each in texts_for_users(path)}
    assert sorted(texts) == sorted([
        "Nobody reads this module.", "What is told of it.", "A card.", "Look behind.", "A judgement.",
        "Stand inside, or otherwise.", "Go on.", "whoever asks", "one lane", "_ is none", "in the _ of a graft",
    ])  # fmt: skip
    assert texts["A card."] == 13
    assert sum(len(banned_words(text)) for text in texts) == 12
    assert num_banned_of(tmp_path) == {tmp_path.name: 12}


@pytest.mark.parametrize(
    "line", ["It is told.", "> The leaf", "[Two cards](x.md)", "| a | at this place |", "# Standing inside"]
)
def test_a_banned_word_is_found(line: str) -> None:
    assert len(banned_words(f"Good.\n\n{line}\n")) == 1


def test_code_and_comments_are_no_prose() -> None:
    page = "A `card` is ``told``.\n\n<!-- nobody -->\n```text\na leaf behind\n```\n[a GPU](card.md), in place of two\n"
    assert banned_words(page) == []


def test_a_long_sentence_is_found_and_a_short_one_is_not() -> None:
    long = " ".join(["word"] * 31)
    assert long_sentences(f"Short. {long}. Short.") == [f"{long}."]
    assert long_sentences(f"| {long} | a |\n") == [long]
    assert long_sentences("- " + " ".join(["word"] * 16) + "\n- " + " ".join(["word"] * 16)) == []
    assert long_sentences(" ".join(["`a b c`"] * 30)) == []
    assert sentences("One, e.g. two (three). rlharness exits: 3.5 s!\n\n1. A\n2. B") == [
        "One, e.g. two (three).", "rlharness exits: 3.5 s!", "A", "B",
    ]  # fmt: skip
