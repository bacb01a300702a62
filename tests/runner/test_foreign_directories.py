"""Directories that rlharness has not made stay, wherever `.rlharness` leads and whatever lies in it."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.lab.experiment.preparation import out_directory
from harness.process import scratch
from harness.process.run_directory import MARK, NUM_KEPT, make_kept_directory, make_run_directory
from harness.process.scratch import read_mounts, remove_tree
from tests.support.suite_runs import HARNESS, QUICK, environment, write_suite

KINDS = ("replays", "reproductions", "gates", "chaos", "bisections")
NUM_PROJECTS = 36
LATE_ID = "20990101-000000-abcdef"


def id_of(number: int) -> str:
    """Ids of commands that begin a second apart."""
    return f"20260301-1230{number:02}-abcdef"


def rlharness(directory: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*HARNESS, *words], cwd=directory, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )


def type_remedy(refused: str, directory: Path) -> None:
    """Type the command at the end of an error."""
    command = refused.strip().splitlines()[-1].rpartition(": ")[2]
    subprocess.run(command, cwd=directory, shell=True, check=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory of mine with many projects; some are called as runs are."""
    for number in range(NUM_PROJECTS):
        name = f"proj{number:02}" if number % 2 else id_of(number)
        (tmp_path / "home" / name / "sub").mkdir(parents=True)
    return tmp_path / "home"


def assert_whole(home: Path) -> None:
    assert len(list(home.glob("*/sub"))) == len(list(home.iterdir())) == NUM_PROJECTS


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A repository of somebody else."""
    return write_suite(tmp_path / "upstream", {"test_a.py": QUICK, "pytest.ini": "[pytest]\n"})


def clone(upstream: Path) -> Path:
    """A clone of what lies in the repository's directory."""
    git = ("git", "-c", "user.name=u", "-c", "user.email=u@example.com", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "--all", "--force"), ("commit", "-q", "-m", "All")):
        subprocess.run([*git, *words], cwd=upstream, check=True)
    checkout = upstream.parent / "checkout"
    subprocess.run([*git, "clone", "-q", str(upstream), str(checkout)], check=True)
    return checkout


def link_kind(upstream: Path) -> str:
    (upstream / ".rlharness").mkdir()
    (upstream / ".rlharness" / "runs").symlink_to("../../home")
    return ".rlharness/runs"


def link_all(upstream: Path) -> str:
    (upstream.parent / "home" / "runs").symlink_to(".")
    (upstream / ".rlharness").symlink_to("../home")
    return ".rlharness"


@pytest.mark.full
@pytest.mark.parametrize("make_link", [link_kind, link_all])
def test_a_clone_in_which_a_link_leads_to_my_home_keeps_my_directories(
    home: Path, upstream: Path, make_link: Callable[[Path], str]
) -> None:
    name = make_link(upstream)
    checkout = clone(upstream)

    done = rlharness(checkout, "run", "--gpus", "none")

    assert done.returncode == ExitCode.USAGE_ERROR
    assert done.stderr.startswith(f"error: {checkout / name} is a link, and rlharness removes old results from there\n")
    (home / "runs").unlink(missing_ok=True)
    assert_whole(home)
    type_remedy(done.stderr, checkout)
    assert rlharness(checkout, "run", "--gpus", "none").returncode == ExitCode.OK
    assert_whole(home)


@pytest.mark.full
def test_traces_that_i_have_moved_by_a_link_stay_and_the_remedy_works(home: Path, tmp_path: Path) -> None:
    (tmp_path / "work" / ".rlharness").mkdir(parents=True)
    (tmp_path / "work" / ".rlharness" / "replays").symlink_to(home)
    replay = ("replay", "--runs", "2")
    program = ("--", "python3", "-c", "pass")

    done = rlharness(tmp_path / "work", *replay, *program)

    assert done.returncode == ExitCode.USAGE_ERROR
    assert "remedy: name a new directory elsewhere with --out, or remove the link, and nothing else: rm " in done.stderr
    assert_whole(home)
    again = rlharness(tmp_path / "work", *replay, "--out", str(home / "trace"), *program)
    assert "is a link" not in again.stderr
    assert (home / "trace" / "run-1").is_dir()
    shutil.rmtree(home / "trace")
    assert_whole(home)


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_in_the_place_of_any_kind_of_result_is_refused(home: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / ".rlharness").mkdir()
    (tmp_path / ".rlharness" / kind).symlink_to(home)
    with pytest.raises(UsageError, match=f"{kind} is a link"):
        out_directory(tmp_path, None, kind, LATE_ID)
    assert_whole(home)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("theirs", [".rlharness", ".rlharness/runs"])
