"""Recordings whose entry was renamed since are equal to those of now; any other name still tells runs apart."""

from pathlib import Path

import pytest

from harness.trace.diff import diff
from harness.trace.reader import read_trace
from harness.trace.renames import ENTRIES, ENTRY, current_entry, current_identity
from harness.trace.verdict import Kind
from tests.support.traces import manifest_of, steps_of, write


def kind_of(tmp_path: Path, a: str, b: str) -> Kind:
    for name, entry in (("a", a), ("b", b)):
        write(tmp_path / name, steps_of(2), manifest=manifest_of(identity={ENTRY: entry}))
    return diff(read_trace(tmp_path / "a"), read_trace(tmp_path / "b")).kind


@pytest.mark.parametrize(("before", "now"), ENTRIES.items())
def test_a_renamed_entry_is_the_same_run(tmp_path: Path, before: str, now: str) -> None:
    assert kind_of(tmp_path, before, now) is Kind.EQUAL


def test_another_entry_is_another_run(tmp_path: Path) -> None:
    (before,) = list(ENTRIES)[:1]
    assert kind_of(tmp_path, before, "mine:run") is Kind.NOT_COMPARABLE


def test_only_the_entry_is_renamed() -> None:
    before, now = next(iter(ENTRIES.items()))
    assert current_identity({ENTRY: before, "seed": before}) == {ENTRY: now, "seed": before}
    assert current_entry(now) == now
