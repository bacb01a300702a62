"""Every command of rlharness on machines that have run out of disk, inodes, descriptors, processes or memory.

    python tests/benchmarks/exhausted_machines.py --jobs 2
    python tests/benchmarks/exhausted_machines.py --commands '^run' --machines 'disk|inodes' --sample 50 --seed 1

Each trial runs one command on one machine, then the same command on the machine made whole again. It prints the
trials that broke a rule of `tests/support/exhausted_commands.py`, and a table. Exit status 0 if none did. Needs the
permission to mount; the commands that train need torch.
"""

import argparse
import collections
import datetime
import importlib.metadata
import importlib.util
import os
import platform
import random
import re
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.exhausted_commands import COMMANDS, Command, exhaustions, faults, is_abort, prepare
from tests.support.exhausted_machine import Exhaustion, Trial, run_exhausted, why_unable

LIMIT_S = 240.0
NUM_LINES = 6


def kind_of(exhaustion: Exhaustion) -> str:
    """Return the row of the table."""
    return exhaustion.name.partition(":")[0]


def end_of(command: Command, exhaustion: Exhaustion, trial: Trial) -> str:
    """Return the column of the table."""
    if is_abort(exhaustion, trial):
        return "aborted by a library"
    if trial.code == command.code:
        return "as usual"
    return {1: "outcomes that failed", 4: "refused", 12: "incomplete"}.get(trial.code, "another code")


COLUMNS = ("as usual", "refused", "outcomes that failed", "incomplete", "another code", "aborted by a library", "wrong")


def table(counts: dict[str, collections.Counter[str]]) -> str:
    """Return the table, in Markdown."""
    lines = [f"| lacking | trials | {' | '.join(COLUMNS)} |", f"|---|{'---|' * (len(COLUMNS) + 1)}"]
    for kind, row in counts.items():
        num_trials = sum(count for name, count in row.items() if name != "wrong")
        lines.append(f"| {kind} | {num_trials} | {' | '.join(str(row[name]) for name in COLUMNS)} |")
    return "\n".join(lines)


def versions() -> str:
    """Return the machine and the versions."""
    torch = importlib.metadata.version("torch") if importlib.util.find_spec("torch") else "none"
    pytest = importlib.metadata.version("pytest")
    return (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, Linux {platform.release()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, torch {torch}, pytest {pytest}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", default="", help="only commands whose names match")
    parser.add_argument("--machines", default="", help="only machines whose names match")
    parser.add_argument("--sample", type=int, help="so many trials, drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--once", action="store_true", help="no second command on the restored machine")
    given = parser.parse_args()
    if why := why_unable():
        print(f"error: {why}", file=sys.stderr)
        return 4
    commands = [command for command in COMMANDS if re.search(given.commands, command.name)]
    machines = [machine for machine in exhaustions() if re.search(given.machines, machine.name)]
    trials = [(command, machine) for command in commands for machine in machines]
    if given.sample is not None:
        trials = random.Random(given.seed).sample(trials, min(given.sample, len(trials)))
    base = Path(tempfile.mkdtemp(prefix="x", dir="/tmp"))  # short: sockets lie below it
    try:
        return carry_out(base, trials, num_jobs=given.jobs, is_once=given.once)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def carry_out(base: Path, trials: list[tuple[Command, Exhaustion]], *, num_jobs: int, is_once: bool) -> int:
    """Run the trials, and print what each broke and the table."""
    prepare(base, with_torch=any(command.imports_torch for command, _ in trials))
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)

    def one(number: int) -> Trial:
        command, machine = trials[number]
        again = [] if is_once else command.line("again")
        return run_exhausted(base, machine, command.line("new"), number=number, limit_s=LIMIT_S, again=again)

    with ThreadPoolExecutor(num_jobs) as pool:
        for (command, machine), trial in zip(trials, pool.map(one, range(len(trials))), strict=True):
            wrong = faults(command, machine, trial)
            counts[kind_of(machine)].update([end_of(command, machine, trial), *(["wrong"] if wrong else [])])
            said = "; ".join(wrong) or "held"
            print(f"{command.name:22} {machine.name:22} {trial.code:4} {trial.seconds:6.1f} s  {said}", flush=True)
            if wrong:
                print("".join(f"      {line}\n" for line in (trial.stderr or trial.stdout).splitlines()[-NUM_LINES:]))
    print(f"\n{versions()}\n\n{table(counts)}")
    return int(any(row["wrong"] for row in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
