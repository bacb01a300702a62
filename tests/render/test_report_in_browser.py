"""The page of a report in a browser: what it draws, what one can do with it, and that it talks to nobody."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="pip install 'rlharness[browser]'")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from harness.render.report import curves
from harness.trace.chain import RecordedValue, Scope
from harness.trace.reader import read_trace
from harness.trace.values import Float
from tests.render import report_pages
from tests.render.report_pages import NUM_STEPS, page_of, write_pair, write_run
from tests.support.browser import NARROW, Browser, browser, missing
from tests.support.traces import recorded_value, write

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
    pytest.mark.full,
]

PAINTED = """
const canvas = document.querySelector(arguments[0]);
const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
copy.drawImage(canvas, 0, 0);
const data = copy.getImageData(0, 0, canvas.width, canvas.height).data;
const wanted = arguments[1].match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16));
let num = 0;
for (let at = 0; at < data.length; at += 4) {
  if (wanted.every((part, index) => Math.abs(part - data[at + index]) < 3) && data[at + 3] > 250) num++;
}
return num;
"""
LISTEN = """
window.written = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  if (this.textBaseline === "top" && this.textAlign === "left") {
    written.push([text, x, y, this.measureText(text).width, parseFloat(this.font.match(/([0-9.]+)px/)[1])]);
  }
  write.call(this, text, x, y);
};
"""
"""From here on `written` is (text, left, top, width, height) of each letter that the plots draw."""
LISTEN_TO_LABELS = """
window.written = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  if (this.textAlign === "right") written.push([text, x - this.measureText(text).width]);
  write.call(this, text, x, y);
};
"""
"""From here on `written` is (text, left) of each label beside the upright axes."""
CELL = "return document.querySelector('.grid-cell').innerText"


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs that part at step 5, with hostile text in it."""
    directory = tmp_path_factory.mktemp("diverged")
    path = directory / "report.html"
    path.write_text(page_of(directory, *write_pair(directory)), "utf-8")
    return path


@pytest.fixture(autouse=True)
def no_complaint(tab: Browser) -> Iterator[None]:
    """No test may leave an error in the console, or have asked anybody for anything."""
    yield
    assert (tab.complaints(), tab.requests()) == ([], [])


def colour(tab: Browser, name: str) -> str:
    return str(tab.run("return getComputedStyle(document.documentElement).getPropertyValue(arguments[0])", f"--{name}"))


def painted(tab: Browser, name: str, canvas: str = ".grid canvas") -> int:
    """How many pixels of a canvas have a colour of the page."""
    tab.settle()
    return int(tab.run(PAINTED, canvas, colour(tab, name)))


def point(tab: Browser, x: float, y: float) -> str:
    """What is told of the cell at a place of the grid, in pixels from its top left."""
    frame = tab.driver.find_element("css selector", ".grid-frame")
    tab.run("arguments[0].scrollIntoView({block: 'center'})", frame)
    size = frame.size
    ActionChains(tab.driver, duration=0).move_to_element_with_offset(
        frame, round(x - size["width"] / 2), round(y - size["height"] / 2)
    ).perform()
    return str(tab.run(CELL))


def cells(tab: Browser) -> tuple[float, float]:
    """(where the first column begins, how wide a column is)."""
    width = tab.driver.find_element("css selector", ".grid-frame").size["width"] - 2
    gutter = min(230, max(96, round(width * 0.27)))
    return gutter, (width - gutter - 1) / NUM_STEPS


def test_curves_are_drawn_with_the_place_where_they_part(tab: Browser, diverged: Path) -> None:
    tab.open(diverged)
    titles = tab.run("return [...document.querySelectorAll('#panels figcaption b')].map((each) => each.textContent)")
    assert titles == ["reward_mean", "loss"]
    assert painted(tab, "part", "#panels canvas") > 30, "the mark at step 5"
    assert painted(tab, "run-0", "#panels canvas") > 100 and painted(tab, "run-1", "#panels canvas") > 100
    assert tab.run("return document.querySelector('.banner .label').innerText") == "DIVERGED"
    assert tab.run("return document.querySelectorAll('.phases .first').length") == 1


def test_several_runs_that_part_at_once_are_told_apart(tab: Browser, tmp_path: Path) -> None:
    """Their letters do not lie over each other; each verdict leads to what there is to say of that pair."""
    runs = [write_run(tmp_path / name, parts_at=at) for name, at in zip("abcde", (12, 5, 5, 6, 11), strict=True)]
    path = tmp_path / "several.html"
    path.write_text(page_of(tmp_path, *runs), "utf-8")
    tab.open(path)
    tab.run(LISTEN)
    tab.prefer("dark")  # which draws them again
    tab.settle()
    written = tab.run("return written")
    assert sorted(text for text, *_ in written[:4]) == list("BCDE"), "the first plot"
    boxes = [(left, top, left + width, top + height) for _, left, top, width, height in written[:4]]
    for at, (left, top, right, bottom) in enumerate(boxes):
        assert not any(left < r and x < right and top < b and y < bottom for x, y, r, b in boxes[:at])
    tab.run("document.querySelectorAll('.banner a')[3].click()")
    assert tab.run("return document.querySelector(':target').innerText").startswith("A and E: diverged")


