"""`rlharness run --cluster local:2x4` on a suite of verl's shape, with a node killed at a random moment of each trial.

    python tests/benchmarks/lost_nodes.py --trials 20            # seeds 1 to 20
    python tests/benchmarks/lost_nodes.py --seed 7 --trials 1 --directory DIR

The agent of one node gets SIGKILL when a drawn number of attempts has started, after a drawn pause. Every outcome,
count and lease is then held against what each file was made to do. Exit status 1 where anything is wrong.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness.core.exit_codes import ExitCode
from harness.process.supervisor.process_tree import children, read_process
from tests.support.verl_shaped.check import Record, held_locks, problems, read_jsonl
from tests.support.verl_shaped.suite import ShapedFile, draw_suite, write_suite

ROWS = Path(__file__).resolve().parents[1] / "data" / "verl_suite.json"
NUM_NODES, GPUS_PER_NODE = 2, 4
LIMIT_S = 600.0
GONE_S = 60.0


def main() -> int:
    """Run the trials; one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="that of the first trial")
    parser.add_argument("--files", type=int, default=40, help="40 or more, so that each deed has a file")
    parser.add_argument("--scale", type=float, default=0.02, help="seconds of sleep per second of the original")
    parser.add_argument("--directory", type=Path, help="where to write and keep the suites; must not exist")
    args = parser.parse_args()
    num_wrong = 0
    for seed in range(args.seed, args.seed + args.trials):
        with tempfile.TemporaryDirectory() as scratch:
            directory = (args.directory or Path(scratch)) / f"suite_{seed}"
            said, found = run_trial(directory, seed=seed, num_files=args.files, scale=args.scale)
        print(f"seed {seed}: {said}")
        for line in found:
            print(f"WRONG  {line}")
        num_wrong += bool(found)
    print(f"{args.trials} trials, {num_wrong} of them wrong")
    return 1 if num_wrong else 0


def run_trial(directory: Path, *, seed: int, num_files: int, scale: float) -> tuple[str, list[str]]:
    """Draw and run one suite, and kill a node meanwhile; a line on it, and what is wrong."""
    rows = [row for row in json.loads(ROWS.read_text("utf-8")) if row["gpus"] <= GPUS_PER_NODE]
    num_gpus = NUM_NODES * GPUS_PER_NODE
    files = draw_suite(rows, num_files=num_files, num_gpus=num_gpus, scale=scale, seed=seed)
    write_suite(files, directory)
    rng = random.Random(seed)
    process = _start(directory)
    try:
        killed = _kill_a_node(
            process, directory, after=rng.randint(1, num_files * 3 // 4), pause_s=rng.uniform(0, 0.5), rng=rng
        )
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    events = read_jsonl(directory / "events.jsonl")
    if process.returncode != ExitCode.TESTS_FAILED or not events or events[-1]["event"] != "run_finished":
        return killed, [f"exit status {process.returncode}, made to be 1:\n{out[-2000:]}\n{err[-4000:]}"]
    return f"{killed}; {_figures(events)}", [*_wrong(files, events, directory, num_gpus)]


def _start(directory: Path) -> "subprocess.Popen[str]":
    options = ["--cluster", f"local:{NUM_NODES}x{GPUS_PER_NODE}", "--cpu-units", "2", "--grace", "2"]
    command = [sys.executable, "-m", "harness", "run", "--no-split", *options, "--events", "events.jsonl", "--plain"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "XDG_CACHE_HOME": str(directory / "cache")}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=directory, env=environ, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    )


def _kill_a_node(
    process: "subprocess.Popen[str]", directory: Path, *, after: int, pause_s: float, rng: random.Random
) -> str:
    """Kill the agent of one node once `after` attempts have started, if the run lives as long; what was done."""
    until = time.monotonic() + LIMIT_S
    events = directory / "events.jsonl"
    while process.poll() is None and time.monotonic() < until:
        text = events.read_text("utf-8", errors="replace") if events.exists() else ""
        if text.count('"attempt_started"') >= after:
            time.sleep(pause_s)
            break
        time.sleep(0.02)
    agents = agents_of(process.pid)
    if process.poll() is not None or not agents:
        return "the run ended before a node could be killed"
    pid = rng.choice(agents)
    os.kill(pid, signal.SIGKILL)
    return f"killed the agent {agents.index(pid)} of {len(agents)} after {after} attempts and {pause_s:.2f} s"


def agents_of(pid: int) -> list[int]:
    """Return the agents that a run has started, by pid."""
    found = []
    for child in children(pid):
        words = Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0") if read_process(child.pid) else []
        if b"agent" in words:
            found.append(child.pid)
    return sorted(found)


def _wrong(files: tuple[ShapedFile, ...], events: list[Record], directory: Path, num_gpus: int) -> list[str]:
    found = problems(files, events, read_jsonl(directory / "leases.jsonl"), num_gpus=num_gpus)
    until = time.monotonic() + GONE_S
    while (held := held_locks(directory)) and time.monotonic() < until:
        time.sleep(0.05)
    found += [f"{name}: a process of the run still lives" for name in held]
    return [*found, *_late(events)]


def _late(events: list[Record]) -> Iterator[str]:
    """Units with an outcome from a node that was lost before they started: leased in time, they are lost at once."""
    lost, late = set(), set()
    for event in events:
        if event["event"] == "node_lost":
            lost.add(event["node"])
        elif event["event"] == "attempt_started" and any(g.partition("-")[0] in lost for g in event["gpu_ids"]):
            late.add(event["path"])
        elif event["event"] == "attempt_lost":
            late.discard(event["path"])
        elif event["event"] == "unit_finished" and event["result"]["unit"]["path"] in late:
            yield f"{event['result']['unit']['path']}: has an outcome from a node that was lost before it started"


def _figures(events: list[Record]) -> str:
    outcomes = Counter(event["result"]["outcome"] for event in events if event["event"] == "unit_finished")
    num_lost = sum(event["event"] == "attempt_lost" for event in events)
    nodes = [event["node"] for event in events if event["event"] == "node_lost"]
    said = ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items()))
    return f"lost {', '.join(nodes) or 'no node'} and {num_lost} attempts; {said}; {events[-1]['wall_s']:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
