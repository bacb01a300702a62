"""Features of `reproduce`, `report`, `chaos`, `gate` and `bisect`."""

from pathlib import Path
from typing import Any

from tests.guards.features.feature import Feature, Run, Seen
from tests.guards.features.loop import FILES, SCENARIO
from tests.guards.features.recording import RECORDED, WITH_SECRET

STEP = Run(
    name="reproduce-step",
    command=("reproduce", "a", "--step=2", "--trace-ops", "--out=made", "--set=output.noise=0.0", "--json"),
    base=RECORDED,
)
COLOURED = Run(
    name="reproduce-colour",
    command=("reproduce", "a", "--step=2", "--color=always", "--timeout=300"),
    base=RECORDED,
)
DEBUGGER = Run(
    name="reproduce-interactive",
    command=("reproduce", "a", "--step=2", "--interactive", "--commands=debug.txt", "--against=b"),
    files={"debug.txt": "next\nlist\nquit\n"},
    base=RECORDED,
)
LIMITED = Run(
    name="reproduce-timeout",
    command=("reproduce", "a", "--out=made", "--timeout=20", "--set=output.sleep_s=60"),
    base=RECORDED,
)


def _unnamed(at: Path) -> None:
    """Take away the scenario that names the entry of the run."""
    at.joinpath("scenarios", "loop.yaml").unlink()


TRUST = Run(
    name="reproduce-trust", command=("reproduce", "a", "--out=made", "--trust"), base=RECORDED, prepare=_unnamed
)
SECRET = Run(
    name="reproduce-secret",
    command=("reproduce", "secret", "--out=made", "--no-redact"),
    base=WITH_SECRET,
)
REPORT = Run(
    name="report",
    is_quick=True,
    command=("report", "a", "b", "--out=page.html", "--json"),
    base=RECORDED,
    package="jinja2",
)
REPORT_SECRET = Run(
    name="report-secret",
    command=("report", "a", "secret", "--no-redact"),
    base=WITH_SECRET,
    package="jinja2",
)

_SECRET_SET = "--set=api_key=hunter2hunter2"
_CHAOS = {
    **SCENARIO,
    "chaos": {
        "factors": {"runtime.parts": [4], "output.label": [0, 1]},
        "sizes": {"small": {"runtime.parts": [8]}},
        "latency": ["loop:waits"],
        "crash": {"output.checkpoint_every": 1},
    },
}
CHAOS = Run(
    name="chaos",
    command=(
        *(
            "chaos",
            "loop",
            "--size=small",
            "--set=seed=7",
            "--count=3",
            "--seed=5",
            "--factors=runtime.parts,hash_seed",
        ),
        *("--repeats=1", "--steps=2", "--out=made", "--level=deterministic", "--timeout=200", "--json"),
        "--metric=score=score ([\\d.]+)",
    ),
    files=FILES,
    scenarios={"loop": _CHAOS},
    package="torch",
)
ONLY = Run(
    name="chaos-only",
    command=("chaos", "loop", "--only=runtime.parts=4", "--repeats=1", "--color=always", "--max-seconds=900"),
    files=FILES,
    scenarios={"loop": _CHAOS},
    package="torch",
)
_ACCUMULATING = """
import sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(2):
    for part in torch.arange(24.0).view(8, 3).chunk(int(sys.argv[1])):
        (net(part).square().sum() / 8).backward()
    optimizer.step()
"""
VARY = Run(
    name="chaos-vary",
    command=("chaos", "--vary=G=1,4", "--bits", "--json", "--", "python", "train.py", "{G}"),
    files={"train.py": _ACCUMULATING},
    package="torch",
)
FACTORS = Run(
    name="chaos-factors",
    command=("chaos", "loop", "--max-seconds=0.001", "--json", "--no-redact", _SECRET_SET, "--timeout=300"),
    files=FILES,
    scenarios={"loop": _CHAOS},
    package="torch",
)
CHAOS_LIMIT = Run(
    name="chaos-timeout",
    command=("chaos", "loop", "--timeout=10", "--set=output.sleep_s=60", "--max-seconds=30"),
    files=FILES,
    scenarios={"loop": _CHAOS},
    package="torch",
)
NEEDY = Run(
    name="scenario-gpus",
    command=("train", "loop", "--out=made"),
    files=FILES,
    scenarios={"loop": {**SCENARIO, "gpus": 64}},
    package="torch",
)
_HELD = "hunter2hunter2"


def _in(seen: Seen, name: str) -> Any:
    """What the entry has written in the one run below made/ that has this path."""
    found = sorted(seen.at.glob(f"made/**/{name}"))
    return found[0].read_text("utf-8")


def _kind(s: Seen) -> Any:
    return s.json["verdicts"][0]["kind"]


def _has(seen: Seen, text: str) -> bool:
    """Whether an entry of a run below made/ was given this."""
    return any(text in path.read_text("utf-8") for path in seen.at.glob("made/**/seen.json"))


_RUNS = "made/**/seen.json"