def test_equal_curves_have_no_mark_and_no_grid(tab: Browser, tmp_path: Path) -> None:
    path = tmp_path / "equal.html"
    path.write_text(page_of(tmp_path, write_run(tmp_path / "a"), write_run(tmp_path / "b")), "utf-8")
    tab.open(path)
    assert painted(tab, "run-1", "#panels canvas") > 100
    assert painted(tab, "part", "#panels canvas") == 0
    assert tab.run("return document.querySelectorAll('.grid').length") == 0
    tab.run("document.querySelector('input[value=distance]').click()")
    texts = tab.run("return [...document.querySelectorAll('#panels .plot')].map((each) => each.innerText)")
    assert texts == ["no distance: equal wherever both have a value"] * 2


def test_extremes_have_no_distance(tab: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "MAX_POINTS", 6)
    path = tmp_path / "long.html"
    path.write_text(page_of(tmp_path, write_run(tmp_path / "a"), write_run(tmp_path / "b", parts_at=5)), "utf-8")
    tab.open(path)
    assert "minimum and maximum, for every 4 steps" in tab.run("return document.querySelector('#panels').innerText")
    assert painted(tab, "run-1", "#panels canvas") > 100
    tab.run("document.querySelector('input[value=distance]').click()")
    texts = tab.run("return [...document.querySelectorAll('#panels .plot')].map((each) => each.innerText)")
    assert texts == ["no distance: two points stand for 4 steps"] * 2


@pytest.mark.parametrize("width", [1e-3, 1e-7, 1e-12])
def test_no_two_labels_of_an_axis_are_the_same(
    tab: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: float
) -> None:
    """However little a value moves."""

    def nearly_still(step: int, is_other: bool) -> Mapping[str, Float]:
        return {"reward_mean": Float.of(1 + width * step, "f64")}

    monkeypatch.setattr(report_pages, "curve", nearly_still)
    path = tmp_path / "still.html"
    path.write_text(page_of(tmp_path, write_run(tmp_path / "a")), "utf-8")
    tab.open(path)
    tab.run(LISTEN_TO_LABELS)
    tab.prefer("dark")  # which draws them again
    tab.settle()
    labels = tab.run("return written")
    assert len(labels) > 2
    texts = [text for text, _ in labels]
    assert len(set(texts)) == len(texts), texts
    assert all(left >= 0 for _, left in labels), "and none is cut"


def test_costs_are_drawn_when_they_are_opened(tab: Browser, diverged: Path) -> None:
    tab.open(diverged)
    assert tab.run("return document.querySelectorAll('#cost-panels canvas').length") == 0
    tab.run("document.querySelector('#costs').open = true")
    tab.settle()
    assert tab.run("return document.querySelectorAll('#cost-panels canvas').length") == 1


def test_the_grid_tells_a_cell(tab: Browser, diverged: Path) -> None:
    tab.open(diverged)
    assert "step 5 · backward w<script>" in tab.run(CELL), "the first difference is told before anybody points"
    start, width = cells(tab)
    row = 22 * 4 + 16 / 2 + 22  # rollout, reward, forward, loss are folded; backward is open
    told = point(tab, start + 8.5 * width, row)
    assert "step 8 · backward w<script>" in told and told.splitlines()[1] == "differs"
    assert "rank" not in told, "there is one"
    for run in ("a", "b"):
        recorded_values = read_trace(diverged.parent / run).columns(8, 0).values()
        (digest,) = [each.digest.hex() for each in recorded_values if each.phase == "backward"]
        assert f"{run.upper()}  xxh3_128 {digest}" in told.splitlines()
    assert point(tab, start + 2.5 * width, row).splitlines()[1] == "equal"
    assert "step 6 · rollout" in point(tab, start + 6.5 * width, 11)


def test_a_whole_and_its_parts_are_told_apart(tab: Browser, tmp_path: Path) -> None:
    def steps(number: int) -> list[list[RecordedValue]]:
        return [
            [recorded_value("backward", "w", number), recorded_value("backward", "w", number, scope=Scope.PHYSICAL)]
        ]

    path = tmp_path / "parts.html"
    path.write_text(page_of(tmp_path, write(tmp_path / "a", steps(0)), write(tmp_path / "b", steps(1))), "utf-8")
    tab.open(path)
    frame = tab.driver.find_element("css selector", ".grid-frame")
    assert tab.run(CELL).splitlines()[0] == "step 0 · backward w"
    frame.send_keys(Keys.ARROW_DOWN)
    assert tab.run(CELL).splitlines()[0] == "step 0 · backward w (part)"


