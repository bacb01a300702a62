"""Records the traces of the guard `corpus` with the base, and freezes what the base's `diff` reports of each pair.

    python -m tests.guards.record_corpus            all
    python -m tests.guards.record_corpus own spawn  those whose names begin so, and the pairs of all

The result is in tests/data/traces: recorded/NAME and pairs.json. Only the base writes them: a row that is recorded
anew gets other bits on another machine. Of a trace the files are kept that FORMAT.md describes; paths of this machine
are not in them.
"""

import json
import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.guards import base, corpus
from tests.guards.guard import run

PYTHON = ("python",)


@dataclass(frozen=True, slots=True)
class Recording:
    """One trace: a program, and what differs in its environment."""

    program: str
    cause: str = ""
    options: tuple[str, ...] = ()
    """Of `rlharness trace`."""
    launcher: tuple[str, ...] = PYTHON
    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0


KEPT, OPS, METRIC = ("--save-tensors", "2"), ("--trace-ops", "2"), ("--metric", r"score=score=([0-9.]+)")
CHECKPOINT = {"SAVE": "checkpoint.pt"}, {"RESUME": "checkpoint.pt"}
RANKS = ("torchrun", "--standalone", "--nproc-per-node", "2")
NUM_RANKS = "PET_NPROC_PER_NODE"
"""A variable that torchrun reads: the command lines of several world sizes are equal."""
RECORDINGS = {
    "loop": Recording("loop", variables=CHECKPOINT[0]),
    "loop-again": Recording("loop"),
    "loop-threads": Recording("loop", variables={"OMP_NUM_THREADS": "2"}),
    **{
        f"loop-{cause}": Recording("loop", cause)
        for cause in ("batch", "weight", "random", "loss", "gradient", "nan", "rate", "shorter", "numerics")
    },
    "loop-argument": Recording("loop", arguments=("--seed", "7")),
    "loop-deterministic": Recording("loop", options=("--level", "deterministic")),
    "loop-killed": Recording("loop", "killed", exit_code=137),
    "loop-error": Recording("loop", "error", exit_code=1),
    "loop-metric": Recording("loop", options=METRIC),
    "loop-metric-score": Recording("loop", "score", METRIC),
    "loop-kept": Recording("loop", options=KEPT),
    "loop-kept-gradient": Recording("loop", "gradient", KEPT),
    "loop-operations": Recording("loop", options=OPS),
    "loop-operations-loss": Recording("loop", "loss", OPS),
    "own": Recording("own_recorder"),
    **{
        f"own-{cause}": Recording("own_recorder", cause)
        for cause in ("token", "reward", "reference", "advantage", "dtype", "shape", "absent", "more", "version")
    },
    **{f"own-{cause}": Recording("own_recorder", cause) for cause in ("zero", "minus-zero", "nan", "other-nan")},
    "ranks": Recording("two_ranks", launcher=RANKS),
    "ranks-noise": Recording("two_ranks", "noise", launcher=RANKS),
    "ranks-ends": Recording("two_ranks", "ends", launcher=RANKS, exit_code=1),
    "ranks-sentinel": Recording("two_ranks", "flip", ("--sentinel", "1"), RANKS, exit_code=10),
    **{f"shards-{num}": Recording("shards", launcher=RANKS[:2], variables={NUM_RANKS: f"{num}"}) for num in (1, 2, 3)},
    "shards-3-changed": Recording("shards", "shard", launcher=RANKS[:2], variables={NUM_RANKS: "3"}),
    "spawned": Recording("spawned"),
    "spawned-order": Recording("spawned", "order"),
    "spawned-gradient": Recording("spawned", "gradient"),
    "threads": Recording("threads"),
    "threads-rate": Recording("threads", "rate"),
    "sums": Recording("sums.yaml"),
    "sums-parts": Recording("sums.yaml", options=("--set", "runtime.num_parts=16")),
    "sums-seed": Recording("sums.yaml", options=("--set", "seed=2")),
}
RESUMED = {
    "loop-resumed": Recording("loop", variables=CHECKPOINT[1]),
    "loop-resumed-noise": Recording("loop", "noise", variables=CHECKPOINT[1]),
    "loop-resumed-momentum": Recording("loop", "momentum", variables=CHECKPOINT[1]),
}
"""Recorded after the others: they read a checkpoint of `loop`."""


def record(name: str, recording: Recording, work: Path) -> None:
    """Record one trace with the base; RuntimeError if its program ends otherwise than it should."""
    env = base.environment(base.worktree()) | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}"} | recording.variables
    env["CAUSE"] = recording.cause
    command = [sys.executable, "-m", "harness"]
    if recording.program.endswith(".yaml"):
        env["PYTHONPATH"] += f":{work}"
        command += ["train", recording.program, "--out", name, *recording.options]
    else:
        command += ["trace", "--out", name, *recording.options, "--", *recording.launcher]
        command += [f"{recording.program}.py", *recording.arguments]
    done = run(command, cwd=work, env=env, limit_s=1500)
    if done.returncode != recording.exit_code:
        raise RuntimeError(f"{name}: exit code {done.returncode}, {done.stderr[-1500:]}")
    target = corpus.RECORDED / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(work / name, target, ignore=lambda _, names: [each for each in names if not is_format(each)])
    print(name, sum(path.stat().st_size for path in target.rglob("*") if path.is_file()), flush=True)


def is_format(name: str) -> bool:
    """Whether FORMAT.md describes a file or directory of this name."""
    kept = ("manifest.json", "curve.jsonl", "tensors", "ops", "unfinished", "call.json")
    return name in kept or name.startswith("rank-")


def damage() -> None:
    """Make damaged traces of whole ones."""
    recorded = corpus.RECORDED

    def copied(name: str, source: str) -> Path:
        shutil.rmtree(recorded / name, ignore_errors=True)
        return Path(shutil.copytree(recorded / source, recorded / name))

    log = copied("damaged-torn", "loop") / "rank-0.log"
    os.truncate(log, log.stat().st_size - 40)
    log = copied("damaged-byte", "loop-gradient") / "rank-0.log"
    data = bytearray(log.read_bytes())
    data[len(data) * 7 // 8] ^= 1
    log.write_bytes(data)
    (copied("damaged-no-manifest", "loop") / "manifest.json").unlink()
    (copied("damaged-no-rank", "ranks") / "rank-1.log").unlink()
    tensors = next((copied("damaged-tensors", "loop-kept-gradient") / "tensors").iterdir())
    whole = tensors.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    tensors.write_bytes(whole[:begin] + bytes(each ^ 1 for each in whole[begin:]))


def freeze(work: Path) -> None:
    """Write what the base's `diff` reports of each pair into pairs.json."""
    pairs = json.loads(corpus.PAIRS.read_text("utf-8"))
    checkout = base.worktree()
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda pair: corpus.compare(pair, checkout, work), pairs.values())
    frozen = {name: {**pairs[name], "frozen": seen} for name, seen in zip(pairs, found, strict=True)}
    corpus.PAIRS.write_text(json.dumps(frozen, indent=1) + "\n", "utf-8")


def main(prefixes: tuple[str, ...]) -> None:
    """Record what begins with one of these prefixes."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as directory, ThreadPoolExecutor(4) as pool:
        work = Path(directory)
        shutil.copytree(corpus.TRACES / "programs", work, dirs_exist_ok=True)
        for recordings in (RECORDINGS, RESUMED):
            wanted = {name: each for name, each in recordings.items() if name.startswith(prefixes)}
            list(pool.map(record, wanted, wanted.values(), [work] * len(wanted)))
        damage()
        freeze(work)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or ("",))
