"""Worktrees of a real repository: what a side imports, what is left behind, where a branch began."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.bits.errors import UsageError
from harness.lab.experiment.worktrees import PACKAGE, Checkout, Side, open_worktrees
from tests.support.projects import IDENTITY, Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def checkout(project: Project, cwd: Path | None = None, **env: str) -> Checkout:
    return Checkout(cwd or project.directory, {**os.environ, **IDENTITY, **env})


def test_a_worktree_holds_its_commit_and_is_gone_afterwards(project: Project) -> None:
    project.change("Twice", "SCALE = 1.0", "SCALE = 2.0")
    found = checkout(project)
    first = found.commit(project.first)
    assert (first.subject, first.author, first.short) == ("The first", "Ada", project.first[:7])
    with open_worktrees(found) as worktrees:
        with worktrees.at(first) as side:
            assert side.root != project.directory
            assert "SCALE = 1.0" in (side.cwd / "parts.py").read_text("utf-8")
            assert len(project.worktrees) == 1
        assert not side.root.exists()
        assert worktrees.working_tree.cwd == project.directory
    assert project.worktrees == []
    assert not side.root.parent.exists()


def test_it_is_gone_whatever_happens_inside(project: Project) -> None:
    found = checkout(project)
    with (
        pytest.raises(KeyboardInterrupt),
        open_worktrees(found) as worktrees,
        worktrees.at(found.commit("HEAD")) as side,
    ):
        (side.cwd / "more").mkdir()
        (side.cwd / "more" / "file").write_text("", encoding="utf-8")
        raise KeyboardInterrupt
    assert project.worktrees == []
    assert not side.root.exists()


def test_what_a_killed_run_has_left_is_forgotten_and_others_are_not_touched(project: Project, tmp_path: Path) -> None:
    tmpdir = Path(tempfile.mkdtemp(prefix="c-", dir="/tmp"))  # a longer path would be passed over
    code = (
        "import os, sys; from pathlib import Path\n"
        "from harness.lab.experiment.worktrees import Checkout, open_worktrees\n"
        "found = Checkout(Path.cwd(), os.environ)\n"
        "with open_worktrees(found) as worktrees, worktrees.at(found.commit('HEAD')):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    env = {**os.environ, **IDENTITY, "TMPDIR": str(tmpdir)}
    subprocess.run([sys.executable, "-c", code], cwd=project.directory, env=env, check=False)
    project.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "another's"))
    (tmp_path / "another's").rename(tmp_path / "moved")
    assert len(project.worktrees) == 2
    assert list(tmpdir.glob("rlh-*"))
    with open_worktrees(checkout(project, TMPDIR=str(tmpdir))):
        pass
    assert [line.split()[0] for line in project.worktrees] == [str(tmp_path / "another's")]
    tmpdir.rmdir()


def import_origin(side: Side, module: str) -> str:
    """What a process of this side would import a top-level module from; empty where there is no such module."""
    code = (
        "import importlib.util, sys; spec = importlib.util.find_spec(sys.argv[1]);"
        " print(spec and (spec.origin or list(spec.submodule_search_locations)[0]) or '')"
    )
    command = [sys.executable, "-P", "-c", code, module.partition(".")[0]]
    return subprocess.run(
        command, check=False, cwd=side.cwd, env=dict(side.environ), capture_output=True, text=True
    ).stdout.strip()


def test_each_side_imports_its_own_and_this_recorder(project: Project, tmp_path: Path) -> None:
    """Also where the repository holds a package of the recorder's name, and where its code lies below `src`."""
    project.commit("Packages", **{"harness.py": "", "src.txt": ""})
    (project.directory / "src").mkdir()
    (project.directory / "space").mkdir()
    project.commit("Code", **{"src/mine.py": "HERE = 1\n", "space/module.py": ""})
    (tmp_path / "elsewhere").mkdir()
    path = os.pathsep.join([str(project.directory / "src"), str(tmp_path / "elsewhere")])
    found = checkout(project, PYTHONPATH=path)
    with open_worktrees(found) as worktrees, worktrees.at(found.commit("HEAD")) as base:
        head = worktrees.working_tree
        for side in (head, base):
            assert Path(import_origin(side, "harness.lab")).resolve() == PACKAGE / "__init__.py"
            assert side.holds(import_origin(side, "mine"))
            assert side.holds(import_origin(side, "sums"))
            assert side.holds(import_origin(side, "space.module")), "a package without an __init__.py"
            assert str(tmp_path / "elsewhere") in side.environ["PYTHONPATH"].split(os.pathsep)
        assert not base.holds(import_origin(head, "mine"))
        assert import_origin(base, "nothing_of_this_name") == ""


