"""What pages show of the lab's commands is what they print."""

import os
import re
from pathlib import Path

import pytest

from harness.recording.stepping import COMMANDS
from tests.lab import examples
from tests.lab.examples import DEBUGGER_MARKS, PICTURES, REPLAY, REPLAY_MARKS, STAND, TYPED, WHY
from tests.support.manual import between, pages, section

TEXT = WHY.read_text("utf-8")
VERDICTS = {
    "diff": "DIVERGED  step 0: part 1 of the batch differs",
    "operation": "words.py:10 <module>",
    "deterministic": "EQUAL  5 steps, every recorded bit",
    "mended": "EQUAL  5 steps, every recorded bit",
    "chaos": "DIVERGED  runtime.num_parts=3 alone changes the gradient of weights at step 0",
    "sweep": "DIVERGED  step 0: the gradient of weights differs",
    "step": "mean.py:12 <genexpr>",
}
"""Of some blocks of output of the page on why runs differ, a line that the text around them is about."""


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the program diverges with two threads only")
def test_the_manual_shows_what_a_replay_prints() -> None:
    pytest.importorskip("torch")
    shown = between(*REPLAY_MARKS)
    assert examples.without_digits(shown) == examples.without_digits(examples.replay_example())


def test_the_manual_has_a_divergence_and_pictures_of_both_verdicts() -> None:
    shown = between(*REPLAY_MARKS)
    assert re.findall(r"^\$ (.*)$", shown, re.MULTILINE) == [REPLAY]
    assert re.findall(r"^(EQUAL|DIVERGED) ", shown, re.MULTILINE) == ["DIVERGED"]
    shown_in = "".join(page.read_text("utf-8") for page in pages().values())
    assert all(f".github/screenshots/{name}.svg)" in shown_in for name in PICTURES)


def test_the_dots_of_a_curve_stand_in_their_columns_whatever_the_font() -> None:
    svg = examples.terminal_picture("  1.5 │  ⠉⠒ A\n", "a curve")
    dots = re.search(r'x="([\d.]+)" y="[\d.]+" textLength="([\d.]+)"[^>]*>⠉⠒<', svg)
    assert dots is not None, "a segment whose length is theirs and that of letters would move the letters too"
    begin, length = map(float, dots.groups())
    assert begin == pytest.approx(9 * length / 2)


def test_the_example_of_the_debugger_is_of_these_commands() -> None:
    shown = between(*DEBUGGER_MARKS)
    assert shown.startswith(f"```console\n$ {STAND}\nat the beginning of step 4\n")
    assert tuple(re.findall(r"^\(step \d, [^)]*\) (.*)$", shown, re.MULTILINE)) == TYPED
    assert "reproduced, every bit\n" in shown


def test_every_command_of_the_debugger_is_documented() -> None:
    told = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", section("The step debugger"), re.MULTILINE))
    wanted = {f"{name} {usage}".strip(): does for name, (usage, does) in COMMANDS.items()}
    assert {name.replace("\\|", "|"): does.replace("`", "") for name, does in told.items()} == wanted


def test_the_picture_of_the_debugger_is_one() -> None:
    assert "(../../.github/screenshots/interactive.svg)" in section("The step debugger")
    assert (examples.SCREENSHOTS / "interactive.svg").read_text("utf-8").startswith("<svg")
    assert "next" in examples.debugger_picture("(step 4, beginning) next")


# ----------------------------------------------------------------------------------------------- why two runs differ


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_page_shows_what_its_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)  # which is what the example is about
    shown = examples.typed(TEXT, tmp_path)
    assert {name: line for name, line in VERDICTS.items() if line not in shown[name]} == {}
    assert examples.without_chance(examples.renewed(TEXT, shown)) == examples.without_chance(TEXT)
    assert {"report.html", "parts.html"} <= {path.name for path in tmp_path.iterdir()}


def test_every_line_that_the_text_is_about_stands_in_the_page() -> None:
    assert {line for line in VERDICTS.values() if line not in TEXT} == set()
    assert list(examples.files(TEXT)) == ["words.py", "mean.py", "mean.yaml"]
    kinds = re.findall(r"<!-- (\w+): ", TEXT)
    assert len(kinds) == len(re.findall(r"^```\w+$", TEXT, re.MULTILINE)), "each block of code has a mark"
    assert len(list(examples.commands(TEXT))) == TEXT.count("\n$ ")


def test_what_chance_decides_is_set_aside_and_nothing_else() -> None:
    a = "loss at step 0  A 0.80956715 (f32:3f4f3fcb)\n      1.012 │⠉⠉\nbaseline: 8.9 s; about 18 s left"
    b = "loss at step 0  A 1e-05 (f32:3f81969b)\n     0.9847 │⠒⠢ B\nbaseline: 18.9 s; about 2 min left"
    assert examples.without_chance(a) == examples.without_chance(b)
    assert examples.without_chance(a) != examples.without_chance(b.replace("loss", "kl"))
