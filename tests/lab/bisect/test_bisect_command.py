"""`rlharness bisect` as a user types it, on a small project."""

import json
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from tests.support.cli_commands import Done, type_command
from tests.support.projects import Project

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(180)


def bisect(project: Project, *words: str) -> Done:
    done = type_command(project.directory, "bisect", "sums", *words)
    assert project.worktrees == []
    return done


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.mark.full
def test_the_commit_that_first_moved_a_bit_is_found_past_one_that_does_not_run(project: Project) -> None:
    """On a branch that was merged; what is not committed does not count."""
    project.git("checkout", "--quiet", "-b", "side")
    project.commit("Nothing", **{"more.txt": "1"})
    project.change("A little more", "SCALE = 1.0", "SCALE = 1.0000001")
    found = project.git("rev-parse", "HEAD")
    project.commit("Nothing either", **{"more.txt": "2"})
    project.git("checkout", "--quiet", "main")
    project.change("Does not run", "SIGN = 1.0", "SIGN = 1 / 0")
    project.change("Runs again", "SIGN = 1 / 0", "SIGN = 1.0")
    project.git("-c", "user.email=a@example.org", "merge", "--quiet", "--no-edit", "side")
    project.write("parts.py", "nonsense")
    done = bisect(project, "--good", project.first, "--bad", "HEAD", "--json")
    assert done.code == ExitCode.OK, done.stderr
    told = json.loads(done.stdout)
    assert told["found"]["name"] == told["commit"]["name"] == found
    assert told["commit"]["author"] == "Ada"
    first = told["verdict"]["first"]
    assert (first["step"], first["a"]["phase"], first["a"]["name"]) == (0, "backward", "weight")
    assert told["num_probes"] <= 3
    assert told["last_good"]["outcome"] == "good"


@pytest.mark.full
def test_ends_that_are_not_what_they_should_be_are_refused(project: Project) -> None:
    project.change("A little more", "SCALE = 1.0", "SCALE = 1.0000001")
    project.change("Much more", "SCALE = 1.0000001", "SCALE = 3.0")
    ends = ("--good", project.first, "--bad", "HEAD")
    done = bisect(project, *ends, "--by", "loss>-1000")
    assert done.code == ExitCode.NOT_COMPARABLE
    assert "error: " in done.stderr and "which should be good, is bad: loss of step 0 is" in done.stderr
    same = bisect(project, *ends, "--by", "loss>1e9")
    assert same.code == ExitCode.NOT_COMPARABLE
    assert "Much more, which should be bad, equals the good one: no step has loss>" in same.stderr
