"""Makes what the README shows from real runs: of `rlharness demo`, of the command after it, and of `rlharness train`.

python tests/demo_example.py            prints the README
python tests/demo_example.py --write    puts it in place

What is left out is marked by a line that says how many lines are missing, and what they are.
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.cli_commands import shown  # noqa: E402
from tests.support.manual import README  # noqa: E402

DEMO = "rlharness demo"
LOOK_CLOSER = "rlharness replay --step 3 --trace-ops -- python train.py"
"""Command that the demo says to type next."""
TRAIN = "rlharness train grpo_reverse_text --out first"
CUTS = (
    ("\n  gpu 0", "\n    ", "the simulated GPUs, and where results are kept"),
    ("\n=", "\n8 units: ", "output of the two files that failed, with the stacks of their processes"),
    ("\n  equal before it", "\n  look closer: ", "what is equal, what is not, and likely causes"),
    ("\n# Next", "", "what to type next"),
)
"""(first text that is cut, first text after it or nothing for the end, what it is) of each cut."""
OPERATIONS = ("    first operation that differs", "      outputs: ")
"""First line, and the one after the last, of what the README shows of the operations."""


def shortened(output: str) -> str:
    """Cut the demo's output as CUTS says, with a line for each cut."""
    for begin, end, what in CUTS:
        head, found, rest = output.partition(begin)
        cut, is_there, tail = (found + rest).partition(end) if end else (found + rest, "\n", "")
        if not cut or not is_there:
            raise ValueError(f"no {end!r} after {begin!r} in the output of the demo:\n{output}")
        output = f"{head.rstrip()}\n[... {len(cut.strip().splitlines())} lines: {what} ...]{is_there}{tail}"
    return output


def operations(output: str) -> str:
    """Return the part of a replay's output that names the operation."""
    begin, end = (output.index(text) for text in OPERATIONS)
    return output[begin:end]


def learned(output: str) -> str:
    """Return the lines of a training run that report the held-out reward before and after, each below a cut."""
    rewards = [line for line in output.splitlines() if "held-out reward" in line]
    return f"[...]\n{rewards[0]}\n[...]\n{rewards[-1]}\n"


def renewed(page: str, example: str, found: str, rewards: str) -> str:
    """Return the page with these outputs in place of those that it shows."""
    blocks = {
        "example": f"$ {DEMO}\n{example}",
        "operations": f"$ {LOOK_CLOSER}\n[...]\n{found}",
        "learned": f"$ {TRAIN}\n{rewards}",
    }
    for name, text in blocks.items():
        head, begin, rest = page.partition(f"<!-- {name}: begin -->\n")
        _, end, tail = rest.partition(f"<!-- {name}: end -->")
        page = f"{head}{begin}```console\n{text}```\n{end}{tail}"
    return page


def main() -> None:
    """Run the three commands in a scratch directory, some two minutes; print or write the README."""
    with tempfile.TemporaryDirectory(prefix="rlh-demo-") as scratch:
        example = shortened(shown(DEMO, Path(scratch)))
        found = operations(shown(LOOK_CLOSER, Path(scratch) / "rlharness-demo"))
        rewards = learned(shown(TRAIN, Path(scratch)))
    page = renewed(README.read_text("utf-8"), example, found, rewards)
    if "--write" in sys.argv:
        README.write_text(page, encoding="utf-8")
    else:
        print(page)


if __name__ == "__main__":
    main()
