"""Environments are made once for what they are made from, again where that has changed, and failures are told."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rlcore.peers.environments import ENVIRONMENTS, Environment, InstallError, make_all
from tests.rlcore.peers.peer import TRL, VERL
from tests.rlcore.peers.test_vllm_environment import VARIABLE as VLLM


class Commands:
    """Stands in for pip and venv: notes what is run, and fails where a word is in it."""

    def __init__(self, fails_with: str = "") -> None:
        self.run: list[str] = []
        self._fails_with = fails_with

    def __call__(self, command: Sequence[str]) -> None:
        line = " ".join(command)  # others may be run beside it
        self.run.append(line)
        if command[1:3] == ["-m", "venv"]:
            Path(command[3]).mkdir(parents=True)
        if self._fails_with and self._fails_with in line:
            raise InstallError("no such version")


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    requirements = tmp_path / "some.txt"
    requirements.write_text("a==1\n")
    return Environment("some", "SOME_PYTHON", requirements)


def test_it_is_made_once_and_again_where_its_requirements_have_changed(
    environment: Environment, tmp_path: Path
) -> None:
    commands = Commands()
    python = environment.make(tmp_path / "into", commands)
    assert [command.split()[-1] for command in commands.run] == [
        str(python.parents[1]),
        "torch",
        str(environment.requirements),
    ]
    assert environment.make(tmp_path / "into", commands) == python
    assert len(commands.run) == 3
    environment.requirements.write_text("a==2\n")
    assert environment.make(tmp_path / "into", commands) != python
    assert len(commands.run) == 6


def test_half_of_one_is_made_anew(environment: Environment, tmp_path: Path) -> None:
    with pytest.raises(InstallError):
        environment.make(tmp_path, Commands(fails_with="some.txt"))
    (left,) = (path for path in tmp_path.iterdir() if path.is_dir())
    left.joinpath("half").touch()
    environment.make(tmp_path, Commands())
    assert not left.joinpath("half").exists()


def test_one_that_fails_is_told_and_the_other_is_made(
    environment: Environment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = replace(environment, name="other", variable="OTHER_PYTHON", requirements=tmp_path / "other.txt")
    other.requirements.write_text("b==1\n")
    made = make_all([environment, other], tmp_path / "into", Commands(fails_with="other.txt"))
    assert list(made) == ["SOME_PYTHON"]
    assert "the environment of other could not be made: no such version" in capsys.readouterr().err


def test_each_library_has_one() -> None:
    assert {each.variable for each in ENVIRONMENTS} == {VERL.variable, TRL.variable, VLLM}
    assert all(each.requirements.exists() for each in ENVIRONMENTS)
