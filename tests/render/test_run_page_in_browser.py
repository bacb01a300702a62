"""The page of a run in a browser: what it draws, keys and filters, and that it talks to nobody."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="pip install 'rlharness[browser]'")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from harness.runner.records.run_record import PAGE
from tests.render.run_pages import write_run
from tests.support.browser import NARROW, Browser, browser, missing

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
PAINTED = """
const canvas = document.querySelector(".frame canvas");
const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
copy.drawImage(canvas, 0, 0);
const data = copy.getImageData(0, 0, canvas.width, canvas.height).data;
const wanted = arguments[0].match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16));
let num = 0;
for (let at = 0; at < data.length; at += 4) {
  if (wanted.every((part, index) => Math.abs(part - data[at + index]) < 3) && data[at + 3] > 250) num++;
}
return num;
"""
DETAIL = "return document.querySelector('.detail').innerText"
NAMES = "return [...document.querySelectorAll('#found code')].map((each) => each.textContent)"


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The second of two runs, which failed."""
    root = tmp_path_factory.mktemp("run")
    write_run(root, "20260301-123000-abcdef", {"tests/test_a.py": {f"test_two[{HOSTILE}]": ("passed", 1.0)}})
    return write_run(root, "20260301-123001-abcdef", FILES, text=HOSTILE) / PAGE


@pytest.fixture(autouse=True)
def no_complaint(tab: Browser) -> Iterator[None]:
    """No test may leave an error in the console, or have asked anybody for anything."""
    yield
    assert (tab.complaints(), tab.requests()) == ([], [])


def painted(tab: Browser, name: str) -> int:
    """Number of pixels of the timeline that have a colour of the page."""
    tab.settle()
    value = tab.run("return getComputedStyle(document.documentElement).getPropertyValue(arguments[0])", f"--{name}")
    return int(tab.run(PAINTED, str(value)))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_timeline_is_drawn_in_both_schemes(tab: Browser, page: Path, scheme: str) -> None:
    tab.open(page, scheme=scheme)
    for colour in ("done", "broken", "lost", "quiet", "band", "accent"):
        assert painted(tab, colour) > 50, colour
    tab.prefer("light" if scheme == "dark" else "dark")
    assert painted(tab, "done") > 50, "drawn again in the other colours"
    assert tab.run("return [...document.querySelectorAll('.key')].map((each) => each.textContent)") == [
        *("passed", "failed", "hung or crashed", "skipped or no tests", "idle", "lower bound")
    ]


def test_keys_move_among_files_and_tests(tab: Browser, page: Path) -> None:
    tab.open(page)
    frame = tab.driver.find_element("css selector", ".frame")
    assert "tests/test_b.py" in tab.run(DETAIL), "the first failure is described before anything is pressed"
    frame.send_keys(Keys.ARROW_DOWN)
    assert "tests/test_c.py" in tab.run(DETAIL)
    frame.send_keys(Keys.ENTER, Keys.ARROW_RIGHT)
    assert "passed tests/test_c.py::test_1" in tab.run(DETAIL)
    assert "0.500 s, from 0.500 s to 1.0 s" in tab.run(DETAIL)
    frame.send_keys(Keys.ESCAPE)
    assert "4 tests" in tab.run(DETAIL)
    frame.send_keys(Keys.ARROW_DOWN)
    assert "tests/test_a.py" in tab.run(DETAIL) and "why it failed" in tab.run(DETAIL)
    frame.send_keys(Keys.ARROW_RIGHT)
    assert "tests/test_d.py" in tab.run(DETAIL)
    assert frame.get_attribute("tabindex") == "0" and frame.aria_role == "application"


def test_zoom_makes_bars_wider_and_zero_shows_the_whole_run(tab: Browser, page: Path) -> None:
    tab.open(page)
    frame = tab.driver.find_element("css selector", ".frame")
    before = painted(tab, "lost")
    frame.send_keys("+", "+")
    assert painted(tab, "lost") > 2 * before
    frame.send_keys("0")
    assert painted(tab, "lost") == before
    tab.driver.find_element("css selector", "[data-zoom=in]").click()
    assert painted(tab, "lost") > before


def test_a_bar_under_the_pointer_is_described(tab: Browser, page: Path) -> None:
    tab.open(page)
    canvas = tab.driver.find_element("css selector", ".frame canvas")
    tab.run("arguments[0].scrollIntoView({block: 'center'})", canvas)
    size = canvas.size
    row = 24 + 2 * 30 + 8  # the third row: the CPU slot
    ActionChains(tab.driver, duration=0).move_to_element_with_offset(
        canvas, 170 - size["width"] // 2, row - size["height"] // 2
    ).perform()
    tab.settle()
    assert "tests/test_a.py" in tab.run(DETAIL)


