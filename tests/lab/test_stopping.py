"""`rlharness train` and `trace` with `--break-on` or `--until`: one run, to where it holds."""

import sys
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.trace.reader import read_trace
from tests.lab.fragile_entry import write_fragile
from tests.support.cli_commands import type_command

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(240)

FOREIGN = """\
import torch
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.5)
for step in range(9):
    loss = weight.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("seen", step, flush=True)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_fragile(tmp_path)
    return tmp_path


@pytest.mark.full
def test_a_run_ends_at_its_nan_and_its_step_is_reproduced(project: Path) -> None:
    broken = ("--set", "nan_at=3", "--set", "notices=false")
    done = type_command(project, "train", "fragile", *broken, "--break-on", "nan", "--out", "stopped")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert "STOPPED  nan at step 3, backward weights, element [0]: nan" in done.stderr
    assert "look closer: rlharness reproduce" in done.stderr
    assert read_trace(project / "stopped").steps == (0, 1, 2)

    again = type_command(project, "reproduce", "stopped", "--step", "3", "--trace-ops", "--out", "again")
    assert again.code == ExitCode.OK, again.stdout + again.stderr
    assert "it matches the recording, which stops before the end of the step: 2 values, every bit" in again.stdout
    assert "repeated from the checkpoint of step 2, with the step before it\n" in again.stdout
    assert "first NaN: produced by forward aten.sub.Tensor" in again.stdout

    misspelt = type_command(project, "train", "fragile", "--until", "lose<3", "--out", "misspelt")
    assert (misspelt.code, "remedy: did you mean 'loss'?" in misspelt.stderr) == (ExitCode.USAGE_ERROR, True)
    assert not (project / "misspelt").exists(), "a run that was ended by a slip of the hand is not in the way"


@pytest.mark.full
def test_a_command_that_is_traced_ends_in_order_where_a_condition_holds(project: Path) -> None:
    (project / "train.py").write_text(FOREIGN, "utf-8")
    words = ("--out", "t", "--until", "loss<0.5", "--", sys.executable, "train.py")
    done = type_command(project, "trace", *words)
    assert (done.code, done.stdout) == (ExitCode.OK, "seen 0\n"), done.stderr
    assert read_trace(project / "t").steps == (0, 1)
    assert done.stderr.splitlines()[-2:] == [
        "rlharness: STOPPED  loss<0.5 after step 1: loss is 0.0",
        f"rlharness:   look closer: rlharness replay --step 1 --trace-ops -- {sys.executable} train.py",
    ]


@pytest.mark.full
def test_of_the_step_in_which_a_command_was_ended_its_values_and_tensors_are_kept(project: Path) -> None:
    (project / "train.py").write_text(FOREIGN.replace(".sum()", ".sum() / (step != 2)"), "utf-8")
    words = ("--break-on", "nan", "--save-tensors", "2", "--out", "r", "--", sys.executable, "train.py")
    done = type_command(project, "trace", *words)
    assert "STOPPED  nan at step 2, loss loss: nan\n" in done.stderr
    kept = read_trace(project / "r" / "unfinished")
    assert [each.name for each in kept.columns(2, 0).values()][-1] == "loss"
    assert (kept.directory / "tensors" / "rank-0-step-2.safetensors").exists()
    assert "no tensors" not in done.stderr
