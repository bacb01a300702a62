"""What the parser refuses: the value, what is legal, what to do, of every command alike."""

import json
import shlex

import pytest

from harness.bits.exit_codes import ExitCode
from harness.cli.main import main


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The lines of the error, without what they begin with."""
    assert main(words) == ExitCode.USAGE_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    what, *more = err.splitlines()
    assert (what[:7], more[-1][:10]) == ("error: ", "  remedy: ")
    return [what[7:], *(line[10:] for line in more)]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["replay", "--step", "abc"], "Invalid value for '--step': 'abc' is not a valid whole number from 0."),
        (["replay", "--step", "-1"], "Invalid value for '--step': -1 is not in the range x>=0."),
        (["run", "--color", "pink"], "Invalid value for '--color': 'pink' is not one of 'auto', 'always', 'never'."),
        (["trace", "--out", "", "--"], "Invalid value for '--out': '' is not a path."),
        (["diff", "a"], "Missing argument 'B'."),
        (["train", "x"], "Missing option '--out'."),
        (["diff", "a", "b", "c d", "e"], "Got unexpected extra arguments (c d e)"),
    ],
)
def test_what_the_parser_refuses_names_the_value_and_the_help(
    capsys: pytest.CaptureFixture[str], words: list[str], what: str
) -> None:
    assert refused(capsys, *words) == [what, f"rlharness {words[0]} --help"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["trian", "--json=x"], "No such command 'trian'. (Did you mean one of: 'trace', 'train'?)"),
        (["--jsn"], "No such option '--jsn'."),
    ],
)
def test_a_word_that_is_no_command_names_the_help_of_all(
    capsys: pytest.CaptureFixture[str], words: list[str], what: str
) -> None:
    assert refused(capsys, *words) == [what, "rlharness --help"]


@pytest.mark.parametrize(
    ("words", "what", "after"),
    [
        (["run", "--tb", "short"], "No such option '--tb'.", "options of pytest"),
        (["replay", "--step"], "Option '--step' requires an argument.", "a program and its options"),
        (["trace", "--out", "a", "python", "train.py"], "Got unexpected extra arguments", "a program and its options"),
    ],
)
def test_what_goes_after_two_dashes_is_said_where_they_may_have_been_left_out(
    capsys: pytest.CaptureFixture[str], words: list[str], what: str, after: str
) -> None:
    said, remedy = refused(capsys, *words)
    assert said.startswith(what)
    assert remedy == f"rlharness {words[0]} --help; {after} go after --"


def test_a_scenario_that_is_missing_is_told_with_where_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "replay")[2] == "rlharness replay SCENARIO, or rlharness replay -- python train.py"


def test_with_json_the_same_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--json", "--step", "abc"]) == ExitCode.USAGE_ERROR
    refusal = json.loads(capsys.readouterr().out)
    assert refusal["exit_code"] == ExitCode.USAGE_ERROR
    assert refusal["error"].startswith("Invalid value for '--step': 'abc'")


# --------------------------------------------------------- what goes together in reproduce


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("run --trace-ops", "--trace-ops without --step"),
        ("run --interactive", "--interactive without --step"),
        ("run --commands typed.txt", "--commands without --interactive"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_read(
    capsys: pytest.CaptureFixture[str], words: str, what: str
) -> None:
    refusal = refused(capsys, "reproduce", *shlex.split(words))
    assert refusal[0] == what


def test_a_command_line_is_never_dropped_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ("diff", "a", "b"),
        ("report", "a"),
        ("scenarios",),
        ("doctor",),
        ("train", "grpo_sorting", "--out", "x"),
    ):
        what, legal, _ = refused(capsys, *words, "--", "python", "train.py", "--token=abcdef")
        assert what == f"rlharness {words[0]} takes nothing after --: python train.py '--token=<redacted>'"
        assert "replay" in legal
