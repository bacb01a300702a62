"""Makes what pages show of the lab's commands, and pictures, from real runs.

python tests/lab/examples.py            prints what each page would show
python tests/lab/examples.py --write    puts it into the pages, and the pictures into .github/screenshots
"""

import io
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.cli_commands import shown  # noqa: E402
from tests.support.manual import page_with  # noqa: E402
from tests.support.suite_runs import HARNESS, environment  # noqa: E402

SCREENSHOTS = ROOT / ".github" / "screenshots"
_FONT_FACES = re.compile(r"\s*@font-face \{\{.*?\}\}", re.DOTALL)
SVG_TEMPLATE = _FONT_FACES.sub("", CONSOLE_SVG_FORMAT).replace(
    "Fira Code, monospace", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"
)
"""As rich has it, with fonts that every browser has."""


def terminal_picture(text: str, title: str, width: int = 130) -> str:
    """Return the text of a terminal, with its colours, as SVG."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    shows = Text.from_ansi(text.rstrip())
    shows.highlight_regex("[⠀-⣿]+", "none")  # segments of their own: most fonts have these dots wider than letters
    console.print(shows)
    return console.export_svg(title=title, code_format=SVG_TEMPLATE, unique_id="s")


def put(marks: tuple[str, str], made: str) -> None:
    """Replace what the manual shows between two marks."""
    page = page_with(marks[0])
    head, rest = page.read_text("utf-8").split(marks[0])
    page.write_text(f"{head}{marks[0]}{made}{marks[1]}{rest.split(marks[1])[1]}", encoding="utf-8")


# ------------------------------------------------------------------------------------------------------------ replays

PROGRAMS = ROOT / "tests" / "support" / "programs"
REPLAY = "rlharness replay --step 0 --trace-ops -- python bag_of_words.py"
PICTURES = {
    "replay_equal": "rlharness replay -- python classifier.py",
    "replay_diverged": "rlharness replay -- python bag_of_words.py",
}
COPIES = {"bag_of_words.py": "indexed.py", "classifier.py": "classifier.py"}
REPLAY_MARKS = ("<!-- replays: begin -->\n", "<!-- replays: end -->")


def replayed(command: str) -> str:
    """What a terminal shows of a command on the programs."""
    with tempfile.TemporaryDirectory() as scratch:
        demo = Path(scratch, "demo")
        demo.mkdir()
        for name, original in COPIES.items():
            (demo / name).write_text((PROGRAMS / original).read_text("utf-8"), encoding="utf-8")
        return shown(command, demo, "demo/")


def replay_example() -> str:
    """The command and what a terminal shows of it, as a block of Markdown."""
    return f"```console\n$ {REPLAY}\n{replayed(REPLAY)}```\n"


def picture(command: str) -> str:
    """What a terminal shows of a replay, as SVG."""
    text = replayed(command.replace(" -- ", " --color always -- "))
    return terminal_picture(f"$ {command}\n{text}", "rlharness replay")


def without_digits(text: str) -> str:
    """A text in which what two replays have differently is the same: numbers, digests, the dots of a curve."""
    text = re.sub(r"│.*", "│", text)
    text = re.sub(r"\b[0-9a-f]{32}\b", "DIGEST", text)
    text = re.sub(r"\b\d{8}-\d{6}-[0-9a-f]{6}\b", "RUN", text)
    return re.sub(r"-?\d+([,.]\d+)*(e[-+]?\d+)?", "0", text)


# ------------------------------------------------------------------------------------------------- the step debugger

PROGRAM = """\
import sys

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
policy = torch.nn.Linear(8, 4)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)


def loss_of(states, actions, advantages):
    chances = policy(states).softmax(-1)
    taken = chances.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    return -(taken.log() * advantages).mean()


for step in range(6):
    states, actions = torch.randn(16, 8), torch.randint(4, (16,))
    if step == 4:
        states *= float(sys.argv[1])
    loss = loss_of(states, actions, torch.randint(2, (16,)).float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
"""A policy gradient; a large argument makes its loss NaN in step 4, 1 does not."""
RUN = "rlharness trace --out broken -- python train.py 1000"
STAND = "rlharness reproduce broken --step 4 --interactive --trace-ops -- python train.py 1000"
TYPED = (
    "break nan",
    "continue",
    "p loss",
    "operation",
    "p policy(states).softmax(-1).amin()",
    "back",
    "clear nan",
    "next optimizer",
    "list backward",
    "continue",
    "quit",
)
DEBUGGER_MARKS = ("<!-- inside: begin -->\n", "<!-- inside: end -->")


def debugged() -> str:
    """What a terminal shows of the debugger."""
    with tempfile.TemporaryDirectory() as scratch:
        demo = Path(scratch, "demo")
        demo.mkdir()
        (demo / "train.py").write_text(PROGRAM, encoding="utf-8")
        _typed(RUN, demo)
        return f"$ {STAND}\n{_typed(STAND, demo, chr(10).join([*TYPED, '']))}"


def debugger_picture(text: str) -> str:
    """A terminal's text as SVG."""
    return terminal_picture(text, "rlharness reproduce --interactive", 120)


def _typed(command: str, demo: Path, text: str = "") -> str:
    """Standard output of a command typed in `demo`, which is called so whatever its place."""
    done = subprocess.run(
        [*HARNESS, *shlex.split(command)[1:]],
        cwd=demo,
        env=environment(PYTHONPATH=str(ROOT)),
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.replace(f"{demo.resolve()}/", "demo/").replace(f"{demo}/", "demo/")


# --------------------------------------------------------------------------------------- why two runs differ: a page

WHY = ROOT / "harness" / "lab" / "WHY.md"
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
    text = WHY.read_text("utf-8")
    with tempfile.TemporaryDirectory(prefix="rlh-why-") as scratch:
        text = renewed(text, typed(text, Path(scratch)))
    made = {REPLAY_MARKS: replay_example(), DEBUGGER_MARKS: f"```console\n{debugged()}```\n"}
    if "--write" in sys.argv:
        WHY.write_text(text, encoding="utf-8")
        for marks, block in made.items():
            put(marks, block)
        (SCREENSHOTS / "interactive.svg").write_text(debugger_picture(debugged()), encoding="utf-8")
        for name, command in PICTURES.items():
            (SCREENSHOTS / f"{name}.svg").write_text(picture(command), encoding="utf-8")
    else:
        print(*made.values(), text, sep="\n")
