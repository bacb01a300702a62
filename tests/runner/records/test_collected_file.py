"""What is kept of collected files between runs: it comes back as it was, and nothing else does."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.runner.need import Need
from harness.runner.records import collected_file, history
from harness.runner.records.collected_file import CollectedFile, file_text, parse_file
from harness.runner.records.history import History
from harness.runner.report_file import ListedTest

FILE = "tests/test_a.py"
NEEDS = st.sampled_from([Need(), Need(1), Need(8, 40.0, "H100", (9, 0), True), Need(exclusive=True)])
NAMES = st.text(max_size=8)
TESTS = st.builds(
    ListedTest, NAMES.map(lambda name: f"{FILE}::{name}"), NEEDS, st.lists(NAMES, max_size=2, unique=True).map(tuple)
)
FILES = st.builds(
    CollectedFile,
    NEEDS,
    st.dictionaries(NAMES, NEEDS, max_size=3),
    st.one_of(st.none(), st.lists(TESTS, max_size=4).map(tuple)),
    st.lists(st.sampled_from(["torch", "numpy"]), unique=True).map(tuple),
)


@given(FILES)
def test_a_file_comes_back_as_it_was(file: CollectedFile) -> None:
    assert parse_file(file_text(file, FILE).encode(), FILE) == file


def test_of_a_file_with_too_many_tests_the_need_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collected_file, "MAX_TEXT", 300)
    tests = tuple(ListedTest(f"{FILE}::test_a[{number}]", Need(1)) for number in range(50))
    kept = parse_file(file_text(CollectedFile(Need(1), {"test_a": Need(1)}, tests), FILE).encode(), FILE)
    assert kept == CollectedFile(Need(1), {"test_a": Need(1)}, None)


GOOD: dict[str, Any] = json.loads(file_text(CollectedFile(Need(1), {"test_a": Need(1)}, ()), FILE))
CHANGES: list[dict[str, Any]] = [
    {"need": {"gpus": -1}},
    {"need": {**GOOD["need"], "surprise": 1}},
    {"needs": [{"gpus": 1e300}]},
    {"asks": {"test_a": 7}},
    {"tests": 0},
    {"tests": [["::test_a", 5, []]]},
    {"tests": [["::test_a", 0, [3]]]},
    {"ties": [1]},
    {"imported": [1]},
]
BAD = [b"", b"[]", b"{" * 100_000, *(json.dumps({**GOOD, **changes}).encode() for changes in CHANGES)]


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_anything_else_is_not_known(text: bytes) -> None:
    assert parse_file(json.dumps(GOOD).encode(), FILE) is not None
    assert parse_file(text, FILE) is None


KNOWN = CollectedFile(Need(2), {"test_a": Need(2)}, (ListedTest(f"{FILE}::test_a", Need(2), ("together x",)),))


def test_the_history_knows_a_file_as_long_as_its_key_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with History.open(path) as kept:
        kept.keep_collected({FILE: ("key", KNOWN)})
    with History.open(path) as kept:
        assert kept.collected_files({FILE: "key"}) == {FILE: KNOWN}
        assert kept.collected_files({FILE: "other", "tests/test_b.py": "key"}) == {}
        kept.keep_collected({FILE: ("other", KNOWN)})
        assert kept.collected_files({FILE: "other"}) == {FILE: KNOWN}
        assert kept.collected_files({FILE: "key"}) == {}
        assert kept.notes == ()


def test_the_latest_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"tests/test_{number}.py" for number in range(10)]
    monkeypatch.setattr(history, "MAX_COLLECTED_BYTES", 3 * len(file_text(KNOWN, FILE)) + 50)
    with History.open(tmp_path / "history.sqlite") as kept:
        for name in names:
            kept.keep_collected({name: ("key", CollectedFile(Need(2), {"test_a": Need(2)}, ()))})
        known = kept.collected_files(dict.fromkeys(names, "key"))
    assert 1 <= len(known) < 10
    assert list(known) == names[-len(known) :]


def test_a_history_that_knows_nothing_keeps_nothing() -> None:
    with History() as kept:
        kept.keep_collected({FILE: ("key", KNOWN)})
        assert kept.collected_files({FILE: "key"}) == {}