def test_a_directory_of_another_user_is_refused(tmp_path: Path, theirs: str) -> None:
    (tmp_path / ".rlharness" / "runs").mkdir(parents=True)
    os.chown(tmp_path / theirs, 12345, 12345)
    with pytest.raises(UsageError, match=f"{theirs} belongs to user 12345") as refused:
        make_run_directory(tmp_path, LATE_ID)
    assert list((tmp_path / ".rlharness" / "runs").iterdir()) == []
    type_remedy(str(refused.value), tmp_path)
    assert make_run_directory(tmp_path, LATE_ID).is_dir()


def make_many(root: Path, kind: str) -> None:
    for number in range(2 * NUM_KEPT):
        (make_kept_directory(root, kind, id_of(number)) / "units").mkdir()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["runs", *KINDS])
@pytest.mark.parametrize(
    "name", ["baseline", "00000101-000000-aaaaaa", "00000101-000000-aaaaaa.old", "0-run"], ids=lambda name: name
)
def test_a_directory_of_mine_that_lies_among_the_results_stays(tmp_path: Path, kind: str, name: str) -> None:
    mine = tmp_path / ".rlharness" / kind / name
    (mine / "units").mkdir(parents=True)  # a copy of a run, say
    (mine / "notes.txt").write_text("mine")
    make_many(tmp_path, kind)
    assert (mine / "notes.txt").read_text() == "mine"
    assert len(list(mine.parent.glob("2026*"))) == NUM_KEPT


def test_a_result_that_i_have_renamed_or_taken_the_mark_from_stays(tmp_path: Path) -> None:
    renamed, unmarked = (make_kept_directory(tmp_path, "replays", f"20200101-00000{n}-aaaaaa") for n in range(2))
    renamed.rename(renamed.with_name("0-good"))
    (unmarked / MARK).unlink()
    make_many(tmp_path, "replays")
    assert renamed.with_name("0-good").is_dir()
    assert unmarked.is_dir()


def test_a_link_to_a_directory_of_mine_among_the_results_is_not_followed(home: Path, tmp_path: Path) -> None:
    (home / "proj01" / MARK).touch()
    (home / "proj01" / "units").mkdir()
    runs = tmp_path / ".rlharness" / "runs"
    runs.mkdir(parents=True)
    for name in ("00000101-000000-aaaaaa", "latest"):
        (runs / name).symlink_to(home / "proj01")
    make_many(tmp_path, "runs")
    assert_whole(home)
    assert (runs / "00000101-000000-aaaaaa").is_symlink()
    assert (runs / "latest").resolve() == runs / id_of(2 * NUM_KEPT - 1)


@pytest.mark.parametrize("kind", ["runs", "replays"])
def test_a_link_in_the_place_of_the_ignore_file_makes_no_file_elsewhere(tmp_path: Path, kind: str) -> None:
    (tmp_path / ".rlharness").mkdir()
    (tmp_path / ".rlharness" / ".gitignore").symlink_to("../x")
    make_kept_directory(tmp_path, kind, LATE_ID)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("is_there", [False, True])
def test_results_are_for_this_user_alone(tmp_path: Path, is_there: bool) -> None:
    """Whatever the umask is, and though a checkout has brought the directories above."""
    if is_there:
        (tmp_path / ".rlharness" / "runs").mkdir(parents=True, mode=0o755)
    umask = os.umask(0)
    try:
        made = make_run_directory(tmp_path, LATE_ID)
    finally:
        os.umask(umask)
    assert made.stat().st_mode & 0o777 == 0o700
    if not is_there:
        assert (tmp_path / ".rlharness").stat().st_mode & 0o777 == 0o700


@pytest.fixture
def swapped(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of results that becomes a link to my home when its removal has begun."""
    results = tmp_path / "results"
    (results / id_of(0) / "old").mkdir(parents=True)

    def swap_and_read() -> Sequence[tuple[str, str]]:
        if not results.is_symlink():
            results.rename(tmp_path / "moved")
            results.symlink_to(home)
        return read_mounts()

    monkeypatch.setattr(scratch, "read_mounts", swap_and_read)
    return results


def test_a_directory_that_becomes_a_link_during_a_removal_costs_me_nothing(
    swapped: Path, home: Path, tmp_path: Path
) -> None:
    assert remove_tree(str(swapped / id_of(0))) == ""
    assert swapped.is_symlink()
    assert_whole(home)
    assert list((tmp_path / "moved").iterdir()) == [], "what was asked for is gone"
