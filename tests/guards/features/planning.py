"""Features of `rlharness plan`, `merge` and `history`, and keys of [tool.rlharness] that a plan shows."""

from dataclasses import replace
from typing import Any

from tests.guards.features.feature import Feature, Run, Seen, with_env
from tests.guards.features.running import MANY, counted

_GPU = "import pytest\n@pytest.mark.gpus({})\ndef test_on_gpus(): pass\n"
_NAMES = """\
import os
from pathlib import Path
import pytest

mark = pytest.mark.gpus

def {0}(): pass
"""
_SHARED = "1, memory_gb=30, shared=True"


def scheduled(seen: Seen, name: str) -> Any:
    """Plan of the file tests/test_NAME.py in `--json`; None if it has none."""
    found = [each for each in seen.json["units"] if each["path"] == f"tests/test_{name}.py"]
    return found[0] if found else None


def _is_together(seen: Seen, *names: str) -> bool:
    """Whether these two files share a GPU at the same time."""
    first, second = (scheduled(seen, name) for name in names)
    return bool(first["gpu_ids"] and first["gpu_ids"] == second["gpu_ids"] and first["start_s"] == second["start_s"])


OPTIONS = Run(
    name="plan-options",
    is_quick=True,
    command=(
        *("plan", "tests", "--gpus=sim:2xA,2xB", "--mix-models", "--cpu-units=1", "-knot unwanted", "-mnot slow"),
        *("--deselect=tests/test_deselected.py", "--needs=needs.toml", "--collect-timeout=15"),
        *("--safe-path", "--json"),
    ),
    files={
        "beside.py": "",
        "pytest.ini": "[pytest]\nmarkers = slow: slow\n",
        "needs.toml": '"test_table.py" = 2\n',
        "tests/test_mixed.py": _GPU.format(4),
        "tests/test_table.py": "def test_table(): pass\n",
        "tests/test_second.py": "def test_second(): pass\n",
        "tests/test_unwanted.py": _NAMES.format("test_unwanted"),
        "tests/test_deselected.py": _NAMES.format("test_deselected"),
        "tests/test_marked.py": "import pytest\n@pytest.mark.slow\ndef test_marked(gpus=None): pass\n",
        "tests/test_first.py": "def test_first(): pass\n",
        "tests/test_share.py": _GPU.format(_SHARED),
        "tests/test_share2.py": _GPU.format(_SHARED),
        "tests/test_beside.py": "import beside, pytest\nmark = pytest.mark.gpus\ndef test_beside(): pass\n",
        "tests/test_late.py": "import time, pytest\nmark = pytest.mark.gpus\ntime.sleep(30)\ndef test_late(): pass\n",
    },
)
CHART = Run(
    name="plan-chart",
    is_quick=True,
    command=("plan", "tests", "--gpus=sim:4", "--split", "--shard=1/2"),
    files={"tests/test_many.py": MANY, "tests/test_other.py": "def test_other(): pass\n"},
    config={"split": "false"},
)
AFTER = Run(
    name="plan-after",
    command=("plan", "tests", "--gpus=sim:2xA,2xB", "--cpu-units=1", "--failed-first", "--no-mix-models", "--json"),
    files=counted("True", "True", "False") | {"tests/test_mixed.py": _GPU.format(4)},
    config={"mix-models": "true"},
    before=(("rlharness", "run", "tests", "--gpus=none"),),
)
LAST = Run(
    name="plan-last-failed",
    command=("plan", "tests", "--gpus=none", "--last-failed", "--json"),
    files=counted("True", "True", "False"),
    before=(("rlharness", "run", "tests", "--gpus=none"),),
)
RESUMED = Run(
    name="plan-resumed",
    command=("plan", "tests", "--gpus=none", "--resume=latest", "--json"),
    files=LAST.files,
    before=LAST.before,
)
WORKERS = Run(
    name="plan-workers",
    is_quick=True,
    command=("plan", "tests", "--gpus=sim:1", "--workers-per-gpu=2", "--json"),
    files={"tests/test_a.py": "def test_a(): pass\n", "tests/test_b.py": "def test_b(): pass\n"},
)
WHOLE = Run(
    name="plan-no-split",
    command=("plan", "tests", "--gpus=sim:4", "--no-split", "--json"),
    files={"tests/test_many.py": MANY},
)
MERGED = Run(
    name="merge",
    is_quick=True,
    command=("merge", ".rlharness/runs/latest", "second.jsonl", "--junit=all.xml", "--json"),
    files={
        "one/test_a.py": "def test_a(): pass\n",
        "two/test_b.py": "def test_b(): assert False\n",
        "two/test_c.py": "import pytest\nraise ValueError('unreadable')\n",
    },
    before=(
        ("rlharness", "run", "two", "--gpus=none", "--events=second.jsonl"),
        ("rlharness", "run", "one", "--gpus=none"),
    ),
)
COLOURED = Run(
    name="merge-coloured",
    command=("merge", ".rlharness/runs/latest", "--color=always"),
    files={"test_a.py": "def test_a(): pass\n"},
    before=(("rlharness", "run", "--gpus=none"),),
)
FORCED = replace(COLOURED, name="merge-forced", command=COLOURED.command[:-1], env={"FORCE_COLOR": "1"})
PLAIN = replace(COLOURED, name="merge-plain", command=COLOURED.command[:-1], env={"NO_COLOR": "1"}, has_terminal=True)
HISTORY = Run(
    name="history",
    command=("history", "--json"),
    files={"test_a.py": "def test_a(): pass\n", "test_b.py": "def test_b(): pass\n"},
    before=(("rlharness", "run", "--gpus=none"), ("rlharness", "run", "--gpus=none")),
)


