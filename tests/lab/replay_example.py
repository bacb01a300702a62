"""Makes the manual's example of replays, and its pictures, from real ones.

python tests/lab/replay_example.py            prints the example
python tests/lab/replay_example.py --write    puts it into its page, and the pictures into .github/screenshots
"""

import io
import re
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.cli_commands import shown  # noqa: E402
from tests.support.manual import page_with  # noqa: E402

PROGRAMS = ROOT / "tests" / "support" / "programs"
EXAMPLE = ("rlharness replay --step 0 --trace-ops -- python bag_of_words.py",)
PICTURES = {
    "replay_equal": "rlharness replay -- python classifier.py",
    "replay_diverged": "rlharness replay -- python bag_of_words.py",
}
COPIES = {"bag_of_words.py": "indexed.py", "classifier.py": "classifier.py"}
BEGIN, END = "<!-- replays: begin -->\n", "<!-- replays: end -->"
WIDTH = 130
_FONT_FACES = re.compile(r"\s*@font-face \{\{.*?\}\}", re.DOTALL)
SVG_TEMPLATE = _FONT_FACES.sub("", CONSOLE_SVG_FORMAT).replace(
    "Fira Code, monospace", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"
)
"""As rich has it, with fonts that every browser has."""


def example() -> str:
    """The commands of EXAMPLE and what a terminal shows of them, as a block of Markdown."""
    with tempfile.TemporaryDirectory() as scratch:
        demo = Path(scratch, "demo")
        demo.mkdir()
        _copy_programs(demo)
        blocks = [f"$ {command}\n{shown(command, demo, 'demo/')}" for command in EXAMPLE]
    return "```console\n" + "".join(blocks) + "```\n"


def without_digits(text: str) -> str:
    """A text in which what two replays have differently is the same: numbers, digests, the dots of a curve."""
    text = re.sub(r"│.*", "│", text)
    text = re.sub(r"\b[0-9a-f]{32}\b", "DIGEST", text)
    text = re.sub(r"\b\d{8}-\d{6}-[0-9a-f]{6}\b", "RUN", text)
    return re.sub(r"-?\d+([,.]\d+)*(e[-+]?\d+)?", "0", text)


def picture(command: str, title: str) -> str:
    """What a terminal shows of a command, as SVG."""
    with tempfile.TemporaryDirectory() as scratch:
        demo = Path(scratch, "demo")
        demo.mkdir()
        _copy_programs(demo)
        text = shown(command.replace(" -- ", " --color always -- "), demo, "demo/")
    return terminal_picture(f"$ {command}\n{text}", title)


def terminal_picture(text: str, title: str) -> str:
    """Return the text of a terminal, with its colours, as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    shows = Text.from_ansi(text.rstrip())
    shows.highlight_regex("[⠀-⣿]+", "none")  # segments of their own: most fonts have these dots wider than letters
    console.print(shows)
    return console.export_svg(title=title, code_format=SVG_TEMPLATE, unique_id="s")


def _copy_programs(demo: Path) -> None:
    for name, original in COPIES.items():
        (demo / name).write_text((PROGRAMS / original).read_text("utf-8"), encoding="utf-8")


def write() -> None:
    """Replace the manual's example and the pictures by new ones."""
    made = example()
    page = page_with(BEGIN)
    head, rest = page.read_text("utf-8").split(BEGIN)
    _, tail = rest.split(END)
    page.write_text(f"{head}{BEGIN}{made}{END}{tail}", encoding="utf-8")
    for name, command in PICTURES.items():
        path = ROOT / ".github" / "screenshots" / f"{name}.svg"
        path.write_text(picture(command, "rlharness replay"), encoding="utf-8")


if __name__ == "__main__":
    if "--write" in sys.argv:
        write()
    else:
        print(example())
