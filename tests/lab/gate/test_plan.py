"""What the gate was asked for: options over configuration over defaults, and both sides of a scenario."""

import os
from math import inf
from pathlib import Path

import pytest

from harness.bits.errors import UsageError
from harness.cli.gate import gate_options
from harness.cli.main import cli
from harness.lab.experiment.launcher import Run
from harness.lab.experiment.recording_result import Recording
from harness.lab.experiment.scenario import ISOLATED
from harness.lab.experiment.worktrees import Checkout, Side, imports_checkout, open_worktrees
from harness.lab.gate.change import GateCode, change_of_identity
from harness.lab.gate.gate import DEFAULT, GateOptions, base_context, head_contexts, scenario_names
from harness.process.invocation import Invocation
from harness.recording.run_spec import Report, boot_directory
from harness.render.console import say
from tests.support.projects import SCENARIO, Project

TABLE = """
[tool.rlharness.gate]
scenarios = ["sums"]
size = "smoke"
runs = 3
golden = "goldens"
fail-on = ["numerics"]
timeout = 60
"""


def options(directory: Path, *words: str) -> GateOptions:
    arguments = cli.commands["gate"].make_context("gate", list(words)).params
    for name in ("out", "color", "is_json"):
        del arguments[name]
    return gate_options(Invocation(directory, os.environ, note=say), arguments)


def test_the_command_line_goes_over_the_configuration_and_that_over_the_defaults(tmp_path: Path) -> None:
    bare = options(tmp_path)
    assert (bare.names, bare.base, bare.golden, bare.given.size, bare.runs) == ((), "", None, None, 2)
    assert (bare.fail_on, bare.timeout_s) == (DEFAULT, inf)
    (tmp_path / "pyproject.toml").write_text(TABLE, encoding="utf-8")
    (tmp_path / "below").mkdir()
    configured = options(tmp_path / "below")
    assert configured.golden == tmp_path / "goldens", "beside the configuration, wherever it is typed"
    assert (configured.given.size, configured.runs, configured.timeout_s) == ("smoke", 3, 60.0)
    assert configured.fail_on == ("numerics",)
    words = ["a", "--golden", "g", "--runs", "1", "--timeout", "inf", "--size", "x"]
    typed = options(tmp_path, *words, "--fail-on", "numerics, behaviour")
    assert typed.golden == tmp_path / "g"
    assert (typed.names, typed.runs, typed.given.size) == (("a",), 1, "x")
    assert (typed.fail_on, typed.timeout_s) == (("numerics", "behaviour"), inf)
    assert options(tmp_path, "--fail-on", "none").fail_on == ()


def test_one_run_does_not_make_a_golden_and_the_gate_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options(tmp_path, "--golden", "g", "--accept", "--reason", "why", "--runs", "1")
    assert "2 runs of the working tree are made, not 1" in capsys.readouterr().err
    options(tmp_path, "--golden", "g", "--runs", "2")
    options(tmp_path, "--base", "HEAD", "--runs", "1")
    assert capsys.readouterr().err == ""


def test_scenarios_are_those_typed_those_configured_or_all_of_the_project(tmp_path: Path) -> None:
    """And none of a package that is installed beside it, such as this one's own."""
    project = Project(tmp_path / "project")
    side = Side(project.directory, project.directory, {})
    project.write("scenarios/more.yaml", SCENARIO)
    assert scenario_names(side, options(project.directory)) == ("more", "sums")
    project.write("pyproject.toml", TABLE)
    assert scenario_names(side, options(project.directory)) == ("sums",)
    assert scenario_names(side, options(project.directory, "x", "y")) == ("x", "y")


def test_each_side_has_its_own_file(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    project = Project(tmp_path / "project")
    project.change("More", "num_steps: 3", "num_steps: 4", "scenarios/sums.yaml")
    project.write("scenarios/new.yaml", SCENARIO)
    found = Checkout(project.directory, os.environ)
    given = options(project.directory, "sums", "new", "grpo_sorting")
    with open_worktrees(found) as worktrees, worktrees.at(found.commit("HEAD~1")) as base:
        head = worktrees.working_tree
        scene, new, packaged = head_contexts(head, given)
        assert scene.run_spec.argv == ISOLATED
        assert scene.run_spec.identity["num_steps"] == "4"
        other = base_context(scene, head, base, given)
        assert other is not None
        assert (other.side, other.run_spec.identity["num_steps"], other.size) == (base, "3", "smoke")
        assert base_context(new, head, base, given) is None
        same = base_context(packaged, head, base, given)
        assert same is not None
        assert same.run_spec.identity == packaged.run_spec.identity
        changed = change_of_identity(other.run_spec.identity, scene.run_spec.identity)
        assert changed is not None
        assert changed.reasons == (GateCode.SETTING_CHANGED(name="num_steps", base="3", head="4"),)
        assert change_of_identity(scene.run_spec.identity, scene.run_spec.identity) is None


def test_a_tree_that_would_be_compared_with_itself_is_refused(tmp_path: Path) -> None:
    """Whose code a process of the worktree imports from the checkout, as an editable install of another kind does."""
    checkout, base, elsewhere = (tmp_path / name for name in ("checkout", "base", "elsewhere"))
    side = Side(base, base, {})

    def run(*sources: Path) -> Run:
        report = Report(1, (), "python", sources=tuple(map(str, sources)))
        return Run(1, False, Recording(tmp_path, 0, 3, (0,), 100, reports=(report,)), 1.0)

    assert imports_checkout(run(base / "src", elsewhere), side, checkout)
    assert not imports_checkout(run(elsewhere), side, checkout), "the same code on both sides"
    with pytest.raises(UsageError, match=r"imports from .*checkout/src, and not from the worktree"):
        imports_checkout(run(checkout / "src"), side, checkout)
    assert imports_checkout(run(checkout), Side(checkout, checkout, {}), checkout)
    boot = boot_directory()
    assert not imports_checkout(run(boot), side, boot.parents[2]), "this package, which records both sides"
