import io
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.text import count, one_line, path_text, put, ranges
from harness.render.run_words import gpus, label, tally
from harness.runner.report_file import TestCounts, TestOutcome
from harness.runner.units import Outcome


@given(st.text())
def test_one_line_is_one_short_line_that_a_terminal_obeys_in_nothing(text: str) -> None:
    shown = one_line(text, 50)
    assert len(shown.splitlines()) <= 1
    assert all(unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") for c in shown)
    assert not set(shown) & set("\u202a\u202e\u2066")


def test_one_line_shows_what_it_took_out() -> None:
    assert one_line("a\n  b\tc\x1b[2J\u202e\udcff") == "a b c\\x1b[2J\\u202e\\udcff"
    assert one_line("x" * 40, 10) == "xxxxxxx..."


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_put_writes_anything_into_any_encoding(encoding: str) -> None:
    stream = io.TextIOWrapper(raw := io.BytesIO(), encoding=encoding)
    put(stream, "ü \udcff ☃\n")
    stream.flush()
    assert b"\\udcff" in raw.getvalue()


def test_ranges_of_cards() -> None:
    assert ranges(["0", "1", "2", "5", "MIG-1"]) == "0-2,5,MIG-1"
    assert ranges(["10", "9", "2"]) == "2,9-10"
    assert ranges([]) == ""


def test_cards_go_by_their_positions_in_this_run() -> None:
    lines = ("0 NVIDIA H200 143 GB GPU-a", "3 A GPU-b")
    assert gpus(["GPU-b"], lines) == "gpu 3"
    assert gpus(["GPU-b", "GPU-a", "GPU-z"], lines) == "gpus 0,3,GPU-z"
    assert gpus([], lines) == "cpu"


def test_counts_and_labels() -> None:
    assert count(1, "unit") == "1 unit"
    assert count(1200, "process", "processes") == "1,200 processes"
    assert tally(TestCounts()) == "no tests"
    some = TestCounts({TestOutcome.SKIPPED: 2, TestOutcome.PASSED: 1, TestOutcome.FAILED: 0})
    assert tally(some) == "1 passed, 2 skipped"
    outcomes = (Outcome.PASSED, Outcome.NO_TESTS, Outcome.TIMED_OUT)
    assert [label(outcome) for outcome in outcomes] == ["passed", "no tests", "TIMED OUT"]


def test_a_path_is_told_as_it_would_be_typed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "inner").mkdir(parents=True)
    (tmp_path / "here" / "link").symlink_to(tmp_path / "here" / "inner")
    monkeypatch.chdir(tmp_path / "here")
    here = tmp_path / "here"
    told = {
        here / "runs" / "a": "runs/a",
        here: ".",
        here / ".." / "here" / "runs": "runs",
        here / ".." / "there": str(tmp_path / "there"),
        here / "link" / ".." / "b": "b",
        here / "link" / "b": "link/b",
        Path("runs/a"): "runs/a",
        Path("/nowhere"): "/nowhere",
    }
    assert {path: path_text(path) for path in told} == told
