"""`rlharness replay` and `reproduce` with `--break-on` or `--until`: one run, to where it holds."""

import json
import sys
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.render.replay import ONE_RUN
from harness.trace.reader import read_trace
from tests.lab.fragile_entry import write_fragile
from tests.support.cli_commands import Done, type_command

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


def replay(project: Path, *words: str) -> Done:
    return type_command(project, "replay", *words)


def reproduce(project: Path, *words: str) -> Done:
    return type_command(project, "reproduce", *words)


@pytest.mark.full
def test_a_run_ends_at_its_nan_and_leaves_a_bundle_of_it(project: Path) -> None:
    broken = ("--set", "nan_at=3", "--set", "notices=false")
    done = replay(project, "fragile", *broken, "--break-on", "nan", "--out", "stopped", "--json")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    found = json.loads(done.stdout)
    stop = found["stop"]
    assert (stop["condition"], stop["step"], stop["phase"], stop["name"], stop["element"]) == (
        *("nan", 3, "backward", "weights", [0]),
    )
    assert found["bundle"] == str(project / "stopped" / "step-3.rlb")
    assert read_trace(project / "stopped" / "run-1").steps == (0, 1, 2)

    again = reproduce(project, found["bundle"], "--trace-ops", "--out", "again")
    assert again.code == ExitCode.OK, again.stdout + again.stderr
    assert "it matches the recording, which stops before the end of the step: 2 values, every bit" in again.stdout
    assert "repeated from the checkpoint of step 2, with the step before it\n" in again.stdout
    assert "first NaN: produced by forward aten.sub.Tensor" in again.stdout
    assert "the code came from this machine, not from the bundle: tests.lab.fragile_entry:run" in again.stdout


@pytest.mark.full
def test_a_run_ends_where_the_curve_says_so_and_where_it_leaves_another_one(project: Path) -> None:
    assert type_command(project, "train", "fragile", "--out", "whole").code == ExitCode.OK
    until = reproduce(project, "whole", "--until", "loss>0", "--out", "until")
    assert until.stdout.startswith("STOPPED  loss>0.0 after step 0: loss is "), until.stdout + until.stderr
    assert until.code == ExitCode.OK

    diverges = reproduce(project, "whole", "--break-on", "divergence", "--set", "output.noise=0.1", "--out", "diverges")
    assert diverges.stdout.startswith("STOPPED  divergence at step 0, backward weights\n"), diverges.stdout
    assert diverges.code == ExitCode.DIVERGED

    never = reproduce(project, "whole", "--break-on", "divergence", "--break-on", "nan", "--out", "never")
    assert never.stdout.startswith("NOT MET  divergence, nan in 5 steps\n"), never.stdout + never.stderr
    assert never.code == ExitCode.OK

    misspelt = replay(project, "fragile", "--until", "lose<3", "--out", "misspelt")
    assert (misspelt.code, "remedy: did you mean 'loss'?" in misspelt.stderr) == (ExitCode.USAGE_ERROR, True)
    assert not (project / "misspelt").exists(), "a run that was ended by a slip of the hand is not in the way"

    unknown = reproduce(project, "whole", "--until", "lose<3", "--out", "unknown")
    assert unknown.code == ExitCode.USAGE_ERROR
    assert "the curve has no value 'lose'\n  legal:  grad_norm, loss\n" in unknown.stderr
    assert not (project / "unknown").exists()
    idle = replay(project, "fragile", "--until", "loss>0", "--against", "whole", "--out", "idle")
    assert (idle.code, (project / "idle").exists()) == (ExitCode.USAGE_ERROR, False)
    assert "--against with conditions that compare nothing" in idle.stderr


@pytest.mark.full
def test_a_command_ends_in_order_where_a_condition_holds(project: Path) -> None:
    (project / "train.py").write_text(FOREIGN, "utf-8")
    done = replay(project, "--until", "loss<0.5", "--out", "stopped", "--", sys.executable, "train.py")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert done.stdout.startswith("STOPPED  loss<0.5 after step 1: loss is 0.0\n")
    assert "note: a bundle holds a step of a scenario" in done.stdout
    assert f"note: {ONE_RUN}\n" in done.stdout
    assert f"  look closer: rlharness replay --step 1 --trace-ops -- {sys.executable} train.py\n" in done.stdout
    assert (project / "stopped" / "run-1" / "output.log").read_text("utf-8") == "seen 0\n"


@pytest.mark.full
def test_a_command_that_is_traced_does_too(project: Path) -> None:
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
    words = ("--break-on", "nan", "--step", "2", "--out", "r", "--", sys.executable, "train.py")
    done = replay(project, *words)
    assert done.stdout.startswith("STOPPED  nan at step 2, loss loss: nan\n"), done.stdout + done.stderr
    kept = read_trace(project / "r" / "run-1" / "unfinished")
    assert [each.name for each in kept.columns(2, 0).values()][-1] == "loss"
    assert (kept.directory / "tensors" / "rank-0-step-2.safetensors").exists()
    assert "no tensors" not in done.stdout
