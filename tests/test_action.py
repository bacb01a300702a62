"""The GitHub action and the hooks for pre-commit: their shell steps run in a repository of their own, by bash."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.bits.exit_codes import ExitCode
from harness.cli.main import cli, main
from tests.support.manual import tracked
from tests.support.projects import IDENTITY, Project
from tests.support.suite_runs import HARNESS, environment

ROOT = Path(__file__).parents[1]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
HOOKS: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
EXPRESSION = re.compile(r"\$\{\{ ([\w.-]+) \}\}")
PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")


def run_step(name: str, inputs: Mapping[str, str], cwd: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    """Run a step of the action as GitHub does; the directory `programs` comes first on the path."""
    (step,) = (each for each in ACTION["runs"]["steps"] if each["name"] == name)
    assert step["shell"] == "bash"
    given = {key: str(entry["default"]) for key, entry in ACTION["inputs"].items()} | dict(inputs)
    values = {f"inputs.{key}": value for key, value in given.items()} | {"github.action_path": str(ROOT)}
    variables = {key: EXPRESSION.sub(lambda match: values[match[1]], text) for key, text in step["env"].items()}
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=cwd,
        env=environment(**IDENTITY, **variables, PATH=path),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with this checkout's `rlharness`."""
    directory = tmp_path / "programs"
    directory.mkdir()
    write_program(directory / "rlharness", f'exec {shlex.join(HARNESS)} "$@"')
    return directory


