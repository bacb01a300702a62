"""The manual's example of the step debugger is such as the command prints."""

import re
from pathlib import Path

from harness.recording.stepping import COMMANDS
from tests.lab.inside_example import MARKS, STAND, TYPED, picture
from tests.support.manual import between, section

ROOT = Path(__file__).parents[2]


def test_the_example_is_of_these_commands() -> None:
    shown = between(*MARKS)
    assert shown.startswith(f"```console\n$ {STAND}\nat the beginning of step 4\n")
    assert tuple(re.findall(r"^\(step \d, [^)]*\) (.*)$", shown, re.MULTILINE)) == TYPED
    assert "reproduced, every bit\n" in shown


def test_every_command_of_the_prompt_is_documented() -> None:
    told = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", section("The step debugger"), re.MULTILINE))
    wanted = {f"{name} {usage}".strip(): does for name, (usage, does) in COMMANDS.items()}
    assert {name.replace("\\|", "|"): does.replace("`", "") for name, does in told.items()} == wanted


def test_the_picture_is_one() -> None:
    assert "(../../.github/screenshots/interactive.svg)" in section("The step debugger")
    assert (ROOT / ".github" / "screenshots" / "interactive.svg").read_text("utf-8").startswith("<svg")
    assert "next" in picture("(step 4, beginning) next")
