"""A run against earlier ones: newly failing, fixed, slower, flaky; each test against its latest result."""

from pathlib import Path

import pytest

from harness.runner.records.run_comparison import MAX_EARLIER, Change, Comparison, compare_runs, read_earlier_runs
from harness.runner.records.run_record import RECORD, read_run_record
from tests.render.run_pages import Tests, write_run

A, B = "tests/test_a.py", "tests/test_b.py"


def id_of(number: int) -> str:
    return f"20260301-1230{number:02}-abcdef"


def compared(root: Path, *runs: dict[str, Tests]) -> Comparison | None:
    """The last of some runs against those before it."""
    directories = [write_run(root, id_of(number), files) for number, files in enumerate(runs)]
    return compare_runs(read_run_record(directories[-1] / RECORD), read_earlier_runs(directories[-1]))


def one(outcome: str, seconds: float = 1.0) -> dict[str, Tests]:
    return {A: {"test_x": (outcome, seconds)}}


def test_a_first_run_is_compared_with_nothing(tmp_path: Path) -> None:
    assert compared(tmp_path, one("passed")) is None


def test_a_run_of_other_tests_is_no_run_to_compare_with(tmp_path: Path) -> None:
    assert compared(tmp_path, {B: {"test_y": ("passed", 1.0)}}, one("passed")) is None


@pytest.mark.parametrize(
    ("before", "now", "is_newly_failing", "is_fixed"),
    [
        ("passed", "failed", True, False),
        ("passed", "unfinished", True, False),
        ("failed", "passed", False, True),
        ("failed", "xfailed", False, True),
        ("failed", "failed", False, False),
    ],
)
def test_changes_between_passing_and_failing_are_listed(
    tmp_path: Path, before: str, now: str, is_newly_failing: bool, is_fixed: bool
) -> None:
    found = compared(tmp_path, one(before), one(now))
    assert found is not None
    change = (Change(f"{A}::test_x", before, now, id_of(0)),)
    assert found.newly_failing == (change if is_newly_failing else ())
    assert found.fixed == (change if is_fixed else ())


def test_a_skipped_test_decides_nothing_and_its_file_does(tmp_path: Path) -> None:
    found = compared(tmp_path, one("skipped"), one("failed"))
    assert found is not None
    assert found.newly_failing == (Change(A, "passed", "failed", id_of(0)),)


def test_a_test_is_compared_with_its_latest_result(tmp_path: Path) -> None:
    """The run between was of another file, the one before it skipped the test."""
    between: dict[str, Tests] = {B: {"test_y": ("passed", 1.0)}}
    found = compared(tmp_path, one("passed"), one("skipped"), between, one("failed") | between)
    assert found is not None
    assert found.newly_failing == (Change(f"{A}::test_x", "passed", "failed", id_of(0)),)
    assert found.run_ids == (id_of(2), id_of(1), id_of(0))


def test_a_file_that_no_test_explains_is_listed_itself(tmp_path: Path) -> None:
    directory = write_run(tmp_path, id_of(0), one("passed"))
    again = write_run(tmp_path, id_of(1), one("passed"))
    text = (again / RECORD).read_text().replace('"outcome": "passed", "reason"', '"outcome": "crashed", "reason"')
    (again / RECORD).write_text(text)
    found = compare_runs(read_run_record(again / RECORD), [read_run_record(directory / RECORD)])
    assert found is not None
    assert found.newly_failing == (Change(A, "passed", "crashed", id_of(0)),)


@pytest.mark.parametrize(
    ("earlier_s", "now_s", "ratio"),
    [
        ((1.0, 1.0, 2.0), 3.0, 3.0),
        ((1.0, 1.0, 3.0), 3.0, None),  # it took as long before
        ((1.0, 1.0, 1.0), 1.4, None),  # less than the ratio
        ((0.1, 0.1, 0.1), 0.5, None),  # fewer than the seconds
    ],
)
def test_slower_is_a_ratio_that_noise_does_not_reach(
    tmp_path: Path, earlier_s: tuple[float, ...], now_s: float, ratio: float | None
) -> None:
    found = compared(tmp_path, *(one("passed", seconds) for seconds in earlier_s), one("passed", now_s))
    assert found is not None
    ratios = {each.name: each.ratio for each in found.slower}
    assert ratios == ({} if ratio is None else {f"{A}::test_x": ratio, A: ratio})
    assert all(each.num_runs == 3 for each in found.slower)


def test_flaky_is_more_than_one_change(tmp_path: Path) -> None:
    found = compared(tmp_path, *(one(outcome) for outcome in ("failed", "passed", "skipped", "failed", "passed")))
    assert found is not None
    assert [(each.name, each.passes) for each in found.flaky if "::" in each.name] == [
        (f"{A}::test_x", (False, True, False, True))
    ]
    (tmp_path / "other").mkdir()
    found = compared(tmp_path / "other", one("failed"), one("failed"), one("passed"))
    assert found is not None
    assert found.flaky == ()


def test_few_runs_are_read_and_only_ours(tmp_path: Path) -> None:
    for number in range(MAX_EARLIER + 2):
        directory = write_run(tmp_path, id_of(number), one("passed"))
    (tmp_path / ".rlharness" / "runs" / id_of(4) / ".made-by-rlharness").unlink()
    assert [record.run_id for record in read_earlier_runs(directory)] == [id_of(n) for n in (5, 3, 2, 1, 0)]
    (tmp_path / ".rlharness" / "runs" / id_of(5) / RECORD).unlink()
    (tmp_path / ".rlharness" / "runs" / id_of(3) / RECORD).unlink()
    (tmp_path / ".rlharness" / "runs" / id_of(3) / RECORD).symlink_to(directory / RECORD)
    assert [record.run_id for record in read_earlier_runs(directory)] == [id_of(n) for n in (2, 1, 0)]
    assert read_earlier_runs(tmp_path / "gone" / id_of(9)) == []
