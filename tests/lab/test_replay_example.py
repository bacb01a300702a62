"""The manual's example of replays is what they print."""

import os
import re

import pytest

from tests.lab import replay_example
from tests.lab.replay_example import BEGIN, END, EXAMPLE, PICTURES, example, picture, without_digits
from tests.support.manual import between, pages


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the program diverges with two threads only")
def test_the_manual_shows_what_the_commands_print() -> None:
    pytest.importorskip("torch")
    shown = between(BEGIN, END)
    assert without_digits(shown) == without_digits(example())


def test_the_manual_has_a_divergence_and_pictures_of_both_verdicts() -> None:
    shown = between(BEGIN, END)
    assert re.findall(r"^\$ (.*)$", shown, re.MULTILINE) == list(EXAMPLE)
    assert re.findall(r"^(EQUAL|DIVERGED) ", shown, re.MULTILINE) == ["DIVERGED"]
    shown_in = "".join(page.read_text("utf-8") for page in pages().values())
    assert all(f".github/screenshots/{name}.svg)" in shown_in for name in PICTURES)


def test_the_dots_of_a_curve_stand_in_their_columns_whatever_the_font(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_example, "shown", lambda *words: "  1.5 │  ⠉⠒ A\n")
    dots = re.search(r'x="([\d.]+)" y="[\d.]+" textLength="([\d.]+)"[^>]*>⠉⠒<', picture("rlharness replay", "a curve"))
    assert dots is not None, "a segment whose length is theirs and that of letters would move the letters too"
    begin, length = map(float, dots.groups())
    assert begin == pytest.approx(9 * length / 2)
