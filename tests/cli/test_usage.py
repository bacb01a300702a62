"""What the parser refuses: the value, what is legal, what to do, of every command alike."""

import json
import shlex
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.cli.main import main
from harness.recording.entry_call import CALL


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
        (["doctor", "--distributed", "1"], "--distributed 1", "a whole number, 2 or more"),
        (["run", "--timeout", "soon"], "--timeout 'soon'", "a number above 0"),
        (["run", "--timeout", "nan"], "--timeout 'nan'", "a number above 0"),
        (["run", "--grace", "-1"], "--grace -1.0", "a number, 0 or more"),
        (["run", "--color", "pink"], "--color 'pink'", "auto, always, never"),
        (["run", "--color", "this is not one"], "--color 'this is not one'", "auto, always, never"),
        (["run", "--junit", ""], "--junit ''", "a path"),
        (["run", "--events", ""], "--events ''", "a path"),
        (["plan", "--needs", ""], "--needs ''", "a path"),
        (["replay", "--step"], "--step needs a value", "--step K"),
        (["run", "--gpus"], "--gpus needs a value", "--gpus auto|none|N|0,2,GPU-uuid|as-is:0|sim:N"),
        (["run", "--json=3"], "--json takes no value", "--json"),
        (["diff", "a"], "rlharness diff: B is missing", "rlharness diff A B [OPTIONS]"),
        (["train", "x"], "rlharness train: --out DIR is missing", "rlharness train SCENARIO --out DIR [OPTIONS]"),
        (
            ["replay", "a", "b"],
            "rlharness replay got more arguments than it takes: b",
            "rlharness replay [SCENARIO] [OP",
        ),
        (
            ["diff", "a", "b", "c d", "e"],
            "rlharness diff got more arguments than it takes: c d e",
            "rlharness diff A B",
        ),
    ],
)
def test_a_value_is_told_with_what_is_legal(
    capsys: pytest.CaptureFixture[str], words: list[str], what: str, legal: str
) -> None:
    refusal = refused(capsys, *words)
    assert refusal[0] == what
    assert refusal[1].startswith(legal)
    assert refusal[2] == f"rlharness {words[0]} --help"


@pytest.mark.parametrize(
    ("words", "old", "new"),
    [
        (["train", "x", "--out", "y", "--keep", "3"], "--keep", "--save-tensors"),
        (["trace", "--out", "y", "--op-step", "3", "--", "ls"], "--op-step", "--trace-ops"),
        (["reproduce", "y", "--step", "3", "--op"], "--op", "--trace-ops"),
    ],
)
def test_an_old_option_is_refused_with_the_present_one(
    capsys: pytest.CaptureFixture[str], words: list[str], old: str, new: str
) -> None:
    assert refused(capsys, *words)[:2] == [f"{old} is now called {new}", new]


def test_an_old_level_is_refused_with_the_present_one(capsys: pytest.CaptureFixture[str]) -> None:
    what, legal, remedy = refused(capsys, "train", "x", "--out", "y", "--level", "rerun")
    assert (what, legal) == ("--level 'rerun'", "off, deterministic, invariant")
    assert remedy == "--level deterministic, its present name"


@pytest.mark.parametrize(
    ("words", "what", "near"),
    [
        (["trian", "--json=x"], "trian is not a command", "train or trace"),
        (["--jsn"], "--jsn is not an option", ""),
        (["run", "--maxfial", "3"], "--maxfial is not an option of rlharness run", "--maxfail"),
        (["plan", "--junit", "x.xml"], "--junit is not an option of rlharness plan", ""),
        (["run", "--tb=short"], "--tb is not an option of rlharness run", ""),
        (["run", "-n", "4"], "-n is not an option of rlharness run", ""),
        (["run", "-z"], "-z is not an option of rlharness run", ""),
    ],
)
def test_a_word_that_is_spelt_wrongly_is_told_with_those_that_are_near(
    capsys: pytest.CaptureFixture[str], words: list[str], what: str, near: str
) -> None:
    refusal = refused(capsys, *words)
    assert refusal[0] == what
    question = f"did you mean {near}? " if near else ""
    path = what.partition(" of ")[2] or "rlharness"
    of_pytest = f"; for an option of pytest: {path} -- {' '.join(words[1:])}" if path != "rlharness" else ""
    assert refusal[2] == f"{question}{path} --help{of_pytest}"
    assert len(refusal[1].split(", ")) > 1
    if words[0] in ("run", "plan"):
        assert {"-k", "-m"} <= set(refusal[1].removeprefix("  legal:  ").split(", "))


def test_only_the_option_of_pytest_and_its_value_move_after_the_dashes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    moved = refused(capsys, "run", "-n", "4", "tests", "--gpus", "sim:2")[2].partition("of pytest: ")[2]
    assert moved == "rlharness run tests --gpus sim:2 -- -n 4"
    kept = refused(capsys, "run", "--strict-config", "tests", "-k", "a or b")[2].partition("of pytest: ")[2]
    assert kept == "rlharness run tests -k 'a or b' -- --strict-config"


