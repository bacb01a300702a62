"""Draw a suite from a list of real test files (their widths and durations) and write it as sleeping pytest files.

Everything is drawn from one seed: the same seed and rows give the same files, byte for byte.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from textwrap import indent
from typing import Any

from harness.runner.units import Outcome

MEDIAN_CPU_S = 11.5
"""Median of the files whose time was measured: stands in for the others'."""
SIGMA = 0.8
"""Of the logarithm of durations nobody has measured."""
HANG_LIMIT_S = 1.0


class Deed(StrEnum):
    """What a file does when it runs."""

    PASSES = "passes"
    FAILS = "fails"
    SKIPS = "skips"
    HAS_NO_TESTS = "has_no_tests"
    DIES = "dies"  # of a segmentation fault, in one of its tests
    HANGS = "hangs"  # in one of its tests, which has a limit of its own
    CANNOT_BE_IMPORTED = "cannot_be_imported"
    IS_MISMARKED = "is_mismarked"  # asks for "two" GPUs
    LEAVES_CHILD = "leaves_child"  # a process in a session of its own that holds the GPUs' locks
    WANTS_TOO_MUCH = "wants_too_much"  # twice the GPUs there are


class Marking(StrEnum):
    """How a file says what it needs."""

    NONE = "none"
    MODULE = "module"  # pytestmark
    FUNCTION = "function"  # each test its own; the last the most
    CLASS = "class"
    COMPUTED = "computed"  # a value that only an import can tell
    WRONG = "wrong"  # says 1 where a base class, two imports away, says 2: the source alone cannot tell


SHARES = {
    Deed.FAILS: 0.05,
    Deed.SKIPS: 0.05,
    Deed.HAS_NO_TESTS: 0.02,
    Deed.DIES: 0.03,
    Deed.HANGS: 0.03,
    Deed.CANNOT_BE_IMPORTED: 0.02,
    Deed.IS_MISMARKED: 0.01,
    Deed.LEAVES_CHILD: 0.03,
}
HOLDS_CARDS = {
    # Without a test nothing is marked, and what is computed cannot be known where the import fails.
    Deed.HAS_NO_TESTS: (False,),
    Deed.CANNOT_BE_IMPORTED: (False,),
    Deed.IS_MISMARKED: (False,),
    # The GPUs of these must come back.
    Deed.DIES: (True,),
    Deed.HANGS: (True,),
    Deed.LEAVES_CHILD: (True,),
}
SHARE_WRONG = 0.1  # of the files that need GPUs
IN_CLASS = (Marking.CLASS, Marking.WRONG)
SHARED = {
    "pytest.ini": "[pytest]\naddopts = --import-mode=importlib\npythonpath = .\n",
    "marks.py": "import pytest\n\ntwo = pytest.mark.gpus(2)\n",
    "wide.py": "from marks import two\n\n\n@two\nclass Two:\n    pass\n",
}
"""What stands beside the test files, but for conftest.py."""


@dataclass(frozen=True, slots=True)
class ShapedFile:
    """One file of the suite, and how a right run of it ends."""

    path: str
    gpus: int
    """GPUs its tests really need together."""
    durations_s: tuple[float, ...]
    """Sleep of each test."""
    deed: Deed = Deed.PASSES
    marking: Marking = Marking.NONE
    at: int = 0
    """The test that fails, dies or hangs."""

    @property
    def outcome(self) -> Outcome:
        return {
            Deed.FAILS: Outcome.FAILED,
            Deed.HAS_NO_TESTS: Outcome.NO_TESTS,
            Deed.DIES: Outcome.CRASHED,
            Deed.HANGS: Outcome.TIMED_OUT,
            Deed.CANNOT_BE_IMPORTED: Outcome.COLLECT_ERROR,
            Deed.IS_MISMARKED: Outcome.COLLECT_ERROR,
            Deed.WANTS_TOO_MUCH: Outcome.NOT_RUN,
        }.get(self.deed, Outcome.PASSED)

    @property
    def counts(self) -> dict[str, int]:
        """Number of tests per TestOutcome; zeros left out."""
        num_tests = len(self.durations_s)
        cut_short = {"passed": num_tests - 1, "unfinished": 1}  # the rest runs in another process
        counts = {
            Deed.FAILS: {"passed": num_tests - 1, "failed": 1},
            Deed.SKIPS: {"skipped": num_tests},
            Deed.DIES: cut_short,
            Deed.HANGS: cut_short,
            Deed.HAS_NO_TESTS: {},
            Deed.CANNOT_BE_IMPORTED: {},
            Deed.IS_MISMARKED: {},
            Deed.WANTS_TOO_MUCH: {},
        }.get(self.deed, {"passed": num_tests})
        return {outcome: count for outcome, count in counts.items() if count}

    @property
    def num_processes(self) -> int:
        """Number of processes that begin to run its tests."""
        if not self.is_collected or self.deed is Deed.HAS_NO_TESTS:
            return 0
        return 2 if self.deed in (Deed.DIES, Deed.HANGS) and self.at < len(self.durations_s) - 1 else 1

    @property
    def is_collected(self) -> bool:
        """Whether its tests get as far as being collected by a run."""
        return self.outcome not in (Outcome.COLLECT_ERROR, Outcome.NOT_RUN)


