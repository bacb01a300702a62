"""Makes what harness/lab/WHY.md shows from real runs: its files are written, its commands typed, one after the other.

python tests/lab/why_page.py            prints the page
python tests/lab/why_page.py --write    puts it in place
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.lab.replay_example import without_digits  # noqa: E402
from tests.support.cli_commands import shown  # noqa: E402

PAGE = ROOT / "harness" / "lab" / "WHY.md"
_FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```\n", re.DOTALL)
_OUTPUT = re.compile(r"(<!-- output: (\w+) -->\n```console\n)(.*?)(```\n)", re.DOTALL)


def commands(page: str) -> Iterator[tuple[str, str]]:
    """(name of its block, command) of each command of the page, in their order."""
    for block in _OUTPUT.finditer(page):
        for line in re.findall(r"^\$ (.*)$", block[3], re.MULTILINE):
            yield block[2], line


def files(page: str) -> dict[str, str]:
    """The files that somebody who follows the page has, by name."""
    return {match[1]: match[2] for match in _FILE.finditer(page)}


def typed(page: str, directory: Path) -> dict[str, str]:
    """What a terminal shows of the commands of each block, typed in a directory, in which the page's files are made."""
    for name, text in files(page).items():
        (directory / name).write_text(text, encoding="utf-8")
    made: dict[str, str] = {}
    for name, command in commands(page):
        made[name] = made.get(name, "") + f"$ {command}\n{shown(command, directory)}"
    return made


def renewed(page: str, made: dict[str, str]) -> str:
    """The page with these outputs in place of what stands there."""
    return _OUTPUT.sub(lambda block: block[1] + made[block[2]] + block[4], page)


def without_chance(text: str) -> str:
    """A text in which what two followers of the page have differently is the same: numbers, bits, times, pictures."""
    text = re.sub(r"\b(b?f\d+):[0-9a-f]+", r"\1:BITS", text)
    text = re.sub(r"about [\w ]+ left", "some time left", text)
    return re.sub(" +", " ", without_digits(text))


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    with tempfile.TemporaryDirectory(prefix="rlh-why-") as scratch:
        text = renewed(text, typed(text, Path(scratch)))
    if "--write" in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)
