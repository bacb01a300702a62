"""The page that adds the gate to a repository: every file written, every command typed, in its order."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from harness.lab.experiment.scenario import find_scenario
from harness.lab.gate.gate import DEFAULT, REASONS
from harness.runner.config import load_config
from tests.support.cli_commands import type_command
from tests.support.projects import Project

PAGE = (Path(__file__).parents[3] / "harness" / "lab" / "GATE.md").read_text("utf-8")
WORKFLOW = Path(__file__).parents[3] / ".github" / "workflows" / "gate.yml"
INSTALLS = "pip install"
EXPECTED_CODES = {"gate --base HEAD": [0, 10], "gate --golden goldens": [0]}
"""Of commands that are typed several times, or fail as they should."""


def files() -> dict[str, str]:
    return dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))


def commands() -> list[tuple[str, list[str]]]:
    """Each command, with the lines that the page shows of its output, if it shows any."""
    found: list[tuple[str, list[str]]] = []
    for console, shown in re.findall(
        r"```console\n(.*?)```(?:\n\n<!-- output: [^>]* -->\n```text\n(.*?)```)?", PAGE, re.DOTALL
    ):
        lines = [line.removeprefix("$ ") for line in console.splitlines()]
        found += [(line, []) for line in lines[:-1]] + [(lines[-1], shown.splitlines())]
    return found


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    project = Project(tmp_path / "project")
    for name in ("sums.py", "parts.py", "scenarios/sums.yaml"):
        (project.directory / name).unlink()
    codes = {text: list(expected) for text, expected in EXPECTED_CODES.items()}
    for name, text in files().items():
        project.write(name, text)
    project.commit("What the first part writes")
    for command, shown in commands():
        if command.startswith(INSTALLS):
            continue
        if not command.startswith("rlharness "):
            subprocess.run(["bash", "-ec", command], cwd=project.directory, check=True, env=project.environ)
            continue
        words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', command)[1:]]
        done = type_command(project.directory, *words)
        expected = codes[" ".join(words)].pop(0) if " ".join(words) in codes else 0
        assert done.code == expected, f"{command}\n{done.stdout}{done.stderr}"
        for line in shown:
            assert line in done.stdout, f"{command}\n{done.stdout}"
    assert not any(codes.values()), "every exit code that is expected was seen"


def test_its_files_are_what_they_should_be(tmp_path: Path) -> None:
    found = files()
    (tmp_path / "pyproject.toml").write_text(found["pyproject.toml"], encoding="utf-8")
    assert load_config(tmp_path).gate.scenarios == ["small"]
    assert find_scenario("small", tmp_path).read().command == "python train.py {steps}"
    told = re.findall(r"^\| (.+?) \|", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(told))) == set(REASONS)
    assert set(REASONS) - set(DEFAULT) == {"configuration"}


def test_the_workflow_on_the_page_is_that_of_this_repository_but_for_what_is_ours() -> None:
    (text,) = [each for each in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "jobs:" in each]
    theirs, ours = (yaml.safe_load(each) for each in (text, WORKFLOW.read_text("utf-8")))
    steps = {step.get("run") or step["uses"]: step for step in ours["jobs"]["gate"]["steps"]}
    for step in theirs["jobs"]["gate"]["steps"]:
        if not str(step.get("run")).startswith(INSTALLS):
            mine = steps[step.get("run") or step["uses"]]
            assert step.get("env") == mine.get("env")
            assert (step.get("with") or {}).items() <= (mine.get("with") or {}).items()
