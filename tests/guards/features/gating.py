"""Features of `gate` and `bisect`, in small repositories."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.guards.features.feature import Feature, Run, Seen, edited
from tests.guards.features.loop import ENTRY, FILES, SCENARIO

_REVISIONS = (
    ENTRY,
    ENTRY.replace("noise = ", "# a comment\n        noise = "),
    ENTRY.replace("noise = ", "noise = 0.25 + "),
)
"""Contents of loop.py at each commit: the last one moves bits."""


def _repository(*revisions: str) -> Callable[[Path], None]:
    """Return a function that commits each of these versions of loop.py, with the files of the run."""

    def make(at: Path) -> None:
        git = ("git", "-C", str(at), "-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        at.joinpath(".gitignore").write_text(".cache\n.rlharness\n__pycache__\nmade\n*.tmp\n", "utf-8")
        subprocess.run([*git[:3], "init", "--quiet", "--initial-branch=main"], check=True)
        for number, text in enumerate(revisions):
            at.joinpath("loop.py").write_text(text, "utf-8")
            subprocess.run([*git, "add", "--all"], check=True)
            subprocess.run([*git, "commit", "--quiet", "--message", f"Revision {number}"], check=True)
            subprocess.run([*git, "tag", f"r{number}"], check=True)

    return make


GATE = Run(
    name="gate",
    command=(
        *("gate", "loop", "--base=r0", "--size=small", "--set=seed=7", "--runs=1", "--out=made", "--json"),
        *("--fail-on=configuration", "--timeout=300"),
    ),
    files=FILES,
    scenarios={"loop": SCENARIO},
    prepare=_repository(*_REVISIONS),
    package="torch",
)
COLOURED = Run(
    name="gate-coloured",
    command=("gate", "loop", "--base=r1", "--runs=1", "--color=always"),
    files=FILES,
    scenarios={"loop": SCENARIO},
    prepare=_repository(*_REVISIONS),
    package="torch",
)
GOLDEN = Run(
    name="gate-golden",
    command=("gate", "loop", "--golden=goldens", "--accept", "--reason=the first ones"),
    files=FILES,
    scenarios={"loop": SCENARIO},
    prepare=_repository(ENTRY),
    package="torch",
)
GATE_KEYS = Run(
    name="gate-keys",
    command=("gate", "--base=r1", "--json"),
    files=FILES,
    scenarios={"loop": SCENARIO, "other": SCENARIO},
    config={
        "gate.scenarios": '["loop"]',
        "gate.size": '"small"',
        "gate.runs": "1",
        "gate.fail-on": '["configuration"]',
    },
    prepare=_repository(*_REVISIONS),
    package="torch",
)
BISECT = Run(
    name="bisect",
    command=("bisect", "loop", "--good=r0", "--bad=r2", "--size=small", "--set=seed=7", "--out=made", "--json"),
    files=FILES,
    scenarios={"loop": SCENARIO},
    prepare=_repository(*_REVISIONS),
    package="torch",
)
_SLOW = {**SCENARIO, "config": {**SCENARIO["config"], "output": {"sleep_s": 60}}}
GATE_LIMIT = replace(
    GATE,
    name="gate-timeout",
    command=("gate", "loop", "--base=r1", "--runs=1", "--timeout=10"),
    scenarios={"loop": _SLOW},
)
GATE_KEY_LIMIT = replace(
    GATE,
    name="gate-timeout-key",
    command=("gate", "loop", "--base=r1"),
    scenarios={"loop": _SLOW},
    config={"gate.timeout": "10", "gate.runs": "1"},
)
GOLDEN_KEY = replace(
    GOLDEN,
    name="gate-golden-key",
    command=("gate", "loop", "--accept", "--reason=the first ones"),
    config={"gate.golden": '"goldens"'},
)
BISECT_BY = Run(
    name="bisect-by",
    command=("bisect", "loop", "--good=r0", "--bad=r2", "--by=loss>0.0001"),
    files=FILES,
    scenarios={"loop": SCENARIO},
    prepare=_repository(*_REVISIONS),
    package="torch",
)
BISECT_COLOURED = replace(
    BISECT,
    name="bisect-coloured",
    command=("bisect", "loop", "--good=r1", "--bad=r2", "--color=always"),
)
BISECT_LIMIT = replace(
    BISECT_BY,
    name="bisect-timeout",
    command=("bisect", "loop", "--good=r0", "--bad=r2", "--timeout=10"),
    scenarios={"loop": _SLOW},
)
_TRAINER = """
import sys
import torch
torch.manual_seed(int(sys.argv[1]) + open("loop.py").read().count("0.25"))
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    loss = net(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(f"shown {loss.item()}")
"""
_RECORDED = ("--level=deterministic", "--metric=seen=shown ([0-9.]+)", "--out=made", "--json")
GATE_COMMAND = replace(
    GATE,
    name="gate-command",
    command=(
        "gate",
        "--base=r1",
        "--runs=1",
        "--setup=cp loop.py made-here",
        *_RECORDED,
        "--",
        "python",
        "train.py",
        "3",
    ),
    files={"train.py": _TRAINER},
    scenarios={},
)
BISECT_COMMAND = replace(
    GATE_COMMAND,
    name="bisect-command",
    command=(
        *("bisect", "--good=r0", "--bad=r2", "--setup=true", *_RECORDED),
        *("--", "python", "train.py", "3"),
    ),
)
_TABLE = """
[[tool.rlharness.scenario]]
name = "mine"
command = "python train.py {seed}"
config = { seed = 5 }
"""
TABLE = Run(
    name="train-table",
    command=("train", "mine", "--set=seed=6", "--out=made"),
    files={"train.py": _TRAINER, "loop.py": "", "pyproject.toml": _TABLE},
    package="torch",
)
_RUNS = "made/**/seen.json"


def _change(seen: Seen) -> Any:
    return seen.json["scenarios"][0]


def _has(seen: Seen, text: str) -> bool:
    """Whether an entry of a run below made/ was given this."""
    return any(text in path.read_text("utf-8") for path in seen.at.glob("made/**/seen.json"))


def _is_ended(seen: Seen) -> bool:
    """Whether the gate fails since a run has come to its time limit."""
    return seen.code == 11 and "loop: not_comparable" in seen.out + seen.err


_BASE_MANIFEST = "made/**/base/run-1/manifest.json"
_GOOD = "made/*-again/run-1/manifest.json"


def _is_found(seen: Seen) -> bool:
    """Whether the last revision is named."""
    return seen.code == 0 and bool(seen.json["commit"]["subject"] == "Revision 2")


FEATURES = (
    Feature("command gate", GATE, "behaviour or numerics", lambda s: _change(s)["change"] in {"behaviour", "numerics"}),
    Feature("gate --base", GATE, "the base", lambda s: s.json["base"]["subject"] == "Revision 0"),
    Feature("gate --size", GATE, "its width", lambda s: _has(s, '"width": 16')),
    Feature("gate --set", GATE, "another seed", lambda s: _has(s, '"seed": 7')),
    Feature("gate --runs", GATE, "one run of each", lambda s: s.has(_RUNS) and not s.has("made/**/run-2")),
    Feature("gate --out", GATE, "the traces there", lambda s: s.has(_RUNS)),
    Feature("gate --json", GATE, "one JSON document", lambda s: s.json["scenarios"]),
    Feature("gate --fail-on", GATE, "exit code 0", lambda s: s.code == 0 and s.json["fail_on"] == ["configuration"]),
    Feature("gate --color", COLOURED, "escape sequences", lambda s: "\x1b[" in s.out),
    Feature("gate --golden", GOLDEN, "a golden", lambda s: s.code == 0 and s.has("goldens/**/*")),
    Feature("gate --accept", GOLDEN, "a golden", lambda s: s.code == 0 and s.has("goldens/**/*")),
    Feature(
        "gate --reason",
        GOLDEN,
        "its reason",
        lambda s: any("the first ones" in p.read_text("utf-8") for p in s.at.glob("goldens/**/*") if p.is_file()),
    ),
    Feature(
        "[tool.rlharness] gate.scenarios",
        GATE_KEYS,
        "one scenario",
        lambda s: [e["name"] for e in s.json["scenarios"]] == ["loop"],
    ),
    Feature(
        "[tool.rlharness] gate.size",
        GATE_KEYS,
        "its width",
        lambda s: any('"width": 16' in p.read_text("utf-8") for p in s.at.glob(".rlharness/gates/**/seen.json")),
    ),
    Feature(
        "[tool.rlharness] gate.runs",
        GATE_KEYS,
        "one run of each",
        lambda s: s.has(".rlharness/gates/**/run-1") and not s.has(".rlharness/gates/**/run-2"),
    ),
    Feature(
        "[tool.rlharness] gate.fail-on",
        GATE_KEYS,
        "exit code 0",
        lambda s: s.code == 0 and s.json["fail_on"] == ["configuration"],
    ),
    Feature(
        "command bisect", BISECT, "the commit", lambda s: s.code == 0 and s.json["commit"]["subject"] == "Revision 2"
    ),
    Feature("bisect --good", BISECT, "its end", lambda s: s.code == 0 and s.json["good"]),
    Feature("bisect --bad", BISECT, "its end", lambda s: s.code == 0 and s.json["bad"]),
    Feature("bisect --size", BISECT, "its width", lambda s: _has(s, '"width": 16')),
    Feature("bisect --set", BISECT, "another seed", lambda s: _has(s, '"seed": 7')),
    Feature("bisect --out", BISECT, "the traces there", lambda s: s.has(_RUNS)),
    Feature("bisect --json", BISECT, "one JSON document", lambda s: s.json["num_probes"] >= 0),
    Feature("gate --timeout", GATE_LIMIT, "a run that is ended", _is_ended),
    Feature("[tool.rlharness] gate.timeout", GATE_KEY_LIMIT, "a run that is ended", _is_ended),
    Feature("[tool.rlharness] gate.golden", GOLDEN_KEY, "a golden", lambda s: s.code == 0 and s.has("goldens/**/*")),
    Feature("bisect --by", BISECT_BY, "a good end that is bad already", lambda s: s.code == 11),
    Feature("bisect --color", BISECT_COLOURED, "escape sequences", lambda s: "\x1b[" in s.out + s.err),
    Feature("bisect --timeout", BISECT_LIMIT, "runs that are ended", lambda s: s.code in {11, 12}),
    Feature("gate --setup", GATE_COMMAND, "the base, prepared", lambda s: s.code == 10 and s.has("made/setup")),
    Feature("gate --level", GATE_COMMAND, "its level", lambda s: '"level": "deterministic"' in s.read(_BASE_MANIFEST)),
    Feature("gate --metric", GATE_COMMAND, "its curve", lambda s: '"seen"' in s.read("made/**/base/run-1/curve.jsonl")),
    Feature("bisect --setup", BISECT_COMMAND, "the commit, prepared", lambda s: _is_found(s) and s.has("made/setup-1")),
    Feature("bisect --level", BISECT_COMMAND, "its level", lambda s: '"level": "deterministic"' in s.read(_GOOD)),
    Feature(
        "bisect --metric", BISECT_COMMAND, "its curve", lambda s: '"seen"' in s.read("made/*-again/run-1/curve.jsonl")
    ),
    Feature(
        "scenario command", TABLE, "its word", lambda s: '"6"' in s.read("made/manifest.json"), edited(" {seed}", " 5")
    ),
    Feature(
        "[tool.rlharness] scenario", TABLE, "a run", lambda s: s.has("made/manifest.json"), edited('"mine"', '"other"')
    ),
)