def test_the_grid_is_moved_in_with_keys(tab: Browser, diverged: Path) -> None:
    tab.open(diverged)
    frame = tab.driver.find_element("css selector", ".grid-frame")
    frame.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert "step 7 · optimizer, 50 rows" in tab.run(CELL)
    height = frame.size["height"]
    frame.send_keys(Keys.ENTER)
    assert frame.size["height"] > height, "a phase that is opened shows its rows"
    frame.send_keys(*[Keys.ARROW_DOWN] * 50)
    assert "optimizer layers.49.weight" in tab.run(CELL)
    assert tab.run("return arguments[0].scrollTop", frame) > 0, "the cell is scrolled to"


def test_hostile_text_does_not_run_and_is_seen(tab: Browser, diverged: Path) -> None:
    tab.open(diverged)
    text = tab.run("return document.body.innerText")
    assert "<script>alert(1)</script> one" in text
    assert tab.run("return document.scripts.length") == 2
    assert tab.run("return document.querySelectorAll('mark').length") > 0


TAMPERED = """
<base href="https://evil.invalid/"><script>document.title = "mine"</script><p onclick='document.title = "mine"'>x</p>
<img src="data:," onerror='document.title = "mine"'><img src="https://evil.invalid/x.png">
<svg onload='document.title = "mine"'><script>document.title = "mine"</script></svg>
<iframe srcdoc="<script>parent.document.title = 'mine'</script>"></iframe>
<link rel="stylesheet" href="https://evil.invalid/x.css"><p style="color: red">x</p>
<form action="https://evil.invalid/x"></form>
"""


def test_what_is_put_into_a_page_runs_nothing_and_loads_nothing(tab: Browser, diverged: Path, tmp_path: Path) -> None:
    text = diverged.read_text("utf-8")
    changed = tmp_path / "tampered.html"
    changed.write_text(text.replace("</main>", f"</main>{TAMPERED}"), "utf-8")
    tab.open(changed)
    tab.run("document.querySelector('p[onclick]').click(); document.forms[0].submit()")
    assert tab.run("return document.querySelectorAll('form, iframe, base').length") == 3, "it is in the page"
    assert tab.run("return document.title") != "mine", "no script of it ran"
    assert tab.run("return [location.href, document.baseURI]") == [changed.as_uri()] * 2
    refused = "\n".join(tab.complaints())
    for directive in ("script-src", "style-src", "img-src", "base-uri", "form-action"):
        assert directive in refused
    tab.requests()  # those that the policy has refused


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_as_light_as_the_machine_prefers(tab: Browser, diverged: Path, scheme: str) -> None:
    tab.open(diverged, scheme=scheme)
    background = tab.run("return getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(246, 247, 249)", "dark": "rgb(16, 18, 22)"}[scheme]
    assert painted(tab, "different") > 100
    assert painted(tab, "run-0", "#panels canvas") > 100


def test_the_switch_and_the_machine_change_the_plots_in_place(tab: Browser, diverged: Path) -> None:
    tab.open(diverged)
    light = colour(tab, "run-0")
    tab.run("document.querySelector('.theme input[value=dark]').click()")
    dark = colour(tab, "run-0")
    assert dark != light
    assert painted(tab, "run-0", "#panels canvas") > 100 and painted(tab, "different") > 100
    tab.run("document.querySelector('.theme input[value=auto]').click()")
    assert colour(tab, "run-0") == light
    tab.prefer("dark")
    assert colour(tab, "run-0") == dark
    assert painted(tab, "run-0", "#panels canvas") > 100


def test_a_phone_shows_it_without_scrolling_sideways(tab: Browser, diverged: Path) -> None:
    tab.open(diverged, size=NARROW)
    tab.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    tab.settle()
    scrolled, shown = tab.run("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert scrolled == shown == NARROW[0]
    assert painted(tab, "different") > 50


def test_every_table_has_heads_and_what_is_drawn_has_words(tab: Browser, diverged: Path) -> None:
    tab.open(diverged)
    tables = tab.run(
        "return [...document.querySelectorAll('table:not(.u-legend)')].map((each) => !!each.querySelector('th[scope]'))"
    )
    assert len(tables) >= 6 and all(tables)
    labels = tab.run(
        "return [...document.querySelectorAll('section, .grid-frame')].map((each) => each.ariaLabel"
        " || document.getElementById(each.getAttribute('aria-labelledby'))?.innerText)"
    )
    assert len(labels) >= 8 and all(labels)