def test_what_stands_after_two_dashes_is_said_where_they_were_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = refused(capsys, "trace", "--out", "a", "python", "train.py")
    assert refusal[:2] == [
        "rlharness trace got more arguments than it takes: python train.py",
        "rlharness trace --out DIR [OPTIONS] -- COMMAND",
    ]
    assert refused(capsys, "trace", "--out", "", "--")[:2] == ["--out ''", "a path"]


def test_a_scenario_that_is_missing_is_told_with_where_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "replay")[2] == "rlharness replay SCENARIO, or rlharness replay -- python train.py"


def test_with_json_the_same_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--json", "--step", "abc"]) == ExitCode.USAGE_ERROR
    refusal = json.loads(capsys.readouterr().out)
    assert refusal["exit_code"] == ExitCode.USAGE_ERROR
    assert refusal["error"].splitlines()[0] == "--step 'abc'"


# --------------------------------------------------------------------- what replay has left to reproduce


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that holds a run and a bundle, as far as their names go."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / CALL).touch()
    (tmp_path / "a b.rlb").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "what", "line"),
    [
        (
            "run --step 3 --trace-ops --against other --size full --json",
            "run is the directory of a recorded run, but replay compares fresh runs",
            "rlharness reproduce run --step 3 --trace-ops --against other --json",
        ),
        (
            "run --set output.a=1 --set output.b=2 --timeout 1.5 --break-on nan",
            "run is the directory of a recorded run, but replay compares fresh runs",
            "rlharness reproduce run --break-on nan --set output.a=1 --set output.b=2 --timeout 1.5",
        ),
        (
            "'a b.rlb' --trace-ops",
            "a b.rlb is a bundle, but replay compares fresh runs",
            "rlharness reproduce 'a b.rlb' --trace-ops",
        ),
        (
            "--bundle 'a b.rlb' --trace-ops --size tiny",
            "--bundle is not an option of rlharness replay, which compares fresh runs",
            "rlharness reproduce 'a b.rlb' --trace-ops",
        ),
        (
            "run --step 2 --runs 3 --bundle=x.rlb",
            "--bundle is not an option of rlharness replay, which compares fresh runs",
            "rlharness reproduce run --step 2 --bundle x.rlb",
        ),
        (
            "run --interactive --step 2",
            "--interactive is not an option of rlharness replay, which compares fresh runs",
            "rlharness reproduce run --step 2 --interactive",
        ),
        (
            "--trust",
            "--trust is not an option of rlharness replay, which compares fresh runs",
            "rlharness reproduce RUN --trust",
        ),
        (
            "grpo_sorting --interactive --step 2",
            "--interactive is not an option of rlharness replay, which compares fresh runs",
            "rlharness train grpo_sorting --out RUN, then rlharness reproduce RUN --step 2 --interactive",
        ),
        (
            "grpo_sorting --until 'reward<1' --bundle x.rlb",
            "--bundle is not an option of rlharness replay, which compares fresh runs",
            "omit it: a scenario run that stops at a condition writes a bundle below --out",
        ),
    ],
)
def test_replay_of_something_recorded_says_which_line_to_type(
    capsys: pytest.CaptureFixture[str], recorded: Path, words: str, what: str, line: str
) -> None:
    assert main(["replay", *shlex.split(words)]) == ExitCode.USAGE_ERROR
    refusal = capsys.readouterr().err.splitlines()
    assert (refusal[0], refusal[2]) == (f"error: {what}", f"  remedy: {line}")
    assert refusal[1].startswith("  legal:  ")
    assert list(recorded.glob(".rlharness")) == []


# --------------------------------------------------------- what goes together in reproduce


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("run --trace-ops", "--trace-ops without --step"),
        ("run --interactive", "--interactive without --step"),
        ("run --commands typed.txt", "--commands without --interactive"),
        ("run --step 1 --reference-checkpoint", "--reference-checkpoint without a bundle"),
        ("run --break-on nan --step 1 --trace-ops", "--trace-ops with a condition"),
        ("run --step 1 --interactive --trace-ops --timeout 3", "--timeout with --interactive"),
        ("'a b.rlb' --step 1 --bundle x", "--step, --bundle with a bundle"),
        ("'a b.rlb' --until 'loss<1' --against run", "--against, --until with a bundle"),
        ("nothing", "there is no run or bundle nothing"),
        ("grpo_sorting", "grpo_sorting is a scenario, not a recorded run"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_read(
    capsys: pytest.CaptureFixture[str], recorded: Path, words: str, what: str
) -> None:
    refusal = refused(capsys, "reproduce", *shlex.split(words))
    assert refusal[0] == what
    assert list(recorded.glob(".rlharness")) == []


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
