"""Measured GPU memory in the history: recorded with each result, migrated, read back, and shown."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.render.history import history_json, history_lines
from harness.runner.gpu_memory import GpuMemoryUse, Unmeasured
from harness.runner.records.history import History
from harness.runner.records.history_file import SCHEMA_VERSION
from harness.runner.records.trends import MAX_PEAK_BYTES, NUM_RESULTS, PastResult, Trend, parse_results, results_text
from tests.runner.records.test_trends import A, X, Y, keep, path, result, trend, trends, user_version

__all__ = ["path"]


@given(
    st.lists(st.one_of(st.none(), st.integers(0, MAX_PEAK_BYTES)), max_size=NUM_RESULTS),
)
def test_measured_memory_is_written_and_read(peaks: list[int | None]) -> None:
    results = tuple(PastResult("r", "passed", 1.0, peak) for peak in peaks)
    assert parse_results(results_text(results).encode()) == results
    known = [peak for peak in peaks if peak is not None]
    assert Trend(A, results).peak_bytes == (max(known) if known else None)


def test_measured_memory_of_files_and_their_tests_is_recorded(path: Path) -> None:
    use = GpuMemoryUse(5, None, X, {X: 5, f"{A}::unknown": 9})
    keep(path, "r1", (X, "passed", 0.5), (Y, "passed", 0.5), of=replace(result(), gpu_memory=use))
    keep(path, "r2", (X, "passed", 0.5), of=replace(result(), gpu_memory=GpuMemoryUse(None, Unmeasured.NOT_SEEN)))
    with History.open(path) as kept:
        peaks = {each.name: [past.peak_bytes for past in each.results] for each in kept.trends()}
        assert peaks == {A: [5, None], X: [5, None], Y: [None]}


def test_a_history_of_the_third_version_is_migrated_with_its_results(path: Path) -> None:
    keep(path, "r1", (X, "passed", 0.5))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 3")
        connection.commit()
    assert trends(path) == {A: [("r1", "passed", 2.0)], X: [("r1", "passed", 0.5)]}
    assert user_version(path) == SCHEMA_VERSION


def test_the_table_has_a_column_of_memory_where_some_is_known() -> None:
    known = [Trend(A, (PastResult("r1", "passed", 1.0, 12_340_000_000),)), trend(X, ("passed", 1.0))]
    head, first, second, *_ = history_lines(known, 2)
    assert head.split()[-5:] == ["GPU", "memory", "file", "or", "test"]
    assert (first.split()[-3:], second.split()[-3:]) == (["12.3", "GB", A], ["not", "measured", X])
    assert "GPU memory" not in history_lines(known[1:], 1)[0]
    assert history_lines(known[:1], 1)[-1].split()[-2:] == ["12.3", "GB"]
    (found, _) = history_json(known, exit_code=0, file="f", notes=())["trends"]
    assert (found["peak_gpu_bytes"], found["results"][0]["peak_gpu_bytes"]) == (12_340_000_000,) * 2
