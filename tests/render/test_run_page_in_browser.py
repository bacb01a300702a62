"""The page of a run in a browser: what is seen, links and the filter, and that it talks to nobody."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="pip install 'rlharness[browser]'")

from harness.runner.records.run_record import PAGE
from tests.render.run_pages import write_run
from tests.support.browser import NARROW, WIDE, Browser, browser, missing

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
    pytest.mark.full,
]

HOSTILE = "<script>alert(1)</script>"
FILES = {
    "tests/test_a.py": {"test_one": ("passed", 1.0), f"test_two[{HOSTILE}]": ("failed", 2.0)},
    "tests/test_b.py": {"test_x": ("passed", 2.0), "test_hangs": ("unfinished", 4.0)},
    "tests/test_c.py": {f"test_{n}": ("passed", 0.5) for n in range(4)},
    "tests/test_d.py": {f"test_{n}": ("skipped", 0.5) for n in range(150)},
}
WIDTHS = "return [...document.querySelectorAll('.bar')].map((each) => each.getBoundingClientRect().width)"
NAMES = "return [...document.querySelectorAll('.tall tr:not([hidden]) code')].map((each) => each.textContent)"


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"), "20260301-123001-abcdef", FILES, text=HOSTILE) / PAGE


@pytest.fixture(autouse=True)
def no_complaint(tab: Browser) -> Iterator[None]:
    """No test may leave an error in the console, or have asked anybody for anything."""
    yield
    assert (tab.complaints(), tab.requests()) == ([], [])


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_bars_are_as_long_as_their_files_and_nothing_is_wider_than_the_screen(
    tab: Browser, page: Path, size: tuple[int, int]
) -> None:
    tab.open(page, size=size)
    widths = tab.run("return [...document.querySelectorAll('.row')].map((each) => each.clientWidth)")
    assert min(widths) > 0.5 * size[0]
    assert min(tab.run(WIDTHS)) > 0
    assert tab.run("return document.documentElement.scrollWidth") <= size[0]


def test_the_colours_follow_the_scheme(tab: Browser, page: Path) -> None:
    fills = "return getComputedStyle(document.querySelector('.bar.bad rect')).fill"
    tab.open(page, scheme="light")
    light = tab.run(fills)
    tab.prefer("dark")
    assert tab.run(fills) != light


def test_a_bar_of_a_failed_file_opens_its_failure(tab: Browser, page: Path) -> None:
    tab.open(page)
    tab.run("document.querySelectorAll('details').forEach((each) => { each.open = false; })")
    tab.run("location.hash = document.querySelector('.row a').getAttribute('href')")
    tab.settle()
    assert tab.run("return document.querySelector(':target').closest('details').open")


def test_the_list_is_filtered_by_name_and_outcome(tab: Browser, page: Path) -> None:
    tab.open(page)
    assert len(tab.run(NAMES)) == 4 + 158
    search = tab.driver.find_element("css selector", "input[type=search]")
    search.send_keys("test_b")
    assert len(tab.run(NAMES)) == 3
    search.send_keys(" unfinished")
    assert tab.run(NAMES) == ["tests/test_b.py::test_hangs"]
    assert tab.run("return document.querySelector('output').textContent") == "1 found"
