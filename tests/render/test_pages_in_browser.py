"""The pages of a report and of a run in a browser: what is seen, links, and that they talk to nobody."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="pip install 'rlharness[browser]'")

from harness.runner.records.recorded_run import PAGE
from tests.render import run_pages
from tests.render.report_pages import HOSTILE, page_of, write_pair, write_run
from tests.support.browser import NARROW, WIDE, Browser, browser, missing

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}"),
    pytest.mark.full,
]


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


def colour(tab: Browser, element: str, name: str) -> str:
    script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    return str(tab.run(script, element, name))


def test_curves_are_drawn_with_the_step_at_which_they_diverge(tab: Browser, diverged: Path) -> None:
    tab.open(diverged)
    titles = tab.run("return [...document.querySelectorAll('figcaption b')].map((each) => each.textContent)")
    assert titles == ["reward_mean", "loss"]
    boxes = tab.run(
        "return [...document.querySelectorAll('.plot path')].map((each) => each.getBoundingClientRect().width)"
    )
    assert len(boxes) == 4 and min(boxes) > 200
    mark, plot = tab.run(
        "return ['.plot .mark', '.plot svg'].map((each) => document.querySelector(each).getBoundingClientRect().x)"
    )
    assert mark > plot + 50
    assert colour(tab, ".plot path.line-A", "stroke") != colour(tab, ".plot path.line-B", "stroke")
    assert tab.run("return document.querySelector('.banner .label').innerText") == "DIVERGED"
    assert tab.run("return document.querySelectorAll('.phases .first').length") == 1


def test_each_verdict_leads_to_its_pair(tab: Browser, tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, parts_at=at) for name, at in zip("abcde", (12, 5, 5, 6, 11), strict=True)]
    path = tmp_path / "several.html"
    path.write_text(page_of(tmp_path, *runs), "utf-8")
    tab.open(path)
    tab.run("document.querySelectorAll('.banner a')[3].click()")
    assert tab.run("return document.querySelector(':target').innerText").startswith("A and E: diverged")


def test_hostile_text_does_not_run_and_is_seen(tab: Browser, diverged: Path) -> None:
    tab.open(diverged)
    text = tab.run("return document.body.innerText")
    assert "the gradient of w<script>alert(1)</script> differs" in text
    assert tab.run("return document.scripts.length") == 0


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
    assert colour(tab, "body", "backgroundColor") == {"light": "rgb(246, 247, 249)", "dark": "rgb(16, 18, 22)"}[scheme]


def test_a_phone_shows_it_without_scrolling_sideways(tab: Browser, diverged: Path) -> None:
    tab.open(diverged, size=NARROW)
    tab.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    tab.settle()
    scrolled, shown = tab.run("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert scrolled == shown == NARROW[0]


def test_every_table_has_heads_and_what_is_drawn_has_words(tab: Browser, diverged: Path) -> None:
    tab.open(diverged)
    tables = tab.run("return [...document.querySelectorAll('table')].map((each) => !!each.querySelector('th[scope]'))")
    assert len(tables) >= 2 and all(tables)
    labels = tab.run(
        "return [...document.querySelectorAll('section, svg')].map((each) => each.getAttribute('aria-label')"
        " || document.getElementById(each.getAttribute('aria-labelledby'))?.innerText)"
    )
    assert len(labels) >= 5 and all(labels)


# ----------------------------------------------------------------------------------------------- the page of a run

FILES = {
    "tests/test_a.py": {"test_one": ("passed", 1.0), f"test_two[{HOSTILE}]": ("failed", 2.0)},
    "tests/test_b.py": {"test_x": ("passed", 2.0), "test_hangs": ("unfinished", 4.0)},
    "tests/test_c.py": {f"test_{n}": ("passed", 0.5) for n in range(4)},
    "tests/test_d.py": {f"test_{n}": ("skipped", 0.5) for n in range(150)},
}
WIDTHS = "return [...document.querySelectorAll('.bar')].map((each) => each.getBoundingClientRect().width)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_pages.write_run(tmp_path_factory.mktemp("run"), "20260301-123001-abcdef", FILES, text=HOSTILE) / PAGE


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
