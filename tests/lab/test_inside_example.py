"""The manual's examples of standing inside a step and of transplants are such as the commands print."""

import re
from pathlib import Path

from harness.lab.reproduce.debugger.words import COMMANDS, parse_line
from harness.lab.transplant.patches import parse_patch
from tests.lab.inside_example import CAUSE, INSIDE, STAND, TRANSPLANT, TYPED, marks, picture
from tests.support.manual import between, section

ROOT = Path(__file__).parents[2]


def shown(name: str) -> str:
    return between(*marks(name))


def test_the_examples_are_of_these_commands() -> None:
    assert shown(INSIDE).startswith(f"```console\n$ {STAND}\nat the beginning of step 9\n")
    assert tuple(re.findall(r"^\(step 9, [^)]*\) (.*)$", shown(INSIDE), re.MULTILINE)) == TYPED
    assert all(parse_line(line) for line in TYPED)
    assert "values reproduced, every bit\n" in shown(INSIDE)
    assert "its root digest is the recorded one, " in shown(INSIDE)
    assert shown(CAUSE).startswith(f"```console\n$ {TRANSPLANT}\n")
    assert re.search(r"^CAUSE  advantages, from step \d+ on: ", shown(CAUSE), re.MULTILINE)


def test_every_command_of_the_prompt_is_documented() -> None:
    told = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", section("The step debugger"), re.MULTILINE))
    wanted = {f"{name} {usage}".strip(): does for name, (usage, does) in COMMANDS.items()}
    assert {name.replace("\\|", "|"): does.replace("`", "") for name, does in told.items()} == wanted


def test_everything_that_is_told_to_be_taken_can_be() -> None:
    rows = re.findall(r"^\| (`.+?) \| .+ \|$", section("What caused it"), re.MULTILINE)
    words = [word for row in rows for word in re.findall(r"`([^`]+)`", row) if word != "--take"]
    assert {"advantages", "weights", "rewards+advantages"} <= set(words)
    for word in words:
        assert parse_patch(word.replace("PHASE", "loss").replace("op:N", "op:1")).text


def test_the_picture_is_one() -> None:
    assert "(../../.github/screenshots/interactive.svg)" in section("The step debugger")
    assert (ROOT / ".github" / "screenshots" / "interactive.svg").read_text("utf-8").startswith("<svg")
    assert "next" in picture("(step 9, beginning) next")
