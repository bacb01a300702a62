"""Makes the manual's examples of standing inside a step and of transplants, and a picture, from two real GRPO runs.

python tests/lab/inside_example.py            prints the examples; takes some minutes
python tests/lab/inside_example.py --write    puts them into the pages, and the picture into .github/screenshots
"""

import io
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.lab.replay_example import SVG_TEMPLATE  # noqa: E402
from tests.support.manual import page_with  # noqa: E402
from tests.support.suite_runs import HARNESS, environment  # noqa: E402

RUNS = (
    "rlharness train grpo_reverse_text --size smoke --set output.checkpoint_every=4 --out first",
    "rlharness train grpo_reverse_text --size smoke --set output.checkpoint_every=4"
    " --set algorithm.advantage=rloo --out second",
)
STAND = "rlharness reproduce first --step 9 --interactive --against second"
TYPED = (
    "next",
    "next",
    "compare rewards",
    "back",
    "break advantages",
    "continue",
    "show advantages [0:2, 6:10]",
    "compare advantages",
    "next optimizer",
    "show backward/policy.norm [0:4]",
    "continue",
)
TRANSPLANT = "rlharness transplant first second"
INSIDE, CAUSE = "inside", "cause"
"""The names of the two places in the manual."""
WIDTH = 120


def examples() -> dict[str, str]:
    """What a terminal shows of the two commands, by the name of the place."""
    with tempfile.TemporaryDirectory() as scratch:
        demo = Path(scratch, "demo")
        demo.mkdir()
        for command in RUNS:
            _typed(command, demo)
        inside = _typed(STAND, demo, "\n".join(TYPED) + "\n")
        return {INSIDE: f"$ {STAND}\n{inside}", CAUSE: f"$ {TRANSPLANT}\n{_typed(TRANSPLANT, demo)}"}


def marks(name: str) -> tuple[str, str]:
    """What stands before and behind the example of a name."""
    return f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"


def picture(text: str) -> str:
    """A terminal's text as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text.rstrip()))
    return console.export_svg(title="rlharness reproduce --interactive", code_format=SVG_TEMPLATE, unique_id="s")


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


def write(shown: dict[str, str]) -> None:
    """Replace the manual's examples and the picture by new ones."""
    for name, text in shown.items():
        begin, end = marks(name)
        path = page_with(begin)
        head, rest = path.read_text("utf-8").split(begin)
        _, tail = rest.split(end)
        path.write_text(f"{head}{begin}```console\n{text}```\n{end}{tail}", encoding="utf-8")
    place = ROOT / ".github" / "screenshots" / "interactive.svg"
    place.write_text(picture(shown[INSIDE]), encoding="utf-8")


if __name__ == "__main__":
    found = examples()
    if "--write" in sys.argv:
        write(found)
    else:
        print("\n".join(found.values()))
