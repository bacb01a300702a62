"""A word of a command line that names something recorded, or that seems to: what it is, and what to type instead."""

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bits.errors import UsageError
from harness.lab.experiments.recorded_kind import LEGAL, RecordedKind, find_recorded, recorded_kind
from harness.recording.entry_call import CALL, EntryCall
from tests.support.traces import manifest_of, steps_of, write

DIRECTORIES = [
    ("of_nothing", "of_nothing is a trace without the command that it is of", "record it again"),
    ("without_call/", f"without_call/ is a recorded run without its {CALL}", "record it again"),
    ("replays", "replays holds several runs", "name one of them: rlharness reproduce replays/run-1"),
    ("plain", "the directory plain holds no recorded run", "rlharness train SCENARIO --out RUN"),
    ("nope/", "there is no directory nope/", "rlharness scenarios"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path / "of_nothing", steps_of(2), replace(manifest_of(), argv=()))
    write(tmp_path / "without_call", steps_of(2), replace(manifest_of(), argv=("rlharness", "train", "tiny")))
    for name in ("whole", "replays/run-1", "both"):
        write(tmp_path / name, steps_of(2))
        EntryCall("a:b", {}).write(tmp_path / name)
    (tmp_path / "plain").mkdir()
    (tmp_path / "bandit").mkdir()
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "damaged.rlb").write_text("cut", "utf-8")
    (tmp_path / "mine.yaml").touch()
    with zipfile.ZipFile(tmp_path / "renamed", "w") as archive:
        archive.writestr("bundle.json", "{}")
    for name in ("bandit", "both"):
        (tmp_path / "scenarios" / f"{name}.yaml").touch()
    return tmp_path


@pytest.mark.parametrize(("name", "what", "remedy"), DIRECTORIES)
def test_it_is_said_what_a_directory_is_that_holds_no_recorded_run(
    project: Path, name: str, what: str, remedy: str
) -> None:
    for look in (find_recorded, recorded_kind):
        with pytest.raises(UsageError) as told:
            look(project, name)
        assert told.value.what.startswith(what)
        assert remedy in told.value.remedy
        assert told.value.legal == LEGAL


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("mine.yaml", "mine.yaml is a scenario, not a recorded run", "rlharness replay mine.yaml runs"),
        ("grpo_sorting", "grpo_sorting is a scenario, not a recorded run", "rlharness replay grpo_sorting"),
        ("nothing", "there is no run or bundle nothing", "check how it is spelled"),
        ("gone.yaml", "there is no run or bundle gone.yaml", "check how it is spelled"),
    ],
)
def test_what_can_not_be_reproduced_is_refused_with_what_can(project: Path, name: str, what: str, remedy: str) -> None:
    with pytest.raises(UsageError) as told:
        recorded_kind(project, name)
    assert (told.value.what, told.value.legal) == (what, LEGAL)
    assert told.value.remedy.startswith(remedy)


def test_runs_and_bundles_are_told_apart_by_what_is_on_disk(project: Path) -> None:
    kinds = {name: recorded_kind(project, name) for name in ("whole", "both", "damaged.rlb", "renamed")}
    assert kinds == {
        **dict.fromkeys(("whole", "both"), RecordedKind.RUN),
        **dict.fromkeys(("damaged.rlb", "renamed"), RecordedKind.BUNDLE),
    }


def test_where_a_scenario_is_meant_its_name_comes_first(project: Path) -> None:
    recorded = ("whole", "damaged.rlb", "renamed")
    assert [find_recorded(project, name) is not None for name in recorded] == [True, True, True]
    for name in ("both", "bandit", "unknown", "unknown.yaml", "mine.yaml"):
        assert find_recorded(project, name) is None
