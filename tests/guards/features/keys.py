"""Keys of [tool.rlharness], seen in runs and plans of small suites on simulated GPUs."""

from dataclasses import replace
from typing import Any

from tests.guards.features.feature import Feature, Run, Seen
from tests.guards.features.planning import _GPU, scheduled
from tests.guards.features.running import LEANING, MANY, STUBBORN, SUITE, counted, unit

SUITE_KEYS = Run(
    name="keys-suite",
    is_quick=True,
    command=("run", "tests", "--gpus=sim:2xA,2xB", "--json"),
    files={
        **SUITE,
    },
    config={
        "timeout": "12",
        "grace": "0",
        "slow": "2",
        "collect-timeout": "15",
        "cpu-units": "3",
        "isolate": '"test"',
        "mix-models": "true",
        "results-dir": '"kept"',
        "history-free": "true",
        "needs": '{ "test_table.py" = 2, "test_fails.py" = 0 }',
    },
)
FAILING = Run(
    name="keys-failing",
    command=("run", "tests", "--gpus=none", "--json"),
    files=counted("True", "False", "False"),
    config={"retries": "1", "maxfail": "1", "cpu-units": "1"},
)
LEANS = Run(
    name="keys-leaning",
    command=("run", "tests", "--gpus=sim:1", "--json"),
    files={**LEANING, "tests/test_wide.py": _GPU.format(8)},
    config={"leaning": '"report"', "check-leaning": "true", "allow-missing-gpus": "true"},
)
PLAN = Run(
    name="keys-plan",
    is_quick=True,
    command=("plan", "tests", "--gpus=sim:2xA,2xB", "--json"),
    files={
        "tests/test_small.py": "def test_small(): pass\n",
        "tests/test_model.py": "def test_model(): pass\n",
        "tests/test_big.py": "def test_big(): pass\n",
        "tests/test_new.py": "def test_new(): pass\n",
        "tests/test_alone.py": "def test_alone(): pass\n",
        "tests/test_shared.py": "def test_shared(): pass\n",
        "tests/test_three.py": "def test_three(): pass\n",
    },
    config={
        "needs": (
            '{ "test_model.py" = { gpus = 1, model = "Z" }, "test_big.py" = { gpus = 1, memory-gb = 900 },'
            ' "test_new.py" = { gpus = 1, min-capability = 99.0 }, "test_alone.py" = { gpus = 1, exclusive = true },'
            ' "test_shared.py" = { gpus = 1, memory-gb = 30, shared = true }, "test_three.py" = { gpus = 2 },'
            ' "test_small.py" = { gpus = 1, memory-gb = 20, shared = true } }'
        ),
    },
)
WHOLE = Run(
    name="keys-split",
    command=("plan", "tests", "--gpus=sim:4", "--json"),
    files={"tests/test_many.py": MANY},
    config={"split": "false"},
)
LIMIT = Run(
    name="keys-needs-timeout",
    command=("run", "tests", "--gpus=none", "--json"),
    files={"tests/test_slow.py": "import time\ndef test_slow(): time.sleep(40)\n"},
    config={"needs": '{ "test_slow.py" = { timeout = 8 } }', "grace": "2"},
)

GRACE = replace(
    STUBBORN, name="keys-grace", command=("run", "tests", "--gpus=none", "--json", "--timeout=2"), config={"grace": "1"}
)


def _key(name: str, sees: str, holds: Any, run: Run = SUITE_KEYS) -> Feature:
    return Feature(f"[tool.rlharness] {name}", run, sees, holds)


def _need(name: str, text: str, sees: str, holds: Any, run: Run = PLAN) -> Feature:
    from tests.guards.features.feature import edited

    return Feature(f"[tool.rlharness] needs.{name}", run, sees, holds, edited(text, ""))


def _never(seen: Seen) -> set[str]:
    return {each["path"] for each in seen.json["never"]}


FEATURES = (
    _key("timeout", "an end after 12 s", lambda s: unit(s, "hangs")["outcome"] == "timed_out"),
    _key("grace", "a kill 1 s after the limit", lambda s: unit(s, "stubborn")["duration_s"] < 8, GRACE),
    _key("slow", "a line for the slow file", lambda s: any("slow " in x and "hangs" in x for x in s.err.splitlines())),
    _key("collect-timeout", "an import that is ended", lambda s: unit(s, "late")["outcome"] == "collect_timeout"),
    _key("cpu-units", "3 slots", lambda s: s.load("state.json")["env"]["PYTEST_XDIST_WORKER_COUNT"] == "7"),
    _key("isolate", "two tests in two processes", lambda s: str(s.load("state.json")["pid"]) != s.read("second.txt")),
    _key("mix-models", "a file on all four GPUs", lambda s: len(unit(s, "mixed")["gpu_ids"]) == 4),
    _key("results-dir", "results there", lambda s: s.has("kept/.rlharness/runs/latest/events.jsonl")),
    _key("history-free", "no history", lambda s: s.has("state.json") and not s.has(".cache/rlharness/history/*")),
    _key("needs", "two GPUs for a file of the table", lambda s: len(unit(s, "table")["gpu_ids"]) == 2),
    _key(
        "retries",
        "a second attempt",
        lambda s: "xx" in {s.read(f"{n}.count") for n in "bz" if s.has(f"{n}.count")},
        FAILING,
    ),
    _key("maxfail", "files that did not start", lambda s: len(list(s.at.glob("*.count"))) < 3, FAILING),
    _key("leaning", "exit code 0", lambda s: s.code == 0 and unit(s, "b")["outcome"] == "leaning", LEANS),
    _key("check-leaning", "a file that leans", lambda s: unit(s, "b")["outcome"] == "leaning", LEANS),
    _key("allow-missing-gpus", "exit code 0", lambda s: s.code == 0 and unit(s, "wide")["outcome"] == "not_run", LEANS),
    _key("split", "a file as one unit", lambda s: scheduled(s, "many"), WHOLE),
    _need("gpus", "gpus = 2", "two GPUs", lambda s: len(scheduled(s, "three")["gpu_ids"]) == 2),
    _need("memory-gb", ", memory-gb = 900", "a file that cannot run", lambda s: "tests/test_big.py" in _never(s)),
    _need("model", ', model = "Z"', "a file that cannot run", lambda s: "tests/test_model.py" in _never(s)),
    _need(
        "min-capability",
        ", min-capability = 99.0",
        "a file that cannot run",
        lambda s: "tests/test_new.py" in _never(s),
    ),
    _need("exclusive", ", exclusive = true", "a file with the machine", lambda s: scheduled(s, "alone")["exclusive"]),
    _need(
        "shared",
        ", shared = true",
        "two files on a GPU at a time",
        lambda s: any(
            each["path"] != "tests/test_shared.py"
            and each["gpu_ids"] == scheduled(s, "shared")["gpu_ids"]
            and each["start_s"] == scheduled(s, "shared")["start_s"]
            for each in s.json["units"]
        ),
    ),
    _need("timeout", "timeout = 8", "an end after 8 s", lambda s: unit(s, "slow")["outcome"] == "timed_out", LIMIT),
)
