"""The texts that users read in code have no word of tests/words.txt, as codespell finds it; sentences are counted."""

import subprocess
from pathlib import Path

import pytest

from tests.support.prose import long_sentences, prose, sentences, texts_for_users

ROOT = Path(__file__).parents[1]


def banned_words(room: Path, scratch: Path) -> list[str]:
    """Return what codespell finds in the texts for users of a package: file, line, word and what to write."""
    texts = [each for path in sorted(room.rglob("*.py")) for each in texts_for_users(path)]
    lines = scratch / "texts"
    lines.write_text("".join(" ".join(prose(each.text).split()) + "\n" for each in texts), "utf-8")
    command = ["codespell", "-D", str(ROOT / "tests" / "words.txt"), str(lines)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [line.removeprefix(f"{lines}:").partition(": ") for line in done.stdout.splitlines()]
    assert (done.stderr, done.returncode) == ("", 65 if found else 0)
    return [f"{texts[int(number) - 1].path}:{texts[int(number) - 1].line}: {word}" for number, _, word in found]


@pytest.mark.parametrize("room", ["harness", "rlcore"])
def test_texts_for_users_have_no_banned_words(room: str, tmp_path: Path) -> None:
    assert banned_words(ROOT / room, tmp_path) == []


# ------------------------------------------------------------------------------------------- each check finds a breach

MODULE = '''
"""Nobody reads this module."""

import click

from harness.bits.errors import UsageError

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
    assert len(banned_words(tmp_path, tmp_path)) == 9
    assert banned_words(tmp_path, tmp_path)[0].startswith(f"{path}:")


def test_code_and_comments_are_no_prose() -> None:
    page = "A `card` is ``told``.\n\n<!-- nobody -->\n```text\na leaf behind\n```\n[a GPU](card.md), in place of two\n"
    assert " ".join(prose(page).split()) == "A _ is _. a GPU, in place of two"


def test_a_long_sentence_is_found_and_a_short_one_is_not() -> None:
    long = " ".join(["word"] * 31)
    assert long_sentences(f"Short. {long}. Short.") == [f"{long}."]
    assert long_sentences(f"| {long} | a |\n") == [long]
    assert long_sentences("- " + " ".join(["word"] * 16) + "\n- " + " ".join(["word"] * 16)) == []
    assert long_sentences(" ".join(["`a b c`"] * 30)) == []
    assert sentences("One, e.g. two (three). rlharness exits: 3.5 s!\n\n1. A\n2. B") == [
        "One, e.g. two (three).", "rlharness exits: 3.5 s!", "A", "B",
    ]  # fmt: skip
