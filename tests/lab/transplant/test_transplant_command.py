"""`rlharness transplant`, as it is typed: the planted cause is named, and what is none moves nothing."""

from pathlib import Path

import pytest

from harness.core.exit_codes import ExitCode
from tests.lab.bandit_runs import recorded_bandits
from tests.support.cli_commands import type_command, type_here

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and one with normalised advantages."""
    directory = tmp_path_factory.mktemp("runs")
    recorded_bandits(directory, a={}, b={"normalises": True})
    return directory


@pytest.mark.full
@pytest.mark.timeout(180)
def test_the_planted_cause_is_named(runs: Path) -> None:
    done = type_command(runs, "transplant", "a", "b", "--take", "advantages", "--out", "found", "--steps", "3")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    said = done.stdout
    assert said.startswith("A: a  B: b\npatched from step 0 on, compared up to step 2\n")
    cause = "CAUSE  advantages, from step 0 on: with B's values, A equals B in every later bit, up to step 2"
    assert f"\n{cause}\n  patching step 0 alone is not enough: it acts again later\n" in said
    assert said.endswith("  look closer: rlharness reproduce a --step 0 --trace-ops --against b\n  traces: found\n")
    titles = [line.removeprefix("rlharness: ") for line in done.stderr.splitlines() if line.endswith(" begins")]
    assert titles == [
        "A again begins",
        "B again begins",
        "A with B's advantages, from step 0 on begins",
        "A with B's advantages, at step 0 only begins",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a", "a"), "are equal in every step that both have"),
        (("a", "b", "--step", "9"), "--step 9\n  legal:  a step that both runs have recorded: 0 to 4"),
        (("a", "b", "--take", "advantage/advantage"), "remedy: --take advantage/advantages"),
        (("a", "none"), "no trace"),
        (
            ("a", "b", "--take", "rollout/pulls", "--step", "0", "--only"),
            "the two runs have the same values in step 0\n",
        ),
    ],
)
def test_what_cannot_be_explained_is_refused(runs: Path, words: tuple[str, ...], said: str) -> None:
    done = type_here(runs, "transplant", *words)
    assert done.code == ExitCode.USAGE_ERROR
    assert said in done.stderr
