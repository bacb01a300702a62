"""`rlharness reproduce RUN --step K`: the step again, with proof that it is the same, and told where it is not.

Whole commands, in the order of a morning on which a run broke: recorded once, looked at several times.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from harness.trace.reader import read_trace
from harness.trace.writer import TraceWriter
from tests.lab.fragile_entry import write_fragile
from tests.support.cli_commands import Done, type_command
from tests.support.traces import flip_bit

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
def test_a_damaged_checkpoint_is_passed_over_and_a_bundle_says_what_it_needs(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project / "whole", tmp_path / "run")
    damaged = tmp_path / "run" / "checkpoints" / "step-000004"
    (damaged / "checksums.json").write_text("cut", "utf-8")
    bundle = ("--bundle", str(tmp_path / "a"), "--reference-checkpoint")
    done = reproduce(project, tmp_path, str(tmp_path / "run"), "--step", "4", *bundle)
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert "repeated from the checkpoint of step 2, with the 2 steps before it\n" in done.stdout
    assert f"note: skipped a damaged checkpoint: {damaged}: checksums.json cannot be read" in done.stdout
    assert f"on machines that have {damaged.with_name('step-000002')}:  rlharness reproduce {tmp_path}" in done.stdout
    assert " --trust\n" in done.stdout
    assert "on any machine" not in done.stdout


@pytest.mark.full
def test_the_first_operation_that_differs_from_another_run_is_named(project: Path, tmp_path: Path) -> None:
    train(project, "noisy", "--set", "output.noise=0.001")  # other bits, from a key that makes no other run
    done = reproduce(project, tmp_path, "whole", "--step", "0", "--trace-ops", "--against", "noisy", "--json")
    assert done.code == ExitCode.DIVERGED, done.stdout + done.stderr
    found = told(done)
    assert found["is_reproduced"]
    assert found["against"]["is_reproduced"]
    assert [each["is_faithful"] for each in (*found["operations"], *found["against"]["operations"])] == [True, True]
    assert found["operations"][0]["non_finite"] is None
    first = found["against"]["first_operations"][0]["first"]
    assert (first["what"], first["a"]["name"]) == ("other_arguments", "aten.add.Tensor")
    assert "fragile_entry.py" in first["a"]["at"]


@pytest.mark.full
def test_without_a_step_all_steps_are_compared_with_the_other_trace_as_diff_compares_them(
    project: Path, tmp_path: Path
) -> None:
    """The other run parts in step 1 alone, by one bit: in its last step it is the same."""
    kept = read_trace(project / "whole")
    assert kept.manifest is not None
    without_trace = shutil.ignore_patterns("manifest.json", "rank-0.log", "curve.jsonl")
    shutil.copytree(kept.directory, tmp_path / "early", ignore=without_trace)
    with TraceWriter(tmp_path / "early", kept.manifest, say=print) as writer:
        for step in kept.steps:
            change = flip_bit(1 if step == 1 else 9, "backward", "weights")
            writer.append(step, [change(step, recorded_value) for recorded_value in kept.columns(step, 0).values()])
    shutil.copy(kept.directory / "curve.jsonl", tmp_path / "early")
    done = reproduce(project, tmp_path, "whole", "--against", str(tmp_path / "early"), "--json")
    assert done.code == ExitCode.DIVERGED, done.stdout + done.stderr
    found = told(done)
    assert (found["is_reproduced"], found["first"], found["step"]) == (True, 0, 4)
    assert found["against"]["verdict"]["first"]["step"] == 1
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["run-1"], "the other is not run again"
    diff = type_command(project, "diff", str(tmp_path / "out" / "run-1"), str(tmp_path / "early"), "--json")
    assert (diff.code, json.loads(diff.stdout)) == (done.code, found["against"]["verdict"])


@pytest.mark.full
def test_a_step_in_whose_middle_a_run_ended_comes_out_again_and_its_nan_is_named(project: Path, tmp_path: Path) -> None:
    train(project, "broken", *NAN, code=1)
    done = reproduce(
        project, tmp_path, "broken", "--step", "3", "--trace-ops", "--bundle", str(tmp_path / "broken.rlb")
    )
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert done.stdout.startswith("REPRODUCED  step 3: it stops inside the step, where the recording stops: 2 values")
    made, origin = (line for line in done.stdout.splitlines() if "aten." in line)
    assert "first NaN: produced by forward aten.sub.Tensor" in made
    assert "from an Inf that was produced from finite numbers by forward aten.mul.Tensor" in origin
    assert "valid: this recording did not change step 3" in done.stdout

    again = type_command(project, "reproduce", str(tmp_path / "broken.rlb"), "--out", str(tmp_path / "again"))
    assert again.code == ExitCode.OK, again.stdout + again.stderr
    assert again.stdout.startswith("REPRODUCED  step 3: it stops inside the step, where the recording stops: 2 values")
