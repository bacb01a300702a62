"""The guards `corpus` and `trainers` are red where they must be: each has a breach planted."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conformance.programs import checks
from tests.guards import corpus, trainers
from tests.guards.guard import ROOT, Context

OTHER_DIFF = """\
import os, subprocess, sys
env = os.environ | {{"PYTHONPATH": {root!r}}}
done = subprocess.run([sys.executable, "-m", "harness", *sys.argv[1:]], env=env, stdout=subprocess.PIPE, text=True)
print(done.stdout.replace('"phase": "backward"', '"phase": "forward"'), end="")
sys.exit(done.returncode)
"""
OTHER_BITS = """
import torch
_seed = torch.manual_seed
torch.manual_seed = lambda seed: _seed(seed + 1)
"""


@pytest.mark.full
def test_another_phase_is_red_and_the_other_pairs_stay_green(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = tmp_path / "head"
    (head / "harness").mkdir(parents=True)
    (head / "harness" / "__init__.py").touch()
    (head / "harness" / "__main__.py").write_text(OTHER_DIFF.format(root=str(ROOT)), "utf-8")
    pairs = json.loads(corpus.PAIRS.read_text("utf-8"))
    few = {name: pairs[name] for name in ("diverged: backward", "diverged: loss")}
    monkeypatch.setattr(corpus, "PAIRS", tmp_path / "pairs.json")
    corpus.PAIRS.write_text(json.dumps(few), "utf-8")
    green = list(corpus.rows(Context(True, tmp_path)))
    monkeypatch.setattr(corpus, "ROOT", head)
    red = list(corpus.rows(Context(True, tmp_path)))
    assert [row.problem for row in green] == ["", ""]
    assert [row.problem for row in red] == ["phase is forward, was backward", ""]


def test_a_trace_that_cannot_be_read_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = json.loads(corpus.PAIRS.read_text("utf-8"))
    monkeypatch.setattr(corpus, "PAIRS", tmp_path / "pairs.json")
    monkeypatch.setattr(corpus, "RECORDED", tmp_path / "recorded")
    corpus.PAIRS.write_text(json.dumps({"one": pairs["threads, equal"]}), "utf-8")
    log = (
        Path(shutil.copytree(corpus.TRACES / "recorded" / "threads", tmp_path / "recorded" / "threads")) / "rank-0.log"
    )
    log.write_bytes(b"rlhtrace\2" + log.read_bytes()[9:])
    (row,) = corpus.rows(Context(True, tmp_path))
    assert row.problem.startswith("exit is 4, was 0")


@pytest.mark.full
def test_a_recorder_that_changes_bits_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "harness", tmp_path / "head" / "harness")
    with (tmp_path / "head" / "harness" / "recording" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write(OTHER_BITS)
    monkeypatch.setattr(checks, "ROOT", tmp_path / "head")
    monkeypatch.setattr(trainers, "QUICK", ("dqn",))
    (row,) = trainers.rows(Context(True, tmp_path / "work"))
    assert "final weights: " in row.problem
