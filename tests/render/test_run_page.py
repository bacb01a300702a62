"""The page of a run as text: what it holds, what it escapes, how large it gets."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.render import run_page
from harness.render.run_reporters import LateReporter
from harness.runner.records.recorded_run import PAGE
from harness.runner.records.timeline import Timeline
from tests.render.run_pages import Tests, write_run
from tests.support.html_elements import Elements

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> & \x1b[2J\u202e </style>"
FILES: Mapping[str, Tests] = {
    "tests/test_a.py": {"test_one": ("passed", 1.0), f"test_two[{HOSTILE}]": ("failed", 2.0)},
    "tests/test_b.py": {"test_hangs": ("unfinished", 3.0)},
}
FIRST = "20260301-123000-abcdef"


def bars(page: Elements) -> list[tuple[str, str | None, str | None]]:
    """(tone, place, width) of each bar of the timeline."""
    found = [attrs for attrs in page.all("svg") if str(attrs["class"]).startswith("bar ")]
    return [(str(attrs["class"])[4:], attrs["x"], attrs["width"]) for attrs in found]


def page_of(directory: Path) -> Elements:
    return Elements((directory / PAGE).read_text("utf-8"))


def test_hostile_text_is_text_and_nothing_is_fetched(tmp_path: Path) -> None:
    text = (write_run(tmp_path, FIRST, FILES, text=HOSTILE * 3) / PAGE).read_text("utf-8")
    page = Elements(text)
    tags = [tag for tag, _ in page.found]
    assert (tags.count("script"), tags.count("style"), tags.count("img")) == (0, 1, 0)
    assert not [attrs for _, attrs in page.found if any(name == "style" or name.startswith("on") for name in attrs)]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert text.count("&lt;script&gt;alert(1)") >= 6, "timeline, failure, its reason, output, slowest"
    assert re.findall(r"https?://|@import|url\(", text) == []
    (policy,) = [attrs["content"] for _, attrs in page.found if "http-equiv" in attrs]
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'sha256-")


def test_a_whole_run_is_on_it(sample_run: Any, tmp_path: Path) -> None:
    timeline = Timeline()
    page_file = LateReporter(tmp_path / PAGE, "the page", partial(run_page.run_page_text, timeline))
    sample_run.tell(timeline, page_file)
    page = page_of(tmp_path)
    texts = "\n".join(page.texts["pre"])
    for part in ("E   assert 1 == 2", "bell \\x07 nul \\x00", "test_hang.py:7 in test_waits", "moonshine"):
        assert part in texts
    ids = [attrs["id"] for tag, attrs in page.found if str(attrs.get("id")).startswith("failure-")]
    assert ids == [f"failure-{n}" for n in range(5)]
    links = [str(attrs["href"]) for tag, attrs in page.found if tag == "a"]
    assert len(links) == 4 and {each.removeprefix("#") for each in links} <= set(ids)
    assert [text.strip() for text in page.texts["p"] if re.match("(GPU|CPU slot) [0-9]", text)] == [
        *("GPU 0", "GPU 1", "CPU slot 0", "CPU slot 1")
    ]
    shown = bars(page)
    assert ("lost", "9.30%", "74.42%") in shown, "of 43 s, from the fourth to the thirty-sixth"
    assert ("lost", "89.53%", "10.47%") in shown
    lost = [attrs["x"] for _, attrs in page.found if attrs.get("class") == "lost-gpu"]
    assert lost == ["97.67%"], "the quarantine of one GPU"
    assert "9 units: 3 passed, 1 failed" in "".join(page.texts["p"])


def test_a_full_page_counts_the_other_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_page, "MAX_FAILURES", 2)
    files = {f"tests/test_{n}.py": {"test_x": ("failed", 1.0)} for n in range(4)}
    page = page_of(write_run(tmp_path, FIRST, files, text="x" * 1000))
    assert any(text.startswith("2 more failures") for text in page.texts["p"])


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
    assert 500_000 < (directory / PAGE).stat().st_size < 3_500_000
