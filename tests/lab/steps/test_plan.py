"""A directory that is named to `rlharness replay` and holds no recorded run: it is said what it is."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.lab.experiments.entry_call import CALL, EntryCall
from harness.lab.reproduce.plan import refuse_directory
from tests.support.traces import manifest_of, steps_of, write


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path / "of_command", steps_of(2))
    write(tmp_path / "without_call", steps_of(2), replace(manifest_of(), argv=("rlharness", "train", "tiny")))
    for name in ("whole", "replays/run-1"):
        write(tmp_path / name, steps_of(2))
        EntryCall("a:b", {}).write(tmp_path / name)
    (tmp_path / "plain").mkdir()
    (tmp_path / "bandit").mkdir()
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "bandit.yaml").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("of_command", "of_command is the trace of a command", "rlharness replay -- COMMAND"),
        ("without_call/", f"without_call/ is a recorded run without its {CALL}", "record it again"),
        ("replays", "replays holds several runs", "name one of them: replays/run-1"),
        ("plain", "the directory plain holds no recorded run", "rlharness train SCENARIO --out RUN"),
        ("nope/", "there is no directory nope/", "rlharness scenarios"),
    ],
)
def test_it_is_said_what_a_directory_is(project: Path, name: str, what: str, remedy: str) -> None:
    with pytest.raises(UsageError) as told:
        refuse_directory(project, name)
    assert told.value.what.startswith(what)
    assert remedy in told.value.remedy
    assert told.value.legal == "the name of a scenario, a YAML file, or the directory of a recorded run of a scenario"


@pytest.mark.parametrize("name", [None, "whole", "bandit", "unknown", "unknown.yaml"])
def test_everything_else_is_left_to_others(project: Path, name: str | None) -> None:
    refuse_directory(project, name)
