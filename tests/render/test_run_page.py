"""The page of a run as text: what it holds, what it escapes, how large it gets."""

import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from harness.render.run_page import failures
from harness.render.run_page.failures import Budget
from harness.render.run_page.reporter import PageText, RunPageReporter
from harness.render.run_page.timeline_data import script_json
from harness.runner.records.run_record import PAGE
from tests.render.run_pages import Tests, write_run

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> & \x1b[2J\u202e </style>"
FILES: Mapping[str, Tests] = {
    "tests/test_a.py": {"test_one": ("passed", 1.0), f"test_two[{HOSTILE}]": ("failed", 2.0)},
    "tests/test_b.py": {"test_hangs": ("unfinished", 3.0)},
}
FIRST, SECOND = "20260301-123000-abcdef", "20260301-123001-abcdef"


class Page(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open, []).append(data)

    @property
    def data(self) -> Any:
        return json.loads(self.texts["script"][0])


def page_of(directory: Path) -> Page:
    return Page((directory / PAGE).read_text("utf-8"))


def test_hostile_text_is_text(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, FIRST, FILES, text=HOSTILE * 3))
    tags = [tag for tag, _ in page.elements]
    assert (tags.count("script"), tags.count("style"), tags.count("img")) == (2, 1, 0)
    assert not [attrs for _, attrs in page.elements if any(name.startswith("on") for name in attrs)]
    assert not [attrs for _, attrs in page.elements if "style" in attrs]
    assert page.data["files"][0][7][1][0].startswith("test_two[<script>alert(1)")
    text = (tmp_path / ".rlharness" / "runs" / FIRST / PAGE).read_text("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert text.count("&lt;script&gt;alert(1)") >= 4, "in the failure, its reason, the output and the slowest tests"


def test_data_cannot_end_its_script() -> None:
    text = script_json([HOSTILE, "<!--<script>", "\u2028"])
    assert not set("<>&") & set(text)
    assert json.loads(text) == [HOSTILE, "<!--<script>", "\u2028"]


def test_no_address_of_another_host_is_in_it(tmp_path: Path) -> None:
    text = (write_run(tmp_path, FIRST, FILES) / PAGE).read_text("utf-8")
    assert re.findall(r"https?://|@import|url\(", text) == []
    (policy,) = [attrs["content"] for _, attrs in Page(text).elements if "http-equiv" in attrs]
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'sha256-")


def test_a_failure_has_its_text_output_and_stacks(sample_run: Any, tmp_path: Path) -> None:
    from harness.render.jsonl import JsonlReporter

    record = tmp_path / "events.jsonl"
    sample_run.tell(JsonlReporter(record), RunPageReporter(tmp_path / "page.html", PageText(record)))
    page = Page((tmp_path / "page.html").read_text("utf-8"))
    texts = "\n".join(page.texts["pre"])
    for part in ("E   assert 1 == 2", "bell \\x07 nul \\x00", "test_hang.py:7 in test_waits", "moonshine"):
        assert part in texts
    ids = [attrs["id"] for tag, attrs in page.elements if tag == "details" and "id" in attrs]
    assert ids == [f"failure-{n}" for n in range(4)]
    assert [file[6] for file in page.data["files"]] == [-1, 0, 2, 3, -1, -1, -1, -1, 1]
    assert [row["name"] for row in page.data["rows"]] == ["GPU 0", "GPU 1", "CPU slot 0", "CPU slot 1"]
    assert page.data["rows"][0]["lost"] == 54_000
    assert (page.data["first"], page.data["last"], page.data["bound"]) == (12_000, 55_000, 48_000)
    assert [each[2] for each in page.data["files"]][-3:] == [48_500, 48_500, 50_500]


def test_changes_since_the_run_before_are_on_it(tmp_path: Path) -> None:
    passed = {path: dict.fromkeys(tests, ("passed", 1.0)) for path, tests in FILES.items()}
    first = page_of(write_run(tmp_path, FIRST, passed))
    assert "No earlier run in this directory has a result of these tests." in first.texts["p"]
    second = page_of(write_run(tmp_path, SECOND, FILES))
    assert "Newly failing (2)" in second.texts["summary"]
    assert FIRST in second.texts["td"]


def test_a_full_page_names_the_other_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MAX_BYTES", 100)
    monkeypatch.setattr(failures, "MAX_FILES", 2)
    monkeypatch.setattr(Budget.__init__, "__defaults__", (100,))
    files = {f"tests/test_{n}.py": {"test_x": ("failed", 1.0)} for n in range(4)}
    page = page_of(write_run(tmp_path, FIRST, files, text="x" * 1000))
    assert "Its output is not shown: the page is full." in page.texts["p"]
    assert any(text.startswith("2 more failed files") for text in page.texts["p"])


def test_of_too_many_tests_the_failed_and_the_longest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.render.run_page import timeline_data

    monkeypatch.setattr(timeline_data, "MAX_TESTS", 2)
    tests = {"a": ("passed", 1.0), "b": ("failed", 0.1), "c": ("passed", 3.0), "d": ("passed", 2.0)}
    page = page_of(write_run(tmp_path, FIRST, {"tests/test_a.py": tests}))
    assert [test[0] for test in page.data["files"][0][7]] == ["b", "c"]
    assert page.data["hidden"] == 2


@pytest.mark.full
def test_five_thousand_tests_stay_small(tmp_path: Path) -> None:
    files = {
        f"tests/package_{n % 20}/test_module_number_{n}.py": {
            f"test_something_with_a_long_name[parameter-{m}]": ("failed" if m % 3 == 0 else "passed", 0.1)
            for m in range(10)
        }
        for n in range(500)
    }
    directory = write_run(tmp_path, FIRST, files, num_gpus=8, text="E   assert <b>1</b> == 2\n" * 100)
    assert 500_000 < (directory / PAGE).stat().st_size < 3_000_000
    assert sum(len(file[7]) for file in page_of(directory).data["files"]) == 5_000
