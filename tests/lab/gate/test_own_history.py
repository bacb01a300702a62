"""The gate on this repository itself: a commit on top of its history, and the right verdict."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from tests.support.projects import IDENTITY
from tests.support.suite_runs import ROOT, environment

pytest.importorskip("torch")
pytestmark = [pytest.mark.timeout(300), pytest.mark.full]
GATE = (
    *(sys.executable, "-P", "-m", "harness"),  # not from the working directory, which holds the clone's own harness
    *("gate", "grpo_reverse_text", "--base", "HEAD~1", "--runs", "1", "--json"),
)
TINY = """
model.width=32 model.num_layers=1 model.num_heads=2 model.num_kv_heads=1 model.ffn_width=64 task.num_prompts=32
task.num_heldout=4 warm_start.num_steps=20 training.num_steps=2 training.prompts_per_step=4 training.group_size=4
training.microbatch_size=4 output.tensorboard=false output.num_shown=0
"""


def git(clone: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=clone, env=environment(**IDENTITY), capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this checkout, shallow where that is."""
    if subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, check=False).returncode:
        pytest.skip("not a git checkout: there is no history")
    directory = tmp_path_factory.mktemp("history") / "clone"
    git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(directory))
    return directory


def gated(clone: Path, path: str, old: str, new: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the scenario of a gate on one more commit, which puts a text in the place of another."""
    text = (clone / path).read_text("utf-8")
    assert text.count(old) == 1, f"{path} is another now: what shall the commit change?"
    (clone / path).write_text(text.replace(old, new), encoding="utf-8")
    git(clone, "commit", "--quiet", "--all", "--message", f"{old} becomes {new}")
    overrides = [word for each in TINY.split() for word in ("--set", each)]
    done = subprocess.run(
        [*GATE, *overrides], cwd=clone, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    (scenario,) = told["scenarios"]
    assert git(clone, "worktree", "list").count("\n") == 1
    assert git(clone, "status", "--porcelain") == ""
    return done.returncode, scenario


def test_another_order_of_additions_moves_last_digits_alone(clone: Path) -> None:
    """Microbatches 0 and 2 are added first, then 1 and 3: the same gradients in the tree, another association."""
    code, found = gated(
        clone,
        "rlcore/numerics/tree_sum.py",
        "self.put((0, number), value)",
        "self.put((0, (0, 2, 1, 3)[number] if self.num_values == 4 else number), value)",
    )
    assert (code, found["change"], found["reason_codes"]) == (ExitCode.DIVERGED, "numerics", [])
    counts = found["verdict"]["attribution"]
    assert counts["is_floats_only"]
    assert all(counts[kind]["num_compared"] > 0 for kind in ("tokens", "rewards", "advantage_signs"))
    first = found["verdict"]["first"]
    assert first["a"]["phase"] == "backward", "at the first step in which more than two lanes have a gradient"
    assert found["rounding"]["is_rounding"]
    assert 0 < found["rounding"]["share"] < 1e-5
    assert found["rounding"]["first"].startswith("backward policy.")
    assert found["rounding"]["first_ulp"] > 0
