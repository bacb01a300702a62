"""The places a run keeps: one directory each, a link to the latest, twenty in all."""

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.bits.errors import HarnessError
from harness.process.run_directory import NUM_KEPT, make_run_directory, new_run_id
from tests.support.file_limits import largest_file


def id_of(number: int) -> str:
    """Ids of runs that begin a second apart."""
    return f"20260301-1230{number:02}-abcdef"


def runs_in(root: Path) -> list[str]:
    runs = root / ".rlharness" / "runs"
    return sorted(path.name for path in runs.iterdir() if not path.is_symlink())


def test_a_run_directory_is_made_and_ignored_by_git(tmp_path: Path) -> None:
    directory = make_run_directory(tmp_path, "r1")
    assert directory == tmp_path / ".rlharness" / "runs" / "r1"
    assert directory.is_dir()
    assert (tmp_path / ".rlharness" / ".gitignore").read_text() == "*\n"
    assert (directory.parent / "latest").resolve() == directory
    latest = make_run_directory(tmp_path, "r2")
    assert (directory.parent / "latest").resolve() == latest
    assert runs_in(tmp_path) == ["r1", "r2"]


def test_an_ignore_file_of_the_users_stays(tmp_path: Path) -> None:
    (tmp_path / ".rlharness").mkdir()
    (tmp_path / ".rlharness" / ".gitignore").write_text("!runs\n")
    make_run_directory(tmp_path, "r1")
    assert (tmp_path / ".rlharness" / ".gitignore").read_text() == "!runs\n"


def test_runs_that_ran_nothing_push_no_results_out(tmp_path: Path) -> None:
    (make_run_directory(tmp_path, id_of(0)) / "units").mkdir()
    for number in range(1, NUM_KEPT + 6):
        make_run_directory(tmp_path, id_of(number))
    assert id_of(0) in runs_in(tmp_path)
    assert len(runs_in(tmp_path)) == NUM_KEPT + 2, "mistyped ones go by themselves, the newest stays in any case"


def test_a_full_disk_leaves_no_directory_that_would_stay_for_good(tmp_path: Path) -> None:
    with largest_file(0), pytest.raises(HarnessError, match="File too large") as caught:
        make_run_directory(tmp_path, new_run_id(datetime(2026, 1, 1, tzinfo=UTC)))
    assert "--results-dir" in caught.value.remedy
    assert [path.name for path in (tmp_path / ".rlharness").rglob("*")] == ["runs"]


def test_runs_that_begin_together_do_not_disturb_each_other(tmp_path: Path) -> None:
    for number in range(NUM_KEPT):
        make_run_directory(tmp_path, id_of(number))
    ids = [id_of(number) for number in range(NUM_KEPT, NUM_KEPT + 8)]
    failures: list[BaseException] = []

    def begin(run_id: str) -> None:
        try:
            make_run_directory(tmp_path, run_id)
        except BaseException as error:  # shown by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=begin, args=(run_id,)) for run_id in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert set(ids) <= set(runs_in(tmp_path))
    assert len(runs_in(tmp_path)) <= NUM_KEPT + 1
    assert (tmp_path / ".rlharness" / "runs" / "latest").resolve().name in ids
