"""The documentation site: it builds without a warning, holds every page, and none of its local links is broken."""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from tests.support.manual import README, pages

pytest.importorskip("material", reason="pip install -e '.[docs]'")

ROOT = Path(__file__).parents[1]
HOME = "https://github.com/rlharness/rlharness/blob/main/"
ATTRIBUTE = re.compile(r'(?:href|src)="([^"]*)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)]
    environ = {"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return directory


def html_of(site: Path, page: Path) -> Path:
    """The file of a page: a README is the index of its directory."""
    path = page.relative_to(ROOT)
    return site / (path.parent if path.name == "README.md" else path.with_suffix("")) / "index.html"


@pytest.mark.full
def test_it_holds_every_page_of_the_manual(site: Path) -> None:
    for title, page in {"rlharness": README, **pages()}.items():
        text = html_of(site, page).read_text("utf-8")
        heading = re.search(r"<h1[^>]*>(.*?)<a", text, re.DOTALL)
        assert heading is not None
        assert unescape(re.sub(r"<[^>]+>", "", heading[1])) == title


def test_no_local_link_and_no_picture_is_missing(site: Path) -> None:
    missing, pictures = [], 0
    for page in site.rglob("index.html"):
        for target in ATTRIBUTE.findall(page.read_text("utf-8")):
            path = unquote(unescape(target)).partition("#")[0].partition("?")[0]
            if re.match(r"[a-z]+:", path) or not path:
                continue
            pictures += path.endswith((".svg", ".png"))
            if not (page.parent / path).exists():
                missing.append(f"{page.relative_to(site)}: {target}")
    assert missing == []
    assert pictures > 8


def test_links_to_files_that_are_no_pages_lead_to_files_of_the_repository(site: Path) -> None:
    found = {
        unescape(target).removeprefix(HOME).partition("#")[0]
        for page in site.rglob("index.html")
        for target in ATTRIBUTE.findall(page.read_text("utf-8"))
        if target.startswith(HOME)
    }
    assert found
    assert [path for path in found if not (ROOT / path).exists()] == []


def test_a_bar_in_a_cell_has_no_backslash(site: Path) -> None:
    assert "<code>--color auto|always|never</code>" in (site / "harness" / "runner" / "RUN" / "index.html").read_text()


def test_ci_builds_it() -> None:
    assert "mkdocs build --quiet --strict" in (ROOT / ".ci" / "run").read_text("utf-8")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "docs.yml").read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert "mkdocs build --strict" in [step.get("run") for step in workflow["jobs"]["build"]["steps"]]