def draw_suite(
    rows: Sequence[Mapping[str, Any]], *, num_files: int, num_gpus: int, scale: float, seed: int
) -> tuple[ShapedFile, ...]:
    """`num_files` files, their widths as spread as in `rows` ({"file", "gpus", "measured_cpu_s" or None}).

    `scale` is seconds of sleep per second of the original. At least one file of every deed and every marking.
    """
    rng = random.Random(seed)
    by_width = sorted(rows, key=lambda row: (row["gpus"], row["file"]))
    files = [_draw_file(by_width[i * len(rows) // num_files], scale, rng) for i in range(num_files)]
    rng.shuffle(files)
    wide = [i for i, file in enumerate(files) if file.gpus]
    for order, i in enumerate(wide):
        forms = (Marking.MODULE, Marking.FUNCTION, Marking.CLASS, Marking.COMPUTED)
        files[i] = replace(files[i], marking=forms[order % len(forms)])
    honest = list(range(num_files))
    for i in rng.sample([i for i in wide if files[i].gpus == 2], max(1, round(SHARE_WRONG * len(wide)))):
        files[i] = replace(files[i], marking=Marking.WRONG)
        honest.remove(i)
    greedy = next(i for i in wide if files[i].marking is Marking.MODULE)
    files[greedy] = replace(files[greedy], gpus=2 * num_gpus, deed=Deed.WANTS_TOO_MUCH)
    honest.remove(greedy)
    for deed, share in SHARES.items():
        fitting = [i for i in honest if bool(files[i].gpus) in HOLDS_CARDS.get(deed, (True, False))]
        for i in rng.sample(fitting, max(1, round(share * num_files))):
            files[i] = replace(files[i], deed=deed, at=rng.randrange(len(files[i].durations_s)))
            honest.remove(i)
    return tuple(files)


def _draw_file(row: Mapping[str, Any], scale: float, rng: random.Random) -> ShapedFile:
    drawn_s = MEDIAN_CPU_S * rng.lognormvariate(0.0, SIGMA)
    total_s = scale * (row.get("measured_cpu_s") or drawn_s)
    num_tests = rng.randint(1, 4)
    return ShapedFile(row["file"], row["gpus"], durations_s=(round(total_s / num_tests, 3),) * num_tests)


def write_suite(files: Sequence[ShapedFile], directory: Path) -> None:
    """Write `files`, their conftest.py and pytest.ini into `directory`, which is made and must be empty."""
    (directory / "locks").mkdir(parents=True)
    conftest = (Path(__file__).parent / "conftest.txt").read_text("utf-8")
    texts = SHARED | {"conftest.py": conftest} | {file.path: source_of(file) for file in files}
    for name, text in texts.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def source_of(file: ShapedFile) -> str:
    """The text of one pytest file."""
    lines = ["import os", "import signal", "import time", "", "import pytest"]
    if file.deed is Deed.CANNOT_BE_IMPORTED:
        lines += ["import a_module_nobody_has"]
    if file.deed is Deed.IS_MISMARKED:
        lines += ["", "pytestmark = pytest.mark.gpus('two')"]
    lines += ["", *_module_marking(file), ""]
    tests = [] if file.deed is Deed.HAS_NO_TESTS else [_test(file, i) for i in range(len(file.durations_s))]
    if file.marking in IN_CLASS and tests:
        head = (
            f"@pytest.mark.gpus({file.gpus})\nclass TestAll:"
            if file.marking is Marking.CLASS
            else "class TestAll(Two):"
        )
        lines += [head, indent("\n\n".join(tests), "    ")]
    else:
        lines += ["\n\n".join(tests)]
    return "\n".join(lines) + "\n"


def _module_marking(file: ShapedFile) -> list[str]:
    match file.marking:
        case Marking.MODULE:
            return [f"pytestmark = pytest.mark.gpus({file.gpus})"]
        case Marking.WRONG:
            return ["from wide import Two", "", "pytestmark = pytest.mark.gpus(1)"]
        case Marking.COMPUTED:
            return [f"pytestmark = pytest.mark.gpus(int('{file.gpus}'))"]
    return []


def _test(file: ShapedFile, i: int) -> str:
    last = len(file.durations_s) - 1
    head = []
    if file.marking is Marking.FUNCTION:
        head += [f"@pytest.mark.gpus({file.gpus if i == last else 1})"]
    arguments = ["self"] if file.marking in IN_CLASS else []
    body = [f"time.sleep({file.durations_s[i]})"]
    is_the_one = i == file.at
    match file.deed:
        case Deed.FAILS if is_the_one:
            body += ["assert 1 + 1 == 3"]
        case Deed.SKIPS:
            body = ["pytest.skip('needs what nobody has')"]
        case Deed.DIES if is_the_one:
            body += ["os.kill(os.getpid(), signal.SIGSEGV)"]
        case Deed.HANGS if is_the_one:
            head += [f"@pytest.mark.timeout({HANG_LIMIT_S})"]
            body = ["time.sleep(600)"]
        case Deed.LEAVES_CHILD if is_the_one:
            arguments += ["leave_child"]
            body += ["leave_child()"]
    return "\n".join([*head, f"def test_{i}({', '.join(arguments)}):", *(f"    {line}" for line in body)])