def test_what_lies_in_gits_own_directory_is_the_same_for_all(project: Project) -> None:
    tools = project.directory / ".git" / "tools"
    tools.mkdir()
    found = checkout(project, PYTHONPATH=str(tools))
    with open_worktrees(found) as worktrees, worktrees.at(found.commit("HEAD")) as side:
        assert str(tools) in side.environ["PYTHONPATH"].split(os.pathsep)


def test_a_directory_below_the_root_stays_one(project: Project) -> None:
    found = checkout(project, project.directory / "scenarios")
    with open_worktrees(found) as worktrees, worktrees.at(found.commit("HEAD")) as side:
        assert side.cwd == side.root / "scenarios"
        assert (side.cwd / "sums.yaml").is_file()


def test_whether_something_changed_is_asked_without_writing(project: Project) -> None:
    """On a full disk git could not write its index anew."""
    index = project.directory / ".git" / "index"
    before = index.read_bytes()
    os.utime(project.directory / "parts.py", (1, 1))  # git would note the new time
    assert not checkout(project).is_dirty
    assert index.read_bytes() == before


def test_variables_of_a_hook_do_not_point_elsewhere(project: Project, tmp_path: Path) -> None:
    other = Project(tmp_path / "other")
    found = checkout(project, GIT_DIR=str(other.directory / ".git"), GIT_INDEX_FILE="index")
    assert found.root == project.directory
    assert not {"GIT_DIR", "GIT_INDEX_FILE"} & found.environ.keys()


def test_where_a_branch_began(project: Project, tmp_path: Path) -> None:
    assert checkout(project).default_base() is None, "one commit has nothing before it"
    second = project.commit("Second")
    assert checkout(project).default_base() == checkout(project).commit(project.first)
    clone = tmp_path / "clone"
    project.git("clone", "--quiet", str(project.directory), str(clone))
    on_main = Checkout(clone, os.environ).default_base()
    assert on_main is not None
    assert on_main.name == project.first, "the default branch itself: the commit before"
    git = ["git", "-C", str(clone)]
    for words in (["checkout", "-qb", "topic"], ["commit", "-q", "--allow-empty", "-m", "1"]):
        subprocess.run([*git, *words], env={**os.environ, **IDENTITY}, check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "2"], env={**os.environ, **IDENTITY}, check=True)
    base = Checkout(clone, os.environ).default_base()
    assert base is not None
    assert base.name == second


def test_what_is_no_commit_or_no_checkout_is_told(project: Project, tmp_path: Path) -> None:
    for revision in ("nothing", "--all", "HEAD:parts.py"):
        with pytest.raises(UsageError, match="is not a commit here"):
            checkout(project).commit(revision)
    with pytest.raises(UsageError, match="is not a git checkout"):
        Checkout(tmp_path, {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)})
    project.commit("Second")
    shallow = tmp_path / "shallow"
    project.git("clone", "--quiet", "--depth", "1", f"file://{project.directory}", str(shallow))
    with pytest.raises(UsageError, match="shallow clone") as refused:
        Checkout(shallow, os.environ).commit("HEAD~1")
    assert "fetch-depth: 0" in refused.value.remedy
