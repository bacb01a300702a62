"""Recorded runs of somebody else: what they name is listed, and used only if this user says --trust."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from harness.core.exit_codes import ExitCode
from tests.support.cli_commands import Done, type_command

pytest.importorskip("torch")
TRAINING = """\
import importlib
import torch

def two(step):
    return 2.0 + step

def run(config, *, level, directory, recorder):
    module, _, name = config["task"]["reward"].partition(":")
    reward = getattr(importlib.import_module(module), name)
    for step in range(3):
        recorder.begin_step(step)
        recorder.record("reward", "rewards", torch.tensor([float(reward(step))]))
        recorder.end_step(reward=torch.tensor(0.0))
"""
SCENARIO = """\
about: a reward by its name
entry: training:run
determinism: deterministic
sizes: {smoke: {}, full: {}}
config: {task: {reward: 'training:two'}}
"""
EVIL = """\
from pathlib import Path
Path("PWNED").touch()
from training import run
def three(step):
    return 3.0 + step
"""
LISTED = '    task.reward = "evil:three"\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with an entry, a scenario that names it, and a module that no scenario names."""
    (tmp_path / "training.py").write_text(TRAINING)
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "toy.yaml").write_text(SCENARIO)
    return tmp_path


def here(project: Path, *words: str) -> Done:
    return type_command(project, *words, XDG_CACHE_HOME=str(project / "cache"))


def elsewhere(project: Path, *words: str) -> Done:
    return type_command(project, *words, XDG_CACHE_HOME=str(project / "another-cache"))


def recorded(project: Path, name: str, *words: str) -> None:
    done = here(project, "train", "toy", "--out", name, *words)
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    (project / "PWNED").unlink(missing_ok=True)


def rewrite_call(run: Path, **fields: object) -> None:
    call = json.loads((run / "call.json").read_text("utf-8"))
    (run / "call.json").write_text(json.dumps({**call, **fields}), "utf-8")


@pytest.mark.timeout(240)
def test_ones_own_run_is_replayed_without_question_and_a_foreign_one_is_not(project: Path) -> None:
    recorded(project, "run", "--set", "task.reward=evil:three")

    own = here(project, "reproduce", "run")
    assert (own.code, "trust" in own.stderr) == (ExitCode.OK, False), own.stdout + own.stderr
    assert (project / "PWNED").exists()
    (project / "PWNED").unlink()
    foreign = elsewhere(project, "reproduce", "run", "--out", "again")
    assert foreign.code == ExitCode.USAGE_ERROR
    assert f"run would use 1 value that no scenario here names:\n{LISTED}" in foreign.stderr
    assert "legal:  what the scenarios here name (" in foreign.stderr
    assert not (project / "PWNED").exists()
    assert not (project / "again").exists()
    (project / "scenarios" / "mine.yaml").write_text(SCENARIO.replace("training:two", "evil:three"))
    known = elsewhere(project, "reproduce", "run")
    assert (known.code, "trust" in known.stderr) == (ExitCode.OK, False), known.stdout + known.stderr


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_run_that_names_another_entry_is_refused_and_with_trust_runs_after_it_was_listed(project: Path) -> None:
    recorded(project, "evilrun")
    rewrite_call(project / "evilrun", entry="evil:run")

    refused = here(project, "reproduce", "evilrun", "--out", "again")
    assert (refused.code, (project / "PWNED").exists()) == (ExitCode.USAGE_ERROR, False)
    assert '\n    entry = "evil:run"\n    task.reward = "training:two"\n' in refused.stderr
    trusted = here(project, "reproduce", "evilrun", "--trust")
    assert (project / "PWNED").exists(), trusted.stdout + trusted.stderr
    note = "rlharness: note: trusted, though no scenario here names it: "
    assert trusted.stderr.startswith(f'{note}entry = "evil:run"\n{note}task.reward = "training:two"\n')


@pytest.mark.full
@pytest.mark.parametrize(
    "words",
    [
        ("reproduce", "foreign", "--step", "1", "--json"),
        ("reproduce", "own", "--step", "1", "--against", "foreign"),
        ("reproduce", "foreign", "--break-on", "nan"),
        ("reproduce", "foreign", "--step", "1", "--interactive"),
        ("reproduce", "own", "--step", "1", "--interactive", "--against", "foreign"),
    ],
    ids=" ".join,
)
@pytest.mark.timeout(120)
def test_every_command_that_runs_a_recorded_run_again_asks(project: Path, words: tuple[str, ...]) -> None:
    recorded(project, "own")
    shutil.copytree(project / "own", project / "foreign")
    rewrite_call(project / "foreign", config={"task": {"reward": "evil:three"}})

    done = here(project, *words)
    assert done.code == ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert LISTED in done.stderr
    assert not (project / "PWNED").exists()
    assert not list(project.glob(".rlharness/*/*/run-*"))


@pytest.mark.full
@pytest.mark.timeout(240)
def test_what_is_to_be_typed_after_ones_own_run_has_stopped_is_not_asked_about(project: Path) -> None:
    stopped = here(project, "replay", "toy", "--set", "task.reward=evil:three", "--until", "reward<1", "--out", "out")
    assert stopped.code == ExitCode.OK, stopped.stdout + stopped.stderr
    (line,) = [line for line in stopped.stdout.splitlines() if "look closer: rlharness " in line]

    closer = here(project, *shlex.split(line.partition("rlharness ")[2]))
    assert (closer.code, "trust" in closer.stderr) == (ExitCode.OK, False), closer.stdout + closer.stderr
    assert LISTED in here(project, "reproduce", "out/step-0.rlb").stderr, "made for other machines"


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_signature_of_another_call_of_this_user_proves_nothing(project: Path) -> None:
    recorded(project, "run")
    recorded(project, "other", "--set", "task.reward=evil:three")
    shutil.copy(project / "other" / "call.json", project / "run" / "call.json")

    assert LISTED in here(project, "reproduce", "run").stderr


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_run_is_recorded_and_asked_about_where_the_cache_directory_cannot_be_used(project: Path) -> None:
    (project / "cache").mkdir()
    (project / "cache" / "rlharness").symlink_to("/tmp")
    recorded(project, "run", "--set", "task.reward=evil:three")

    assert not (project / "run" / "call.hmac").exists()
    assert LISTED in here(project, "reproduce", "run").stderr
