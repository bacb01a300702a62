"""Hooks of mkdocs: the site holds the pages that lie beside the code, under the paths that they have in the repository.

Links between pages and to pictures are followed as they stand. A link to any other file leads to the repository's home.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PATTERNS = (
    "*.md",
    "harness/**/*.md",
    "rlcore/**/*.md",
    "tests/benchmarks/README.md",
    "tests/benchmarks/**/*.png",
    "tests/benchmarks/**/*.svg",
    ".github/screenshots/*",
)
LINK = re.compile(r"(\]\()(?!https?:|#)([^)#\s]+)")

CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures of the repository."""
    root = Path(config.config_file_path).parent
    for path in sorted({path for pattern in PATTERNS for path in root.glob(pattern)}):
        uri = path.relative_to(root).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files that are not in the site to the repository's home; a link to nothing stays, as a warning."""
    root = Path(config.config_file_path).parent
    folder = posixpath.dirname(page.file.src_uri)

    def led(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[2]))
        if files.get_file_from_path(target) is not None or not (root / target).exists():
            return match[0]
        return f"{match[1]}{config.repo_url}/blob/main/{target}"

    return LINK.sub(led, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show `a|b` in cells of tables, where GitHub needs the bar escaped and Python-Markdown keeps the backslash."""
    return CELL.sub(lambda match: match[0].replace("\\|", "|"), html)
