"""`rlharness gate` as a user types it, on a small project: verdicts, goldens, policies, what is left behind."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from tests.support.cli_commands import Done, type_command
from tests.support.projects import Project
from tests.support.suite_runs import started

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(180)


def gate(project: Project, *words: str, **env: str) -> Done:
    done = type_command(project.directory, "gate", "--runs", "1", *words, **env)
    assert project.worktrees == [], "worktrees are gone, whatever came out"
    return done


def told(done: Done) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["exit_code"] == done.code
    return found


def only(done: Done) -> dict[str, Any]:
    (scenario,) = told(done)["scenarios"]
    assert isinstance(scenario, dict)
    return scenario


def codes(scenario: dict[str, Any]) -> list[str]:
    return [reason["code"] for reason in scenario["reason_codes"]]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.mark.full
def test_another_configuration_is_another_run(project: Project, tmp_path: Path) -> None:
    """Which fails where that is asked for; a job of GitHub is told in its own way."""
    project.change("More steps", "num_steps: 3", "num_steps: 4", "scenarios/sums.yaml")
    summary = tmp_path / "summary.md"
    on_github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    passing = gate(project, **on_github)
    assert passing.code == ExitCode.OK, "not by default"
    assert "CONFIGURATION CHANGED  sums\n  num_steps was 3 and is 4\n" in passing.stdout
    assert "\n::warning title=sums%3A configuration changed::CONFIGURATION CHANGED%0A" in passing.stderr
    failing = gate(project, "--fail-on", "configuration", "--json", **on_github)
    assert failing.code == told(failing)["exit_code"] == ExitCode.NOT_COMPARABLE
    assert "\n::error title=sums%3A configuration::CONFIGURATION CHANGED%0A" in failing.stderr
    headings = [line for line in summary.read_text("utf-8").splitlines() if line.startswith("#")]
    assert headings == ["### rlharness gate: passed", "### rlharness gate: failed"]


def test_new_ones_and_those_that_are_gone_are_told(project: Project) -> None:
    shutil.copy(project.directory / "scenarios" / "sums.yaml", project.directory / "scenarios" / "more.yaml")
    (project.directory / "scenarios" / "sums.yaml").unlink()
    done = gate(project, "--base", "HEAD", "--json")
    assert {each["name"]: each["change"] for each in told(done)["scenarios"]} == {"more": "new", "sums": "removed"}
    assert done.code == ExitCode.OK


@pytest.mark.full
def test_a_scenario_that_cannot_be_read_is_refused_before_anything_runs(project: Project) -> None:
    project.write("scenarios/torn.yaml", "about: [")
    done = gate(project, "--base", "HEAD")
    assert (done.code, done.stdout) == (ExitCode.USAGE_ERROR, "")
    assert "torn.yaml" in done.stderr
    assert "run 1" not in done.stderr, "sums comes first, and has not been run"


@pytest.mark.full
def test_one_that_the_base_alone_cannot_read_is_told_beside_the_others(project: Project) -> None:
    text = (project.directory / "scenarios" / "sums.yaml").read_text("utf-8")
    project.commit("Torn", **{"scenarios/sums.yaml": "about: ["})
    project.write("scenarios/sums.yaml", text)
    project.write("scenarios/zeros.yaml", text)
    done = gate(project, "--base", "HEAD", "--json")
    found = {each["name"]: each for each in told(done)["scenarios"]}
    assert {name: each["change"] for name, each in found.items()} == {"sums": "not_comparable", "zeros": "new"}
    assert (done.code, codes(found["sums"])) == (ExitCode.NOT_COMPARABLE, ["base_rejected"])


@pytest.mark.full
def test_an_entry_with_another_name_is_not_comparable(project: Project) -> None:
    """Its module was renamed, so nothing is compared: that is no pass."""
    (project.directory / "sums.py").rename(project.directory / "totals.py")
    scenario = (project.directory / "scenarios" / "sums.yaml").read_text("utf-8")
    project.write("scenarios/sums.yaml", scenario.replace("sums:run", "totals:run"))
    done = gate(project, "--base", "HEAD", "--json")
    assert (done.code, only(done)["change"]) == (ExitCode.NOT_COMPARABLE, "not_comparable")
    assert only(done)["reasons"] == ["(entry) was sums:run and is totals:run"]


@pytest.mark.full
def test_what_does_not_run_always_fails_and_an_old_one_that_did_not_is_not_comparable(project: Project) -> None:
    project.change("Broken", "SCALE = 1.0", "SCALE = 1 / 0")
    done = gate(project, "--fail-on", "none", "--json")
    assert (done.code, only(done)["change"]) == (ExitCode.INCOMPLETE_RECORDING, "broken")
    project.change("Mended", "SCALE = 1 / 0", "SCALE = 1.0")
    mended = gate(project, "--json")
    assert (mended.code, only(mended)["change"]) == (ExitCode.NOT_COMPARABLE, "not_comparable")
    assert "head, run 1: 3 steps" not in mended.stderr


@pytest.mark.full
def test_a_golden_is_accepted_held_and_on_another_machine_the_base_decides(project: Project) -> None:
    goldens = ("--golden", "goldens")
    done = gate(project, *goldens, "--accept", "--reason", "the first ones")
    assert done.code == ExitCode.OK, done.stderr
    assert "ACCEPTED  sums (golden " in done.stdout and "\npassed: 1 accepted\n" in done.stdout
    (directory,) = (project.directory / "goldens" / "sums.smoke").iterdir()
    (entry,) = json.loads((directory / "golden.json").read_text("utf-8"))["history"]
    assert (entry["reason"], entry["by"], entry["commit"]) == ("the first ones", "Ada", project.first[:7])
    assert len((directory / "curve.jsonl").read_text("utf-8").splitlines()) == 3
    project.commit("Goldens")

    project.change("The other sign", "SIGN = 1.0", "SIGN = -1.0")
    moved = gate(project, *goldens, "--json")
    assert (moved.code, only(moved)["change"]) == (ExitCode.DIVERGED, "behaviour")
    first = only(moved)["reason_codes"][0]
    assert (first["code"], first["first_step"]) == ("advantage_signs_changed", 0)

    again = gate(project, *goldens, "--accept", "--reason", "another sign", "--json")
    replaced = only(again)["reason_codes"][0]
    assert (replaced["code"], replaced["change"]) == ("golden_replaced", "behaviour")
    assert [each["reason"] for each in only(again)["golden"]] == ["the first ones", "another sign"]

    directory.rename(directory.with_name("0123456789ab"))
    golden = directory.with_name("0123456789ab") / "manifest.json"
    golden.write_text(golden.read_text("utf-8").replace('"python": "', '"python": "P'), encoding="utf-8")
    foreign = gate(project, *goldens, "--base", "HEAD", "--json")
    assert (foreign.code, only(foreign)["change"]) == (ExitCode.OK, "equal")
    assert only(foreign)["note_codes"][0] == {"code": "no_golden_for_environment", "names": ["python"]}
    assert only(foreign)["against"].startswith("base ")


@pytest.mark.full
def test_goldens_are_looked_at_before_anything_runs(project: Project) -> None:
    nowhere = gate(project, "--golden", "gildens")
    assert (nowhere.code, nowhere.stdout) == (ExitCode.USAGE_ERROR, "")
    assert "there are no goldens in " in nowhere.stderr
    (project.directory / "goldens" / "sums.smoke" / "0123456789ab").mkdir(parents=True)
    project.write("goldens/sums.smoke/0123456789ab/golden.json", "{")
    for words in ((), ("--accept", "--reason", "it is torn")):
        torn = gate(project, "--golden", "goldens", *words)
        assert (torn.code, torn.stdout) == (ExitCode.USAGE_ERROR, "")
        assert "golden.json cannot be read: " in torn.stderr
        assert " begins" not in torn.stderr
    assert not (project.directory / ".rlharness").exists(), "nothing is left of what was refused"
    shutil.rmtree(project.directory / "goldens" / "sums.smoke")
    none = gate(project, "--golden", "goldens")
    assert none.code == ExitCode.NOT_COMPARABLE
    assert " begins" not in none.stderr, "there is neither a golden nor a base"
    assert "sums.smoke holds no golden\n" in none.stdout
    assert "  there is no base: " in none.stdout


@pytest.mark.full
def test_a_scenario_that_is_not_steady_is_to_be_replayed_as_the_gate_has_run_it(project: Project) -> None:
    project.change("Another sign in every process", "SIGN = 1.0", "SIGN = 1.0\nimport os\nSIGN = float(os.getpid())")
    words = ("--golden", "goldens", "--accept", "--reason", "the first ones", "--set", "num_steps=2")
    done = gate(project, *words)
    assert done.code == ExitCode.NOT_COMPARABLE, done.stderr
    assert "  look closer: rlharness replay sums --size smoke --set num_steps=2\n" in done.stdout


@pytest.mark.full
def test_without_a_base_nothing_passes(project: Project) -> None:
    done = gate(project)
    assert done.code == ExitCode.NOT_COMPARABLE
    assert "  there is no base: no commit before this one, no branch of origin" in done.stdout
    shutil.rmtree(project.directory / ".git")
    assert type_command(project.directory, "gate").code == ExitCode.USAGE_ERROR


@pytest.mark.full
def test_what_is_interrupted_leaves_nothing_behind(project: Project) -> None:
    project.change("Slow", "WAIT_S = 0.0", "WAIT_S = 0.0\nimport time\ntime.sleep(60)")
    with started(project.directory, "gate", "--base", "HEAD") as process:
        assert process.stderr is not None
        assert any("base, run 1 begins" in line for line in process.stderr)
        assert len(project.worktrees) == 1
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "interrupted by SIGINT: no verdict" in stdout
    assert project.worktrees == []


@pytest.mark.full
def test_the_policy_of_the_base_applies(project: Project) -> None:
    """Or a pull request that changes a scenario would let itself pass."""
    strict = '[tool.rlharness.gate]\nscenarios = ["sums"]\nfail-on = ["configuration"]\n'
    config = project.directory / "pyproject.toml"
    before = config.read_text("utf-8") if config.exists() else ""
    project.commit("Strict", **{"pyproject.toml": before + strict})
    project.change("More steps", "num_steps: 3", "num_steps: 4", "scenarios/sums.yaml")
    for lax in ('scenarios = ["sums"]\nfail-on = []\n', 'scenarios = []\nfail-on = ["configuration"]\n'):
        project.write("pyproject.toml", before + "[tool.rlharness.gate]\n" + lax)
        done = gate(project, "--base", "HEAD~1", "--json")
        assert (done.code, only(done)["change"]) == (ExitCode.NOT_COMPARABLE, "configuration")
        name = "fail-on" if "fail-on = []" in lax else "scenarios"
        assert f"note: {name} of [tool.rlharness.gate] changed: that of the base applies" in done.stderr
    typed = gate(project, "--base", "HEAD~1", "--fail-on", "none", "--json")
    assert typed.code == ExitCode.OK, "what is typed counts"
