"""The manual: the README, and the pages it leads to, each in the room that it tells of."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"


def tracked() -> list[str]:
    """Paths of the files that git tracks, without those a user left beside them; nothing outside a checkout."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def pages() -> dict[str, Path]:
    """The pages of the README's table "Where to read on", by their titles there; without the DESIGN.md of packages."""
    rows = re.findall(r"^\| \[([^]]+)\]\(([^)]+\.md)\) \|", section("Where to read on", README), re.MULTILINE)
    return {title: ROOT / path for title, path in rows}


def text() -> str:
    """All of it."""
    return "\n".join(path.read_text("utf-8") for path in (README, *pages().values()))


def section(title: str, page: Path | None = None) -> str:
    """The text below a heading, up to the next of the first two levels; of all pages, or of one."""
    return section_of(text() if page is None else page.read_text("utf-8"), title)


def section_of(text: str, title: str) -> str:
    """The text below a heading, up to the next of the first two levels."""
    match = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"no section {title!r}"
    return match[1]


def between(begin: str, end: str) -> str:
    """What stands between two marks that the manual has once."""
    _, rest = text().split(begin)
    return rest.partition(end)[0]


def page_with(mark: str) -> Path:
    """The one page that holds a mark, to be written to."""
    (page,) = [path for path in (README, *pages().values()) if mark in path.read_text("utf-8")]
    return page


def goldens(pattern: str) -> dict[str, str]:
    """The texts that the manual shows and that lie in tests/golden, by their names there."""
    return dict(re.findall(rf"<!-- golden: ({pattern}) -->\n```text\n(.*?)```\n", text(), re.DOTALL))
