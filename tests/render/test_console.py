"""What is printed on a terminal and in a job of GitHub Actions: nothing of others is obeyed there."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.text import printable
from harness.render.console import enter_job, say, show
from tests.support.github_commands import obeyed

RED, RESET = "\x1b[1;31m", "\x1b[0m"
TITLE = "\x1b]0;title\x07"


@pytest.fixture
def on_github() -> Iterator[None]:
    enter_job({"GITHUB_ACTIONS": "true"})
    yield
    enter_job({})


@settings(derandomize=True)
@given(st.lists(st.sampled_from((RED, RESET, "\n", "\t")) | st.text(max_size=5)))
def test_a_result_keeps_its_colours_and_lines_alone(pieces: list[str]) -> None:
    text = printable("".join(pieces))
    left = text
    for allowed in (RED, RESET, "\n", "\t"):
        left = left.replace(allowed, "")
    assert left.isascii() or not any("\x80" <= each <= "\x9f" or "\u2028" <= each <= "\u202e" for each in left)
    assert not any(each < " " or each == "\x7f" for each in left if each != "\x1b")
    assert printable(text) == text


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(f"{RED}equal{RESET}\n{TITLE}\tx\x9b2J\u202e\r")
    say(f"note: {TITLE}")
    out, err = capsys.readouterr()
    assert out == f"{RED}equal{RESET}\n\\x1b]0;title\\x07\tx\\x9b2J\\u202e\\x0d\n"
    assert err == "rlharness: note: \\x1b]0;title\\x07\n"


@pytest.mark.parametrize("text", ["::error::forged", "first\n  ::error::forged", "a ##[error]forged"])
@pytest.mark.usefixtures("on_github")
def test_nothing_that_is_printed_is_a_workflow_command(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(text)
    say(text)
    out, err = capsys.readouterr()
    assert "forged" in out and "forged" in err
    assert obeyed(out.splitlines()) == obeyed(err.splitlines()) == []


@pytest.mark.usefixtures("on_github")
def test_what_is_no_command_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show("tests/test_a.py::test_one passed")
    show(json.dumps({"name": "##[error]x"}))
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "tests/test_a.py::test_one passed"
    assert json.loads(out[1]) == {"name": "##[error]x"}


@pytest.mark.parametrize("environ", [{}, {"GITHUB_ACTIONS": "true", "RLHARNESS_ATTEMPT": "a test of a run"}])
def test_outside_of_a_job_nothing_is_added(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    enter_job(environ)
    show("::error::forged")
    assert capsys.readouterr().out == "::error::forged\n"
