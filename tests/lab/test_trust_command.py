"""Recorded runs: what they name and no scenario here does is listed, and used only if this user says --trust."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from tests.support.cli_commands import type_command

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


def recorded(project: Path, name: str, *words: str) -> None:
    done = type_command(project, "train", "toy", "--out", name, *words)
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    (project / "PWNED").unlink(missing_ok=True)


def rewrite_call(run: Path, **fields: object) -> None:
    call = json.loads((run / "call.json").read_text("utf-8"))
    (run / "call.json").write_text(json.dumps({**call, **fields}), "utf-8")


@pytest.mark.timeout(240)
def test_a_run_that_names_what_no_scenario_here_does_is_refused_until_one_does(project: Path) -> None:
    recorded(project, "run", "--set", "task.reward=evil:three")
    refused = type_command(project, "reproduce", "run", "--out", "again")
    assert refused.code == ExitCode.USAGE_ERROR
    assert f"run would use 1 value that no scenario here names:\n{LISTED}" in refused.stderr
    assert "legal:  what the scenarios here name (" in refused.stderr
    assert not (project / "PWNED").exists()
    assert not (project / "again").exists()
    (project / "scenarios" / "mine.yaml").write_text(SCENARIO.replace("training:two", "evil:three"))
    known = type_command(project, "reproduce", "run")
    assert (known.code, "trust" in known.stderr) == (ExitCode.OK, False), known.stdout + known.stderr
    assert (project / "PWNED").exists()


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_run_that_names_another_entry_is_refused_and_with_trust_runs_after_it_was_listed(project: Path) -> None:
    recorded(project, "evilrun")
    rewrite_call(project / "evilrun", entry="evil:run")

    refused = type_command(project, "reproduce", "evilrun", "--out", "again")
    assert (refused.code, (project / "PWNED").exists()) == (ExitCode.USAGE_ERROR, False)
    assert 'would use 1 value that no scenario here names:\n    entry = "evil:run"\n' in refused.stderr
    trusted = type_command(project, "reproduce", "evilrun", "--trust")
    assert (project / "PWNED").exists(), trusted.stdout + trusted.stderr
    note = "rlharness: note: trusted, though no scenario here names it: "
    assert trusted.stderr.startswith(f'{note}entry = "evil:run"\n')


@pytest.mark.full
@pytest.mark.parametrize(
    "words",
    [
        ("reproduce", "foreign", "--step", "1", "--json"),
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

    done = type_command(project, *words)
    assert done.code == ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert LISTED in done.stderr
    assert not (project / "PWNED").exists()
    assert not list(project.glob(".rlharness/*/*/run-*"))


@pytest.mark.full
@pytest.mark.timeout(240)
def test_what_is_to_be_typed_after_a_run_has_stopped_is_not_asked_about(project: Path) -> None:
    stopped = type_command(project, "train", "toy", "--until", "reward<1", "--out", "out")
    assert stopped.code == ExitCode.OK, stopped.stdout + stopped.stderr
    (line,) = [line for line in stopped.stderr.splitlines() if "look closer: rlharness " in line]

    closer = type_command(project, *shlex.split(line.partition("look closer: rlharness ")[2]))
    assert (closer.code, "trust" in closer.stderr) == (ExitCode.OK, False), closer.stdout + closer.stderr
