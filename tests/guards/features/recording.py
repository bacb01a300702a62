"""Features of `train`, `trace`, `diff` and `replay`."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.guards.features.feature import Feature, Run, Seen, edited
from tests.guards.features.loop import FILES, RESUMED, SCENARIO

_TRAIN = ("train", "loop", "--out=made")
_SECRET = "--set=api_key=hunter2hunter2"
RECORDED = Run(
    name="recorded",
    is_quick=True,
    command=("diff", "a", "b", "--json"),
    files=FILES,
    scenarios={"loop": SCENARIO},
    before=(
        ("rlharness", "train", "loop", "--out=a"),
        ("rlharness", "train", "loop", "--out=b", "--set=output.noise=0.5", "--set=output.noise_from=2"),
    ),
    package="torch",
)
"""Two recorded runs, which other commands take."""
WITH_SECRET = Run(
    name="recorded-secret",
    command=("diff", "a", "secret", "--no-redact"),
    base=RECORDED,
    before=(("rlharness", "train", "loop", "--out=secret", "--no-redact", _SECRET),),
)

TRAIN = Run(
    name="train",
    is_quick=True,
    command=(
        *("train", "loop", "--out=made", "--size=small", "--set=seed=7", _SECRET, "--metric=score=score ([\\d.]+)"),
        *("--level=deterministic", "--save-tensors=1", "--trace-ops=1", "--until=step_of_run>=2", "--json"),
        "--no-redact",
    ),
    files=FILES,
    scenarios={"loop": SCENARIO},
    package="torch",
)
TRAIN_NAN = Run(
    name="train-nan",
    command=(*_TRAIN, "--set=nan_at=2", "--break-on=nan"),
    files=FILES,
    scenarios={"loop": SCENARIO},
    package="torch",
)
_PROGRAM = ("--", "python", "program.py", "--password=hunter2hunter2")
TRACE = Run(
    name="trace",
    is_quick=True,
    command=(
        *("trace", "--out=made", "--metric=score=score ([\\d.]+)", "--level=deterministic", "--save-tensors=1"),
        *("--trace-ops=1", "--until=score>=2", "--no-redact", *_PROGRAM),
    ),
    files=FILES,
    package="torch",
)
TRACE_STATE = Run(
    name="trace-all-state",
    command=("trace", "--out=made", "--all-state", "--", "python", "large.py"),
    files={
        "large.py": """\
import torch

model = torch.nn.Linear(256, 128)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    model(torch.ones(256)).sum().backward()
    optimizer.step()
