"""A repository that is not ours: its trainer is gated, bisected and reproduced as a command, with a scenario's name."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.cli.main import main

TRAIN = """
import sys, torch
from src.net import Net
torch.manual_seed(0); torch.set_num_threads(1)
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 5
net = Net(); optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
data = torch.randn(64, 8)
for step in range(steps):
    x = data[step * 8 : step * 8 + 8]
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)
    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))
"""
TABLE = """
[[tool.rlharness.scenario]]
name = "small"
command = "python train.py {steps}"
config = { steps = 5 }
sizes = { smoke = { steps = 2 } }
runtime-sections = []
"""
COMMAND = ("--", "python", "train.py")


def git(directory: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(directory), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight commits: a trainer, comments, a changed loss as the sixth, comments."""
    path = tmp_path_factory.mktemp("repository")
    git(path, "init", "-q", "-b", "main")
    (path / "src").mkdir()
    (path / "train.py").write_text(TRAIN)
    (path / "src" / "net.py").write_text(NET)
    (path / "pyproject.toml").write_text(TABLE)
    (path / ".gitignore").write_text("__pycache__\n.rlharness\n")
    for number in range(8):
        if number == 5:
            (path / "train.py").write_text((path / "train.py").read_text().replace("pow(2)", "abs()"))
        else:
            with (path / "src" / "net.py").open("a") as file:
                file.write(f"# comment {number}\n")
        git(path, "add", "-A")
        git(path, "-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "-qm", f"commit {number}")
    return path


@pytest.fixture
def repository(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The repository, which is the working directory."""
    monkeypatch.chdir(made)
    return made


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    """The exit code and the JSON of a command; `--json` goes before the command's own `--`."""
    at = words.index("--") if "--" in words else len(words)
    capsys.readouterr()
    code = main([*words[:at], "--json", *words[at:]])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.full
def test_the_gate_tells_a_comment_from_a_changed_loss(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = answer(capsys, "gate", "--base", "HEAD~1", "--runs", "1", *COMMAND)
    assert (code, told["scenarios"][0]["change"]) == (0, "equal"), told  # type: ignore[index]
    code, told = answer(capsys, "gate", "--base", "HEAD~3", "--runs", "1", "small")
    assert (code, told["scenarios"][0]["change"]) == (ExitCode.DIVERGED, "behaviour"), told  # type: ignore[index]


@pytest.mark.full
def test_bisect_names_the_commit_that_changed_the_loss(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = answer(capsys, "bisect", "--good", "HEAD~3", "--bad", "HEAD", *COMMAND, "2")
    assert code == 0
    assert told["commit"]["name"] == git(repository, "rev-parse", "HEAD~2")  # type: ignore[index]


@pytest.mark.full
def test_reproduce_repeats_a_step_of_a_recorded_command(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = str(tmp_path / "run")
    assert main(["trace", "--out", run, *COMMAND]) == 0
    capsys.readouterr()
    assert main(["reproduce", run]) == ExitCode.USAGE_ERROR
    assert "add to this line: -- python train.py" in capsys.readouterr().err
    code, told = answer(capsys, "reproduce", run, "--step", "3", *COMMAND)
    assert (code, told["is_reproduced"]) == (0, True)
    code, told = answer(capsys, "reproduce", run, "--step", "3", "--trust")
    assert (code, told["is_reproduced"]) == (0, True)
    monkeypatch.setenv("PYTHONPATH", "")
    (repository / "train.py").write_text((repository / "train.py").read_text().replace("lr=0.01", "lr=0.02"))
    try:
        assert answer(capsys, "reproduce", run, "--step", "3", *COMMAND)[0] == ExitCode.DIVERGED
    finally:
        git(repository, "checkout", "-q", "train.py")


@pytest.mark.full
def test_a_worktree_is_prepared_and_never_runs_the_checkout(
    repository: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    setup = f"pwd >> {tmp_path}/where; ls $RLHARNESS_CHECKOUT/train.py; exit 3"
    code, told = answer(capsys, "gate", "--base", "HEAD~1", "--setup", setup, *COMMAND)
    assert code == ExitCode.NOT_COMPARABLE and "--setup ended with exit code 3" in str(told), told
    assert str(repository) not in (tmp_path / "where").read_text()
    own = f"import sys; sys.path.insert(0, {str(repository)!r}); exec(open('train.py').read())"
    assert main(["gate", "--base", "HEAD~1", "--runs", "1", "--", "python", "-c", own]) == ExitCode.USAGE_ERROR
    assert f"imports from {repository}" in capsys.readouterr().err


def test_a_scenario_of_a_command_fills_its_words(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "--json"]) == 0
    (found,) = [each for each in json.loads(capsys.readouterr().out)["scenarios"] if each["name"] == "small"]
    assert (found["sizes"], found["command"]) == (["smoke"], "python train.py {steps}")
    assert main(["train", "small", "--size", "smoke", "--out", "run"]) == 0
    assert "recorded 2 steps" in capsys.readouterr().err
    assert json.loads(Path("run/manifest.json").read_text())["argv"] == ["python", "train.py", "2"]
    assert os.listdir("run/processes")
