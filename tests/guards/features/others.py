"""Features of `doctor`, `demo`, `scenarios`, `schema`, and of the program itself."""

import json
from typing import Any

from tests.guards.features.feature import Feature, Run, Seen
from tests.guards.features.loop import FILES, SCENARIO
from tests.guards.features.machine import _STUB, _pretend
from tests.support.nvml_stub.build import StubGpu

DOCTOR = Run(
    name="doctor",
    command=("doctor", "--json", "--numerics"),
    env=_STUB,
    prepare=_pretend(StubGpu()),
    package="cc",
)
RANKS = Run(name="doctor-ranks", command=("doctor", "--json", "--distributed=2"), package="torch")
NCCL = Run(name="doctor-nccl", command=("doctor", "--distributed=2", "--backend=nccl"), package="torch")
FIX = Run(name="doctor-fix", command=("doctor", "--fix"), env={"RAY_ADDRESS": "127.0.0.1:1"})
DOCTOR_TEXT = Run(
    name="doctor-text",
    is_quick=True,
    command=("doctor", "--color=always", "--no-redact"),
    env={"RAY_ADDRESS": "http://ada:hunter2hunter2@127.0.0.1:1"},
)
DEMO = Run(name="demo", command=("demo", "--out=shown"), is_quick=False, package="torch")
LISTED = Run(
    name="scenarios",
    is_quick=True,
    command=("scenarios", "--json"),
    files=FILES,
    scenarios={"loop": {**SCENARIO, "determinism": "deterministic"}},
)
CHECKED = Run(
    name="scenarios-check",
    is_quick=True,
    command=("scenarios", "--check"),
    scenarios={"loop": SCENARIO, "wrong": {"about": "wrong"}},
)
SCHEMA = Run(name="schema", is_quick=True, command=("schema", "scenario"))
VERSION = Run(name="version", is_quick=True, command=("--version",))
HELP = Run(name="help", is_quick=True, command=("--help",))
_SECRET = "hunter2hunter2"
_WORD = f"password={_SECRET}"
_REFUSED = {
    "plan": ("plan", _WORD, "--gpus=none"),
    "merge": ("merge", _WORD),
    "schema": ("schema", _WORD),
    "bisect": ("bisect", _WORD, "--good=a", "--bad=b"),
    "gate": ("gate", f"--fail-on={_WORD}"),
    "history": ("history", _WORD, _WORD),
    "scenarios": ("scenarios", _WORD),
    "demo": ("demo", _WORD),
}
"""Commands whose error names a word that looks like a secret."""


def _refused(command: str) -> Feature:
    run = Run(name=f"{command}-secret", is_quick=True, command=(*_REFUSED[command], "--no-redact"))
    return Feature(f"{command} --no-redact", run, "the secret in an error", lambda s: _SECRET in s.err)


def _finding(seen: Seen, check: str) -> Any:
    return next(each for each in seen.json["findings"] if check in each["check"])


def _listed(seen: Seen, name: str = "loop") -> Any:
    return next(each for each in seen.json["scenarios"] if each["name"] == name)


FEATURES = (
    Feature("command doctor", DOCTOR, "the GPU", lambda s: "NVIDIA Stub" in _finding(s, "GPU")["measured"]),
    Feature("doctor --json", DOCTOR, "one JSON document", lambda s: s.json["findings"]),
    Feature("doctor --numerics", DOCTOR, "the check of operations", lambda s: _finding(s, "numerics")),
    Feature("doctor --distributed", RANKS, "the check of ranks", lambda s: "2 ranks" in json.dumps(s.json)),
    Feature("doctor --backend", NCCL, "why it cannot", lambda s: "nccl" in s.out + s.err),
    Feature("doctor --fix", FIX, "a command for the shell", lambda s: "unset RAY_ADDRESS" in s.out),
    Feature("doctor --color", DOCTOR_TEXT, "escape sequences", lambda s: "\x1b[" in s.out),
    Feature("doctor --no-redact", DOCTOR_TEXT, "the secret", lambda s: _SECRET in s.out),
    Feature("command demo", DEMO, "the planted difference", lambda s: s.code == 0 and "ok  train.py" in s.out),
    Feature("demo --out", DEMO, "the project there", lambda s: s.has("shown/train.py")),
    Feature("command scenarios", LISTED, "the scenario of the project", lambda s: "loop" in str(s.json["scenarios"])),
    Feature("scenarios --json", LISTED, "one JSON document", lambda s: s.json["scenarios"]),
    Feature("scenarios --check", CHECKED, "exit code 4", lambda s: s.code == 4 and "wrong" in s.out + s.err),
    Feature("scenario about", LISTED, "the line", lambda s: _listed(s)["about"] == "A vector that learns"),
    Feature("scenario entry", LISTED, "the entry", lambda s: _listed(s)["entry"] == "loop:run"),
    Feature("scenario determinism", LISTED, "the level", lambda s: _listed(s)["determinism"] == "deterministic"),
    Feature("scenario sizes", LISTED, "the sizes", lambda s: "small" in _listed(s)["sizes"]),
    Feature("scenario runtime_sections", LISTED, "the sections", lambda s: "output" in _listed(s)["runtime_sections"]),
    Feature("command schema", SCHEMA, "a schema", lambda s: "runtime_sections" in s.json["properties"]),
    Feature("rlharness --version", VERSION, "a version", lambda s: s.code == 0 and s.out.strip()[-1].isdigit()),
    Feature("rlharness --help", HELP, "the commands", lambda s: s.code == 0 and "Commands:" in s.out),
    *map(_refused, _REFUSED),
)