"""
    },
    before=(("rlharness", "trace", "--out=usual", "--", "python", "large.py"),),
    package="torch",
)
TRACE_NAN = Run(
    name="trace-nan",
    command=("trace", "--out=made", "--break-on=nan", "--", "python", "program.py", "--nan"),
    files=FILES,
    package="torch",
)
DIFF_STEPS = Run(
    name="diff-steps", is_quick=True, command=("diff", "a", "b", "--steps=0-1", "--color=always"), base=RECORDED
)
REPLAY = Run(
    name="replay",
    command=(
        *("replay", "loop", "--out=made", "--size=small", "--set=seed=7", _SECRET, "--step=1"),
        *("--trace-ops", "--metric=score=score ([\\d.]+)", "--level=deterministic", "--json", "--no-redact"),
        "--sweep=output.noise=0.0,0.5,0.0",
    ),
    base=RECORDED,
)
AGAINST = Run(
    name="replay-against",
    command=("replay", "loop", "--out=made", "--against=b", "--runs=2", "--color=always"),
    base=RECORDED,
)
LIMITED = Run(
    name="replay-timeout",
    command=("replay", "loop", "--out=made", "--against=a", "--timeout=20", "--set=output.sleep_s=60"),
    base=RECORDED,
)
RESUME = Run(
    name="replay-resume",
    command=(
        *("replay", "--out=made", "--resume-at=3", "--resume-command=python train.py ck --resume"),
        *("--json", "--", "python", "train.py", "ck"),
    ),
    files={"train.py": RESUMED},
    package="torch",
)
SENTINEL = Run(
    name="trace-sentinel",
    command=(
        *("trace", "--out=made", "--sentinel=1", "--", "python", "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node=2", "ranks.py"),
    ),
    files={
        "ranks.py": """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model(torch.ones(3, 4)).sum().backward()
    if step == 2 and dist.get_rank() == 1:
        with torch.no_grad():
            model.module.weight[0, 0] += 1
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
    },
    package="torch",
)
SHIFT = Run(
    name="diff-shift",
    command=("diff", "straight", "resumed", "--shift=2"),
    files={
        "resumable.py": """\
import sys
import torch

first = int(sys.argv[1])
weight = torch.nn.Parameter(torch.ones(8))
optimizer = torch.optim.SGD([weight], lr=0.1)
if first:
    weight.data.copy_(torch.load("weight.pt"))
for step in range(first, 4):
    if step == 2 and not first:
        torch.save(weight.detach().clone(), "weight.pt")
    loss = ((weight * (step + 1)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    },
    before=(
        ("rlharness", "trace", "--out=straight", "--", "python", "resumable.py", "0"),
        ("rlharness", "trace", "--out=resumed", "--", "python", "resumable.py", "2"),
    ),
    package="torch",
)
_HELD = "hunter2hunter2"


def _made(seen: Seen) -> Any:
    """What the entry has written into the directory of its run."""
    return seen.load("made/seen.json")


def _resumed_by(seen: Seen) -> Any:
    """Return the keys of the recorded call that resume a run."""
    return seen.load("made/call.json")["resume"]


def _tensor_bytes(seen: Seen, step: int, run: str = "") -> int:
    return (seen.at / f"made/{run}tensors/rank-0-step-{step}.safetensors").stat().st_size


def _log_bytes(seen: Seen, trace: str) -> int:
    return (seen.at / trace / "rank-0.log").stat().st_size


def _curve(seen: Seen) -> str:
    return seen.read("made/curve.jsonl")


def _runs(seen: Seen) -> list[Any]:
    return [seen.load(f"made/run-{number}/seen.json") for number in (1, 2, 3)]


def _row(name: str, run: Run, sees: str, holds: Any, without: Callable[[Run], Run] | None = None) -> Feature:
    return Feature(name, run, sees, holds, without)


_TABLE = """
[[tool.rlharness.scenario]]
name = "mine"
command = "python train.py ck"
resume_command = "python train.py ck --resume"
"""


FEATURES = (
    _row("command train", TRAIN, "a recorded run", lambda s: s.has("made/manifest.json")),
    _row("scenario config", TRAIN, "a run of it", lambda s: _made(s)["config"]["runtime"] == {"parts": 1}),
    *(
        _row(f"scenario resume.{name}", TRAIN, "its key in the call", lambda s, n=name, k=key: _resumed_by(s)[n] == k)
        for name, key in (("run", "output.resume"), ("step", "output.resume_step"))
    ),
    _row("train --out", TRAIN, "the run there", lambda s: s.has("made/rank-0.log")),
    _row("train --size", TRAIN, "its width", lambda s: _made(s)["config"]["width"] == 16),
    _row("train --set", TRAIN, "another seed", lambda s: _made(s)["config"]["seed"] == 7),
    _row("train --metric", TRAIN, "a value of the curve", lambda s: "score" in _curve(s)),
    _row(
        "train --level",
        TRAIN,
        "the level and its variables",
        lambda s: _made(s)["level"] == "deterministic" and _made(s)["variables"]["PYTHONHASHSEED"] == "0",
    ),
    _row(
        "train --save-tensors", TRAIN, "more of step 1 than of 0", lambda s: _tensor_bytes(s, 1) > _tensor_bytes(s, 0)
    ),
    _row("train --trace-ops", TRAIN, "operations of step 1", lambda s: s.read("made/ops/rank-0-step-1.jsonl")),
    _row("train --until", TRAIN, "the end after step 2", lambda s: len(_curve(s).splitlines()) == 3),
    _row("train --json", TRAIN, "one JSON document", lambda s: s.json["recording"]["num_steps"] == 3),
    _row("train --no-redact", TRAIN, "the secret", lambda s: _HELD in s.read("made/call.json")),
    _row("train --break-on", TRAIN_NAN, "the end in step 2", lambda s: "STOPPED" in s.err and "step 2" in s.err),
    _row("command trace", TRACE, "a recorded program", lambda s: s.has("made/manifest.json")),
    _row("trace --out", TRACE, "the trace there", lambda s: s.has("made/rank-0.log")),
    _row("trace --metric", TRACE, "a value of the curve", lambda s: "score" in _curve(s)),
    _row("trace --level", TRACE, "its variables", lambda s: re.search(r"variable :\d", s.out)),
    _row("trace --save-tensors", TRACE, "tensors of step 1", lambda s: s.has("made/tensors/rank-0-step-1.safetensors")),
    _row(
        "trace --all-state",
        TRACE_STATE,
        "more of step 1 than without it",
        lambda s: _log_bytes(s, "made") > _log_bytes(s, "usual"),
    ),
    _row("trace --trace-ops", TRACE, "operations of step 1", lambda s: s.read("made/ops/rank-0-step-1.jsonl")),
    _row(
        "trace --until",
        TRACE,
        "the end before the last step",
        lambda s: "STOPPED" in s.err and "score 3.5" not in s.out,
    ),
    _row("trace --no-redact", TRACE, "the secret", lambda s: _HELD in s.read("made/manifest.json")),
    _row("trace --break-on", TRACE_NAN, "the end in step 2", lambda s: "STOPPED" in s.err and "step 2" in s.err),
    _row("trace --sentinel", SENTINEL, "the rank that differs", lambda s: s.code == 10 and "sentinel" in s.err),
    _row("command diff", RECORDED, "the first difference", lambda s: s.code == 10 and s.json["first"]["step"] == 2),
    _row("diff --json", RECORDED, "one JSON document", lambda s: s.json["verdict"] == "diverged"),
    _row("diff --steps", DIFF_STEPS, "that these steps are equal", lambda s: s.code == 0),
    _row("diff --color", DIFF_STEPS, "escape sequences", lambda s: "\x1b[" in s.out),
    _row("diff --no-redact", WITH_SECRET, "the secret", lambda s: _HELD in s.out),
    _row("diff --shift", SHIFT, "that the resumed run is equal", lambda s: s.code == 0),
    _row("command replay", REPLAY, "a comparison", lambda s: s.code == 10 and s.json["comparisons"]),
    _row("replay --out", REPLAY, "the runs there", lambda s: s.has("made/run-1/manifest.json")),
    _row("replay --size", REPLAY, "its width", lambda s: _runs(s)[0]["config"]["width"] == 16),
    _row("replay --set", REPLAY, "another seed", lambda s: _runs(s)[0]["config"]["seed"] == 7),
    _row("replay --runs", AGAINST, "two runs", lambda s: s.has("made/run-2/manifest.json")),
    _row(
        "replay --step",
        REPLAY,
        "more of step 1 than of 0",
        lambda s: _tensor_bytes(s, 1, "run-1/") > _tensor_bytes(s, 0, "run-1/"),
    ),
    _row(
        "replay --trace-ops", REPLAY, "operations", lambda s: any(each["operations"] for each in s.json["comparisons"])
    ),
    _row("replay --metric", REPLAY, "a value of the curve", lambda s: "score" in s.read("made/run-1/curve.jsonl")),
    _row("replay --level", REPLAY, "the level", lambda s: _runs(s)[0]["level"] == "deterministic"),
    _row("replay --json", REPLAY, "one JSON document", lambda s: s.json["exit_code"] == 10),
    _row("replay --no-redact", REPLAY, "the secret", lambda s: _HELD in s.read("made/run-1/call.json")),
    _row(
        "replay --sweep",
        REPLAY,
        "a value for each run",
        lambda s: [r["config"]["output"]["noise"] for r in _runs(s)] == [0, 0.5, 0],
    ),
    _row("replay --against", AGAINST, "step 2 of the other run", lambda s: s.code == 10 and "step 2" in s.out),
    _row(
        "scenario resume_command",
        replace(
            RESUME,
            name="replay-resume-table",
            command=("replay", "mine", "--out=made", "--resume-at=3", "--json"),
            files={**RESUME.files, "pyproject.toml": _TABLE},
        ),
        "where it resumed",
        lambda s: s.json["resumed_at"] == 2,
        edited("resume_command", "about"),
    ),
    _row("replay --resume-at", RESUME, "where it resumed", lambda s: s.code == 10 and s.json["resumed_at"] == 2),
    _row("replay --resume-command", RESUME, "the momentum it lost", lambda s: s.json["losses"][0]["code"] == "lost"),
    _row("replay --color", AGAINST, "escape sequences", lambda s: "\x1b[" in s.out),
    _row("replay --timeout", LIMITED, "an incomplete recording", lambda s: s.code == 12),
)
