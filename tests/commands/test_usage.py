"""What the parser refuses: the value, what is legal, what to do, of every command alike."""

import json

import click
import pytest

from harness.cli.main import cli, main
from harness.cli.usage import legal_values
from harness.core.exit_codes import ExitCode


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The three lines, without what they begin with."""
    assert main(words) == ExitCode.USAGE_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    what, legal, remedy = err.splitlines()
    assert (what[:7], legal[:10], remedy[:10]) == ("error: ", "  legal:  ", "  remedy: ")
    return [what[7:], legal[10:], remedy[10:]]


@pytest.mark.parametrize(
    ("words", "what", "legal"),
    [
        (["replay", "--step", "abc"], "--step 'abc'", "a whole number, 0 or more"),
        (["replay", "--step", "-1"], "--step -1", "a whole number, 0 or more"),
        (["doctor", "--listen", "99999"], "--listen 99999", "a whole number from 1 to 65535"),
        (["run", "--timeout", "soon"], "--timeout 'soon'", "a number above 0"),
        (["run", "--timeout", "nan"], "--timeout 'nan'", "a number above 0"),
        (["run", "--grace", "-1"], "--grace -1.0", "a number, 0 or more"),
        (["run", "--color", "pink"], "--color 'pink'", "auto, always, never"),
        (["run", "--color", "this is not one"], "--color 'this is not one'", "auto, always, never"),
        (["run", "--junit", ""], "--junit ''", "a path"),
        (["run", "--events", ""], "--events ''", "a path"),
        (["plan", "--needs", ""], "--needs ''", "a path"),
        (["replay", "--step"], "--step without K", "--step K"),
        (["run", "--gpus"], "--gpus without auto|none|N|0,2,GPU-uuid|sim:N", "--gpus auto|none|N|0,2,GPU-uuid|sim:N"),
        (["run", "--json=3"], "--json with a value", "--json"),
        (["diff", "a"], "rlharness diff: B is missing", "rlharness diff A B [OPTIONS]"),
        (["train", "x"], "rlharness train: --out DIR is missing", "rlharness train SCENARIO --out DIR [OPTIONS]"),
        (
            ["replay", "a", "b"],
            "rlharness replay with more words than it takes: b",
            "rlharness replay [SCENARIO] [OP",
        ),
        (["diff", "a", "b", "c d", "e"], "rlharness diff with more words than it takes: c d e", "rlharness diff A B"),
    ],
)
def test_a_value_is_told_with_what_is_legal(
    capsys: pytest.CaptureFixture[str], words: list[str], what: str, legal: str
) -> None:
    told = refused(capsys, *words)
    assert told[0] == what
    assert told[1].startswith(legal)
    assert told[2] == f"rlharness {words[0]} --help"


@pytest.mark.parametrize(
    ("words", "what", "near"),
    [
        (["trian", "--json=x"], "trian is no command", "train or trace"),
        (["--jsn"], "--jsn is no option", ""),
        (["run", "--maxfial", "3"], "--maxfial is no option of rlharness run", "--maxfail"),
        (["plan", "--junit", "x.xml"], "--junit is no option of rlharness plan", "--cpu-units or --json"),
        (["run", "-z"], "-z is no option of rlharness run", ""),
    ],
)
def test_a_word_that_is_spelt_wrongly_is_told_with_those_that_are_near(
    capsys: pytest.CaptureFixture[str], words: list[str], what: str, near: str
) -> None:
    told = refused(capsys, *words)
    assert told[0] == what
    question = f"did you mean {near}? " if near else ""
    path = what.partition(" of ")[2] or "rlharness"
    behind = f"; of pytest: {path} -- {words[1]}" if path != "rlharness" else ""
    assert told[2] == f"{question}{path} --help{behind}"
    assert len(told[1].split(", ")) > 1


def test_what_stands_behind_two_dashes_is_told_where_they_were_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "trace", "--out", "a", "python", "train.py")
    assert told[:2] == [
        "rlharness trace with more words than it takes: python train.py",
        "rlharness trace --out DIR [OPTIONS] -- COMMAND",
    ]
    assert refused(capsys, "trace", "--out", "", "--")[:2] == ["--out ''", "a path"]


def test_a_scenario_that_is_missing_is_told_with_where_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "bisect")[2] == "rlharness bisect --help; rlharness scenarios shows what there is"


def test_with_json_the_same_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--json", "--step", "abc"]) == ExitCode.USAGE_ERROR
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == ExitCode.USAGE_ERROR
    assert told["error"].splitlines()[0] == "--step 'abc'"


def test_no_option_is_of_a_type_whose_values_cannot_be_told() -> None:
    """Texts and flags are never refused by the parser."""
    for command in cli.commands.values():
        for param in command.params:
            if not isinstance(param.type, click.types.StringParamType) and not getattr(param, "is_flag", False):
                assert "help" not in legal_values(param.type), (command.name, param.name)
