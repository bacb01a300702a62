"""Makes what harness/lab/WHY.md shows from real runs: its files are written, its commands typed, one after the other.

python tests/lab/why_page.py            prints the page
python tests/lab/why_page.py --write    puts it in place
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.lab.replay_example import without_digits  # noqa: E402
from tests.runner.whole_run import HARNESS, environment  # noqa: E402

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
    shown: dict[str, str] = {}
    for name, command in commands(page):
        shown[name] = shown.get(name, "") + f"$ {command}\n{_shown(command, directory)}"
    return shown


def renewed(page: str, shown: dict[str, str]) -> str:
    """The page with these outputs in place of what stands there."""
    return _OUTPUT.sub(lambda block: block[1] + shown[block[2]] + block[4], page)


def without_chance(text: str) -> str:
    """A text in which what two followers of the page have differently is the same: numbers, bits, times, pictures."""
    text = re.sub(r"\b(b?f\d+):[0-9a-f]+", r"\1:BITS", text)
    text = re.sub(r"about [\w ]+ left", "some time left", text)
    return re.sub(" +", " ", without_digits(text))


def _shown(command: str, directory: Path) -> str:
    """Standard output and error of a command."""
    program, *words = shlex.split(command)
    argv = [*HARNESS, *words] if program == "rlharness" else [program, *words]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        argv,
        cwd=directory,
        env=environment(PATH=path, PYTHONWARNINGS="ignore"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout.replace(f"{directory.resolve()}/", "").replace(f"{directory}/", "")


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    with tempfile.TemporaryDirectory(prefix="rlh-why-") as scratch:
        text = renewed(text, typed(text, Path(scratch)))
    if "--write" in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)