def test_outcomes_are_filtered_and_shown_in_the_timeline(tab: Browser, page: Path) -> None:
    tab.open(page)
    names = tab.run(NAMES)
    assert len(names) == 100 and names[:2] == ["tests/test_a.py", f"tests/test_a.py::test_two[{HOSTILE}]"]
    tab.run("document.getElementById('more').click()")
    assert len(tab.run(NAMES)) == 4 + 158
    assert tab.run("return document.getElementById('more').hidden")
    search = tab.driver.find_element("css selector", "#search")
    search.send_keys("TEST_C.py::")
    assert tab.run(NAMES) == [f"tests/test_c.py::test_{n}" for n in range(4)]
    search.clear()
    search.send_keys(" ")
    pressed = tab.run(
        "const buttons = [...document.querySelectorAll('#filters button')];"
        "const button = buttons.find((each) => each.textContent === 'files crashed (1)');"
        "button.click(); return button.getAttribute('aria-pressed')"
    )
    assert (pressed, tab.run(NAMES)) == ("true", ["tests/test_b.py"])
    tab.run("document.querySelector('#found button').click()")
    assert "tests/test_b.py" in tab.run(DETAIL)
    assert tab.run("return document.activeElement.className") == "frame"


def test_a_link_to_a_failure_opens_it(tab: Browser, page: Path) -> None:
    tab.open(page)
    tab.run("document.querySelectorAll('.failure').forEach((each) => { each.open = false; })")
    tab.run("document.querySelector('.detail a').click()")
    tab.settle()
    assert tab.run("return [...document.querySelectorAll('.failure')].map((each) => each.open)") == [False, True]


def test_hostile_text_does_not_run_and_is_seen(tab: Browser, page: Path) -> None:
    tab.open(page)
    tab.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    text = tab.run("return document.body.innerText")
    assert text.count(HOSTILE) >= 4
    assert tab.run("return document.scripts.length") == 2
    assert "Newly failing (1)" in text


def test_a_phone_shows_it_without_scrolling_sideways(tab: Browser, page: Path) -> None:
    tab.open(page, size=NARROW)
    tab.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    scrolled, shown = tab.run("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert scrolled == shown == NARROW[0]
    assert painted(tab, "done") > 50


def test_sections_and_tables_have_heads(tab: Browser, page: Path) -> None:
    tab.open(page)
    tables = tab.run("return [...document.querySelectorAll('table')].map((each) => !!each.querySelector('th[scope]'))")
    assert len(tables) >= 3 and all(tables)
    labels = tab.run(
        "return [...document.querySelectorAll('section')].map((each) => each.ariaLabel"
        " || document.getElementById(each.getAttribute('aria-labelledby'))?.innerText)"
    )
    assert len(labels) == 7 and all(labels)


def test_a_run_without_a_started_file_has_a_page(tab: Browser, tmp_path: Path) -> None:
    path = write_run(tmp_path, "20260301-123000-abcdef", {}) / PAGE
    tab.open(path)
    assert tab.run(DETAIL) in ("No file started.", "")


def test_bars_of_parts_are_labelled_with_their_file_and_part(tab: Browser, tmp_path: Path) -> None:
    parts = {f"tests/sub/test_k.py [{n}/4]": {"test_x": (("passed", "failed")[n == 3], 4.0)} for n in range(1, 5)}
    page = (
        write_run(tmp_path, "20260301-123000-abcdef", {**parts, "tests/test_a.py": {"test_y": ("passed", 4.0)}}) / PAGE
    )
    noted = "const draw = CanvasRenderingContext2D.prototype.fillText; window.drawn = [];"
    noted += "CanvasRenderingContext2D.prototype.fillText ="
    noted += " function (text, ...at) { window.drawn.push(text); draw.call(this, text, ...at); }"
    script = tab.command("Page.addScriptToEvaluateOnNewDocument", source=noted)["identifier"]
    try:
        tab.open(page)
        tab.settle()
        drawn = set(tab.run("return window.drawn"))
    finally:
        tab.command("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    assert {"test_a.py", "test_k.py [1/4]", "test_k.py [2/4]", "✗ test_k.py [3/4]", "test_k.py [4/4]"} <= drawn
    assert "5 units: 4 passed, 1 failed" in tab.run("return document.querySelector('.banner').innerText")