def _plan(name: str, sees: str, holds: Any, run: Run = OPTIONS) -> Feature:
    return Feature(f"plan {name}", run, sees, holds)


def _why_never(seen: Seen, name: str) -> str:
    return "".join(each["reason"] for each in seen.json["never"] if each["path"] == f"tests/test_{name}.py")


def _order(seen: Seen) -> list[str]:
    return [path.removeprefix("tests/test_").removesuffix(".py") for path in seen.json["order"]]


def _trend(seen: Seen, name: str) -> Any:
    (found,) = [each for each in seen.json["trends"] if each.get("name", each.get("path")) == name]
    return found


FEATURES = (
    Feature("command plan", OPTIONS, "the makespan", lambda s: s.json["makespan_s"] > 0),
    _plan("--gpus", "four simulated GPUs", lambda s: scheduled(s, "mixed")["gpu_ids"][3] == "SIM-3"),
    _plan("--mix-models", "a file on both models", lambda s: len(scheduled(s, "mixed")["gpu_ids"]) == 4),
    _plan(
        "--cpu-units",
        "two files in turn",
        lambda s: scheduled(s, "first")["start_s"] != scheduled(s, "second")["start_s"],
    ),
    _plan("-k", "a file without a test", lambda s: "tests/test_unwanted.py" in s.json["deselected"]),
    _plan("-m", "a file without a test", lambda s: "tests/test_marked.py" in s.json["deselected"]),
    _plan("--deselect", "a file without a test", lambda s: "tests/test_deselected.py" in s.json["deselected"]),
    _plan("--needs", "two GPUs for a file of the table", lambda s: len(scheduled(s, "table")["gpu_ids"]) == 2),
    _plan("--collect-timeout", "an import that is ended", lambda s: "time limit" in _why_never(s, "late")),
    _plan("--safe-path", "no import from the directory", lambda s: "No module" in _why_never(s, "beside")),
    _plan("--json", "one JSON document", lambda s: s.json["units"]),
    _plan("--no-split", "a file as one unit", lambda s: scheduled(s, "many"), WHOLE),
    _plan("--split", "parts of a file", lambda s: "test_many.py is split" in s.out + s.err, CHART),
    _plan("--shard", "the partition", lambda s: "partition" in s.out + s.err, CHART),
    _plan("--failed-first", "the failed file first", lambda s: _order(s).index("z") < _order(s).index("a"), AFTER),
    _plan("--no-mix-models", "a file that cannot run", lambda s: _why_never(s, "mixed"), AFTER),
    _plan("--last-failed", "the failed file alone", lambda s: _order(s) == ["z"], LAST),
    _plan("--resume", "the passed files left out", lambda s: _order(s) == ["z"], RESUMED),
    Feature(
        "command merge", MERGED, "the files of both runs", lambda s: sorted(s.json["outcomes"].values()) == [1, 1, 1]
    ),
    Feature(
        "merge --junit", MERGED, "all tests", lambda s: "test_a" in s.read("all.xml") and "test_b" in s.read("all.xml")
    ),
    Feature("merge --json", MERGED, "one JSON document", lambda s: len(s.json["runs"]) == 2),
    Feature("merge --color", COLOURED, "escape sequences", lambda s: "\x1b[" in s.out),
    Feature(
        "command history", HISTORY, "two results of each file", lambda s: len(_trend(s, "test_a.py")["results"]) == 2
    ),
    Feature("history --json", HISTORY, "one JSON document", lambda s: s.json["trends"]),
    Feature("variable FORCE_COLOR", FORCED, "escape sequences", lambda s: "\x1b[" in s.out),
    Feature("variable NO_COLOR", PLAIN, "none on a terminal", lambda s: "passed" in s.out and "\x1b[3" not in s.out),
    Feature(
        "variable XDG_CACHE_HOME",
        HISTORY,
        "the history there",
        lambda s: s.has(".cache/rlharness/history/*"),
        with_env(XDG_CACHE_HOME="{at}/elsewhere"),
    ),
    _plan("--workers-per-gpu", "two files on the GPU at a time", lambda s: _is_together(s, "a", "b"), WORKERS),
)