FEATURES = (
    Feature("command reproduce", STEP, "a reproduced step", lambda s: s.code == 0 and s.json["is_reproduced"]),
    Feature("reproduce --step", STEP, "step 2 from its checkpoint", lambda s: s.json["step"] == 2),
    Feature("reproduce --trace-ops", STEP, "its operations", lambda s: s.json["operations"][0]["num_by_phase"]),
    Feature("reproduce --out", STEP, "its runs there", lambda s: s.has(_RUNS)),
    Feature("reproduce --set", STEP, "another setting", lambda s: _has(s, '"noise": 0.0')),
    Feature("reproduce --json", STEP, "one JSON document", lambda s: s.json["step"] == 2),
    Feature("reproduce --against", DEBUGGER, "the other run's name", lambda s: "compared with b" in s.out),
    Feature("reproduce --color", COLOURED, "escape sequences", lambda s: "\x1b[" in s.out),
    Feature("reproduce --interactive", DEBUGGER, "its phases", lambda s: "before backward" in s.out),
    Feature("reproduce --commands", DEBUGGER, "the answers", lambda s: "before backward" in s.out),
    Feature("reproduce --timeout", LIMITED, "an incomplete recording", lambda s: s.code == 12),
    Feature("reproduce --trust", TRUST, "the run again", lambda s: s.code == 0 and s.has(_RUNS)),
    Feature(
        "reproduce --no-redact",
        SECRET,
        "the secret",
        lambda s: any(_HELD in path.read_text("utf-8") for path in s.at.glob("made/**/call.json")),
    ),
    Feature("command report", REPORT, "a page", lambda s: "<html" in s.read("page.html")),
    Feature("report --out", REPORT, "the page there", lambda s: s.has("page.html")),
    Feature("report --json", REPORT, "the verdict", lambda s: s.json["comparisons"][0]["verdict"] == "diverged"),
    Feature("report --no-redact", REPORT_SECRET, "the secret", lambda s: _HELD in s.read("report.html")),
    Feature(
        "command chaos",
        CHAOS,
        "the cause",
        lambda s: s.code == 10 and "runtime.parts=" in s.json["finding"]["sentence"],
    ),
    Feature("chaos --size", CHAOS, "its width", lambda s: _has(s, '"width": 16')),
    Feature("chaos --set", CHAOS, "another seed", lambda s: _has(s, '"seed": 7')),
    Feature("chaos --count", CHAOS, "so many", lambda s: s.json["num_probes_wanted"] == 3),
    Feature("chaos --seed", CHAOS, "the seed", lambda s: s.json["seed"] == 5),
    Feature(
        "chaos --factors", CHAOS, "these alone", lambda s: set(s.json["factors"]) == {"runtime.parts", "hash_seed"}
    ),
    Feature("chaos --repeats", CHAOS, "one run of the cause", lambda s: s.json["finding"]["num_runs"] < 3),
    Feature("chaos --steps", CHAOS, "two steps", lambda s: len(s.lines("made/run-1/curve.jsonl")) == 2),
    Feature("chaos --out", CHAOS, "the traces there", lambda s: s.has("made/run-1/manifest.json")),
    Feature("chaos --level", CHAOS, "the level", lambda s: _has(s, '"level": "deterministic"')),
    Feature("chaos --json", CHAOS, "one JSON document", lambda s: s.json["exit_code"] == 10),
    Feature("chaos --metric", CHAOS, "a value of the curve", lambda s: "score" in _in(s, "curve.jsonl")),
    Feature("chaos --only", ONLY, "that perturbation", lambda s: s.code == 10 and "runtime.parts=4" in s.out),
    Feature("chaos --vary", VARY, "that value", lambda s: s.json["verdicts"][0]["values"] == {"G": "4"}),
    Feature("chaos --bits", VARY, "rounding that fails", lambda s: (s.code, _kind(s)) == (10, "rounding")),
    Feature("chaos --color", ONLY, "escape sequences", lambda s: "\x1b[" in s.out),
    Feature("chaos --timeout", CHAOS_LIMIT, "a run that is ended", lambda s: s.code == 12),
    Feature("chaos --max-seconds", FACTORS, "no perturbation", lambda s: s.json["is_out_of_time"]),
    Feature("chaos --no-redact", FACTORS, "the secret", lambda s: _HELD in " ".join(s.json["command"])),
    Feature("scenario chaos.latency", FACTORS, "that factor", lambda s: "latency" in s.json["factors"]),
    Feature("scenario chaos.crash", FACTORS, "that factor", lambda s: "crash" in s.json["factors"]),
    Feature("scenario resume", FACTORS, "crashes, which need it", lambda s: "crash" in s.json["factors"]),
    Feature("scenario chaos", FACTORS, "its factors", lambda s: "runtime.parts" in s.json["factors"]),
    Feature("scenario chaos.factors", FACTORS, "that factor", lambda s: "runtime.parts" in s.json["factors"]),
    Feature("scenario chaos.sizes", CHAOS, "the values of the size", lambda s: _has(s, '"parts": 8')),
    Feature("scenario gpus", NEEDY, "a refusal", lambda s: s.code == 4 and "64 GPUs" in s.err),
)