def write_program(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
    path.chmod(0o755)


# -------------------------------------------------------------------------------- the action


def test_every_expression_names_an_input_and_none_stands_in_a_script() -> None:
    steps = ACTION["runs"]["steps"]
    named = set(EXPRESSION.findall(yaml.safe_dump(steps))) | {f"inputs.{name}" for name in ("run", "gate")}
    assert named == {f"inputs.{name}" for name in ACTION["inputs"]} | {"github.action_path"}
    assert [step["name"] for step in steps if "${{" in step["run"]] == []
    assert all(entry["description"] for entry in ACTION["inputs"].values())


def test_the_install_step_installs_the_action_itself(tmp_path: Path, programs: Path) -> None:
    write_program(programs / "python", 'printf "%s\\n" "$@"')
    done = run_step("Install rlharness", {"extras": "engine,ray", "constraints": "c.txt"}, tmp_path, programs)
    wanted = f"rlharness[engine,ray] @ file://{ROOT.resolve()}"
    assert done.stdout.splitlines() == ["-P", "-m", "pip", "install", "-c", "c.txt", wanted]
    bare = run_step("Install rlharness", {}, tmp_path, programs)
    assert bare.stdout.splitlines()[:4] == ["-P", "-m", "pip", "install"]
    assert "-c" not in bare.stdout.splitlines()


@pytest.mark.full
@pytest.mark.parametrize(("name", "code", "line"), [("good", 0, "1 unit: 1 passed"), ("bad", 1, "1 unit: 1 failed")])
def test_the_run_step_runs_tests(tmp_path: Path, programs: Path, name: str, code: int, line: str) -> None:
    text = "def test_good():\n    pass\n\n\ndef test_bad():\n    assert 0\n"
    (tmp_path / "test_a b.py").write_text(text, encoding="utf-8")
    done = run_step("Run the tests", {"run": f"--gpus none 'test_a b.py' -- -k {name}"}, tmp_path, programs)
    assert done.returncode == code, done.stderr
    assert line in done.stdout


def test_no_module_of_the_repository_splits_the_arguments(tmp_path: Path, programs: Path) -> None:
    write_program(programs / "rlharness", 'echo "$#:$*"')
    (tmp_path / "shlex.py").write_text("def split(text): return ['forged']\n", encoding="utf-8")
    assert run_step("Run the tests", {"run": "a 'b c'"}, tmp_path, programs).stdout == "3:run a b c\n"
    assert run_step("Gate", {"gate": "a", "base": ""}, tmp_path, programs).stdout == "2:gate a\n"


def test_true_stands_for_no_arguments_and_quotes_must_match(tmp_path: Path, programs: Path) -> None:
    write_program(programs / "rlharness", 'echo "$#:$*"')
    assert run_step("Run the tests", {"run": "true"}, tmp_path, programs).stdout == "1:run\n"
    assert run_step("Gate", {"gate": "true", "base": ""}, tmp_path, programs).stdout == "1:gate\n"
    assert (
        run_step("Gate", {"gate": "a 'b c'", "base": "main"}, tmp_path, programs).stdout == "5:gate --base main a b c\n"
    )
    unmatched = run_step("Run the tests", {"run": "'a"}, tmp_path, programs)
    assert (unmatched.returncode, unmatched.stdout) == (1, "")


@pytest.mark.full
@pytest.mark.timeout(240)
def test_the_gate_step_compares_with_the_base(tmp_path: Path, programs: Path) -> None:
    pytest.importorskip("torch")
    project = Project(tmp_path / "project")
    project.change("Another sign", "SIGN = 1.0", "SIGN = -1.0")
    done = run_step("Gate", {"gate": "sums", "base": project.first}, project.directory, programs)
    assert done.returncode == ExitCode.DIVERGED, done.stderr
    assert "BEHAVIOUR CHANGED  sums" in done.stdout


# -------------------------------------------------------------------------------- workflows


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_only_read_and_pin_their_actions_by_commit(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert [each for each in used if each != "./" and not PINNED.fullmatch(each)] == []
    checkouts = [step["with"] for step in steps if str(step.get("uses")).startswith("actions/checkout@")]
    assert checkouts
    assert all(given["persist-credentials"] is False for given in checkouts)


def test_pages_show_no_action_by_a_name_that_can_be_moved() -> None:
    """`COMMIT` is what the reader puts in the place of a hash, where the action is our own."""
    shown = {
        used: path
        for path in tracked()
        if path.endswith(".md") and not path.startswith(".") and (ROOT / path).exists()
        for used in re.findall(r"^\s*- uses: (\S+)", (ROOT / path).read_text("utf-8"), re.MULTILINE)
    }
    assert len(shown) >= 3
    assert [used for used in shown if not PINNED.fullmatch(used) and used != "rlharness/rlharness@COMMIT"] == []


def test_the_workflow_uses_the_action_with_inputs_that_it_has() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "action.yml").read_text("utf-8"))
    (own,) = (step for step in workflow["jobs"]["action"]["steps"] if step.get("uses") == "./")
    assert own["with"].keys() <= ACTION["inputs"].keys()
    typed = [str(step.get("run")) for step in workflow["jobs"]["hooks"]["steps"]]
    (tried,) = (words.split() for words in typed if words.startswith("pre-commit try-repo"))
    assert tried[3] in {hook["id"] for hook in HOOKS}


# -------------------------------------------------------------------------------- hooks


def test_every_hook_types_a_command_with_options_that_it_has() -> None:
    assert [hook["id"] for hook in HOOKS] == ["rlharness-scenarios", "rlharness-run", "rlharness-gate"]
    for hook in HOOKS:
        program, command, *words = shlex.split(hook["entry"])
        assert program == "rlharness"
        cli.commands[command].make_context(command, words)


@pytest.mark.parametrize(("text", "code"), [("{", ExitCode.USAGE_ERROR), (None, ExitCode.OK)])
def test_the_hook_of_scenarios_fails_for_a_file_that_holds_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    code: ExitCode,
) -> None:
    if text is not None:
        (tmp_path / "scenarios").mkdir()
        (tmp_path / "scenarios" / "mine.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (hook,) = (each for each in HOOKS if each["id"] == "rlharness-scenarios")
    assert main(shlex.split(hook["entry"])[1:]) == code
    assert ("mine: cannot be read" in capsys.readouterr().out) == (text is not None)
    assert main(["scenarios"]) == ExitCode.OK, "without --check it is no failure"
