"""Golden files: the output of a renderer, kept in tests/golden and shown by pages; `--update-goldens` rewrites them."""

import re
from pathlib import Path

from tests.support.manual import README, ROOT, pages

GOLDEN = ROOT / "tests" / "golden"


def check_golden(name: str, text: str, *, is_updating: bool) -> None:
    """Compare a text with the golden file of that name; while updating, write it there and into pages that show it."""
    path = GOLDEN / name
    if is_updating:
        path.write_text(text, "utf-8")
        for page in (README, *pages().values()):
            _show(page, path.stem, text)
    assert text == path.read_text("utf-8"), f"{name} differs: if that is right, run this test with --update-goldens"


def _show(page: Path, stem: str, text: str) -> None:
    """Replace the text that a page shows below the mark of a golden file."""
    shown = re.compile(rf"(<!-- golden: {re.escape(stem)} -->\n```text\n).*?(```\n)", re.DOTALL)
    old = page.read_text("utf-8")
    new = shown.sub(lambda match: match[1] + text + match[2], old)
    if new != old:
        page.write_text(new, "utf-8")
