"""Makes the manual's example of the step debugger, and a picture, from a real run.

python tests/lab/inside_example.py            prints the example
python tests/lab/inside_example.py --write    puts it into its page, and the picture into .github/screenshots
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
MARKS = ("<!-- inside: begin -->\n", "<!-- inside: end -->")
"""What stands before and behind the example in the manual."""
WIDTH = 120


def example() -> str:
    """What a terminal shows of the command."""
    with tempfile.TemporaryDirectory() as scratch:
        demo = Path(scratch, "demo")
        demo.mkdir()
        (demo / "train.py").write_text(PROGRAM, encoding="utf-8")
        _typed(RUN, demo)
        typed = "".join(f"{line}\n" for line in TYPED)
        return f"$ {STAND}\n{_typed(STAND, demo, typed)}"


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


def write(shown: str) -> None:
    """Replace the manual's example and the picture by new ones."""
    begin, end = MARKS
    path = page_with(begin)
    head, rest = path.read_text("utf-8").split(begin)
    _, tail = rest.split(end)
    path.write_text(f"{head}{begin}```console\n{shown}```\n{end}{tail}", encoding="utf-8")
    place = ROOT / ".github" / "screenshots" / "interactive.svg"
    place.write_text(picture(shown), encoding="utf-8")


if __name__ == "__main__":
    found = example()
    if "--write" in sys.argv:
        write(found)
    else:
        print(found)
