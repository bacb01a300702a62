"""`rlharness reproduce RUN --step K`: the step again, with proof that it is the same, and told where it is not.

Whole commands, in the order of a morning on which a run broke: recorded once, looked at several times.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from tests.lab.fragile_entry import write_fragile
from tests.support.cli_commands import Done, type_command

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(240)
NAN = ("--set", "nan_at=3", "--set", "output.checkpoint_every=3")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a recorded run."""
    directory = tmp_path_factory.mktemp("project")
    write_fragile(directory)
    train(directory, "whole")
    return directory


def train(project: Path, name: str, *words: str, code: int = ExitCode.OK) -> None:
    done = type_command(project, "train", "fragile", "--out", name, *words)
    assert done.code == code, done.stderr


def reproduce(project: Path, tmp_path: Path, *words: str) -> Done:
    return type_command(project, "reproduce", *words, "--out", str(tmp_path / "out"))


def told(done: Done) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["exit_code"] == done.code
    return found


@pytest.mark.full
def test_a_step_comes_out_again_from_the_nearest_checkpoint(project: Path, tmp_path: Path) -> None:
    done = reproduce(project, tmp_path, "whole", "--step", "3")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert done.stdout.startswith("REPRODUCED  step 3: its root digest is the recorded one: 3 values, every bit; ")
    assert "repeated from the checkpoint of step 2, with the step before it\n" in done.stdout
    assert "output.resume" not in (tmp_path / "out" / "run-1" / "call.json").read_text("utf-8").split('"resume": {')[0]


@pytest.mark.full
def test_a_step_that_does_not_come_out_again_is_told_with_its_first_leaf(project: Path, tmp_path: Path) -> None:
    done = reproduce(project, tmp_path, "whole", "--step", "3", "--set", "output.noise=0.001", "--json")
    assert done.code == ExitCode.DIVERGED
    found = told(done)
    assert not found["is_reproduced"]
    (comparison,) = found["comparisons"]
    first = comparison["first"]
    assert (first["step"], first["a"]["phase"], first["a"]["name"]) == (2, "backward", "weights")


@pytest.mark.full
def test_the_first_operation_that_differs_from_another_run_is_named(project: Path, tmp_path: Path) -> None:
    train(project, "noisy", "--set", "output.noise=0.001")  # other bits, from a key that makes no other run
    for name in ("whole", "noisy"):
        words = (name, "--step", "0", "--trace-ops", "--out", str(tmp_path / name), "--json")
        done = type_command(project, "reproduce", *words)
        assert done.code == ExitCode.OK, done.stdout + done.stderr
        (operations,) = told(done)["operations"]
        assert (operations["is_faithful"], operations["non_finite"]) == (True, None)
    done = type_command(tmp_path, "diff", "whole/run-1-op", "noisy/run-1-op", "--json")
    first = told(done)["operations"]["first"]
    assert (first["what"], first["a"]["name"]) == ("other_arguments", "aten.add.Tensor")
    assert "fragile_entry.py" in first["a"]["at"]


@pytest.mark.full
def test_a_step_in_whose_middle_a_run_ended_comes_out_again_and_its_nan_is_named(project: Path, tmp_path: Path) -> None:
    train(project, "broken", *NAN, code=1)
    done = reproduce(project, tmp_path, "broken", "--step", "3", "--trace-ops")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert done.stdout.startswith("REPRODUCED  step 3: it stops inside the step, where the recording stops: 2 values")
    made, origin = (line for line in done.stdout.splitlines() if "aten." in line)
    assert "first NaN: produced by forward aten.sub.Tensor" in made
    assert "from an Inf that was produced from finite numbers by forward aten.mul.Tensor" in origin
    assert "valid: this recording did not change step 3" in done.stdout
