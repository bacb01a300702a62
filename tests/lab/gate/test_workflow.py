"""The workflow by which this repository gates itself: what it types exists, and what it fetches is enough."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.cli.main import cli
from harness.lab.experiment.worktrees import Checkout
from harness.lab.gate.gate import GATES
from harness.process.run_directory import HOME
from tests.support.cli_commands import type_command
from tests.support.projects import IDENTITY, Project

ROOT = Path(__file__).parents[3]
BASE = "github.event.pull_request.base.sha"


def workflow() -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "gate.yml").read_text("utf-8"))
    return found


def steps() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = workflow()["jobs"]["gate"]["steps"]
    return found


def step_of(action: str) -> dict[str, Any]:
    (found,) = (each for each in steps() if str(each.get("uses")).startswith(f"{action}@"))
    return found


def gate_step() -> tuple[list[str], dict[str, str]]:
    """The words after `gate`, and the variables that the step sets."""
    (found,) = (each for each in steps() if str(each.get("run")).startswith("rlharness "))
    program, command, *words = shlex.split(found["run"])
    assert (program, command) == ("rlharness", "gate")
    return words, found["env"]


def test_what_it_types_and_names_exists() -> None:
    words, env = gate_step()
    assert cli.commands["gate"].make_context("gate", list(words)).params["base"] == "$BASE"
    assert env == {"BASE": f"${{{{ {BASE} }}}}"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (install,) = (each["run"] for each in steps() if "pip install" in str(each.get("run")))
    (extra,) = re.findall(r"-e '\.\[(\w+)\]'", install)
    assert extra in project["optional-dependencies"]
    (constraints,) = re.findall(r"-c (\S+)", install)
    python = step_of("actions/setup-python")["with"]
    assert python["cache-dependency-path"] == constraints
    assert (ROOT / constraints).is_file()
    assert f"Programming Language :: Python :: {python['python-version']}" in project["classifiers"]


def test_what_it_uploads_is_where_traces_go() -> None:
    found = step_of("actions/upload-artifact")
    assert found["with"]["path"] == f"{HOME}/{GATES}"
    assert found["with"]["include-hidden-files"], "whose name begins with a dot"
    assert found["if"] == "failure()"


# ---------------------------------------------------------------------------------------------- as a runner has it


@pytest.fixture
def pull_request(tmp_path: Path) -> tuple[Project, str]:
    """A repository whose main has gone on since a branch was begun, and the merge of both; and the base."""
    project = Project(tmp_path / "origin")
    project.git("checkout", "--quiet", "-b", "topic")
    project.change("Another sign", "SIGN = 1.0", "SIGN = -1.0")
    project.git("checkout", "--quiet", "main")
    base = project.commit("Main goes on", **{"more.txt": "1"})
    project.git("checkout", "--quiet", "--detach")
    project.git("merge", "--quiet", "--no-edit", "topic")
    project.git("update-ref", "refs/pull/1/merge", "HEAD")
    project.git("checkout", "--quiet", "main")
    return project, base


def checked_out(origin: Path, directory: Path, depth: int) -> Path:
    """The merge of a pull request, as actions/checkout has it: one ref fetched, all of them for depth 0; detached."""
    refs = ["+refs/pull/1/merge:refs/remotes/pull/1/merge"]
    refs += ["+refs/heads/*:refs/remotes/origin/*"] if depth == 0 else [f"--depth={depth}"]
    for words in (
        ["init", "--quiet", str(directory)],
        ["-C", str(directory), "fetch", "--quiet", "--no-tags", f"file://{origin}", *refs],
        ["-C", str(directory), "checkout", "--quiet", "--force", "refs/remotes/pull/1/merge"],
    ):
        subprocess.run(["git", *words], check=True)
    return directory


@pytest.mark.full
@pytest.mark.timeout(180)
def test_its_command_says_what_a_pull_request_does(pull_request: tuple[Project, str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    project, base = pull_request
    clone = checked_out(project.directory, tmp_path / "clone", step_of("actions/checkout")["with"]["fetch-depth"])
    words, _ = gate_step()
    summary = tmp_path / "summary.md"
    on_github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary), "CI": "true"}
    typed = [base if word == "$BASE" else word for word in words]
    done = type_command(clone, "gate", *typed, **on_github)
    assert done.code == ExitCode.DIVERGED, done.stderr
    for text in (done.stdout, summary.read_text("utf-8")):
        assert "BEHAVIOUR CHANGED  sums: step 0: the advantages differ in 64 of 64 elements\n" in text
    assert "\n::error title=sums%3A behaviour::BEHAVIOUR CHANGED" in done.stderr


def test_without_its_depth_the_base_is_not_there_and_what_to_do_is_said(
    pull_request: tuple[Project, str], tmp_path: Path
) -> None:
    project, base = pull_request
    clone = checked_out(project.directory, tmp_path / "clone", 1)
    with pytest.raises(UsageError, match="and this is a shallow clone") as refused:
        Checkout(clone, IDENTITY).commit(base)
    assert "fetch-depth: 0" in refused.value.remedy
