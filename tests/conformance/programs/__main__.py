"""Records programs of other people's trainers, and checks what is seen of each.

    python -m tests.conformance.programs                        all; makes four environments first
    python -m tests.conformance.programs --only ddp gcn         some of them
    python -m tests.conformance.programs --write                puts their rows into results.json beside this file

Every program runs four times: unrecorded, recorded twice, and recorded with a planted cause. The final weights must be
bitwise equal with and without a record, the honest pair EQUAL, and the planted cause be named in its step, phase and
tensor. Exit status 1 where something is not so, or an environment could not be made. Needs a package registry.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path

from tests.conformance.programs.checks import Seen, check
from tests.conformance.programs.table import HERE, PROGRAMS, Environment, Program
from tests.rlcore.peers.environments import Environment as Made
from tests.rlcore.peers.environments import install, make_all

RESULTS = HERE / "results.json"
Row = dict[str, str | int]
VERSIONS = "import importlib.metadata as m, sys; print(*[f'{n}={m.version(n)}' for n in sys.argv[1:]], sep='\\n')"


def environments(wanted: Set[Environment], into: Path) -> dict[Environment, Path]:
    """Interpreter of each of these environments that could be made."""
    made = (
        make_all([Made(each, each, HERE / f"{each}.txt") for each in sorted(wanted)], into, install) if wanted else {}
    )
    return {each: Path(made[each]) for each in sorted(wanted) if each in made}


def versions(programs: Sequence[Program], pythons: dict[Environment, Path]) -> dict[str, str]:
    """Version of each package that the table shows."""
    found: dict[str, str] = {}
    for environment, python in pythons.items():
        names = {each.package for each in programs if each.environment is environment and each.package} | {"torch"}
        command = [str(python), "-c", VERSIONS, *sorted(names)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found |= dict(line.split("=", 1) for line in done.stdout.splitlines())
    return found


def row(seen: Seen, found: Mapping[str, str]) -> Row:
    """Return what results.json keeps of one program."""
    program = seen.program
    package = f"{program.package} {found[program.package]}: " if program.package else ""
    return {
        "uses": f"{package}{program.uses}",
        "steps": seen.num_steps,
        "logs": seen.num_logs,
        "weights": seen.weights if len(seen.weights) < 10 else "DIFFER",
        "honest pair": f"{seen.verdict.upper() or '-'} at {program.level}",
        "planted": program.planted,
        "named": str(seen.place or "-"),
        "not as expected": "; ".join(each.splitlines()[0] for each in seen.problems),
        "trace kB": round(seen.num_bytes / 1e3),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": f"Python {platform.python_version()}, torch {found.get('torch', '-')}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def merged(old: Mapping[str, Row], new: Mapping[str, Row]) -> dict[str, Row]:
    """Return the rows of both, the new ones first, in the order of the programs; those of no program are dropped."""
    both = {**old, **new}
    return {each.name: both[each.name] for each in PROGRAMS if each.name in both}


def run(
    programs: Sequence[Program],
    pythons: Mapping[Environment, Path],
    scratch: Path,
    num_jobs: int,
    on_seen: Callable[[Seen], None],
) -> list[Seen]:
    """Check programs side by side; `on_seen` is called in this thread for each that has ended."""

    def one(program: Program) -> Seen:
        return check(program, pythons[program.environment].parent, scratch / program.name)

    pool = ThreadPoolExecutor(num_jobs)
    try:
        results = []
        for future in as_completed([pool.submit(one, each) for each in programs]):
            results.append(future.result())
            on_seen(results[-1])
        return sorted(results, key=lambda seen: programs.index(seen.program))
    finally:  # an interrupt has ended what runs: the terminal sends it to all of them
        pool.shutdown(cancel_futures=True)


def main(words: Sequence[str]) -> int:
    """Carry out a command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[each.name for each in PROGRAMS], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the programs, and run none")
    parser.add_argument("--into", type=Path, help="where environments stand; by default a cache directory")
    parser.add_argument("--jobs", type=int, default=2, help="programs side by side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was seen into a file")
    parser.add_argument("--write", action="store_true", help="put the rows into results.json beside this file")
    arguments = parser.parse_args(words)
    programs = [each for each in PROGRAMS if arguments.only is None or each.name in arguments.only]
    if arguments.list:
        print(*[f"{each.name:24} {each.environment:14} {each.uses}" for each in programs], sep="\n")
        return 0
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    pythons = environments(
        {each.environment for each in programs}, (arguments.into or cache / "rlharness" / "programs").absolute()
    )
    possible = [each for each in programs if each.environment in pythons]
    began_s, found = time.monotonic(), versions(possible, pythons)

    def on_seen(seen: Seen) -> None:
        print(
            f"{seen.program.name:24} {'FAILED' if seen.problems else 'ok':6} {time.monotonic() - began_s:5.0f} s",
            flush=True,
        )
        print(*[f"    {problem}\n" for problem in seen.problems], sep="", end="", flush=True)
        if arguments.write:  # at once: a run of all takes long, and may be interrupted
            rows = merged(json.loads(RESULTS.read_text("utf-8")), {seen.program.name: row(seen, found)})
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")

    with tempfile.TemporaryDirectory(prefix="rlh-programs-") as scratch:
        results = run(possible, pythons, Path(scratch), arguments.jobs, on_seen)
    num_right = sum(not each.problems for each in results)
    print(f"{num_right} of {len(results)} programs are as expected")
    if arguments.json:
        arguments.json.write_text(json.dumps([_plain(each) for each in results], indent=1) + "\n", "utf-8")
    return int(len(possible) < len(programs) or any(each.problems for each in results))


def _plain(seen: Seen) -> dict[str, object]:
    program = seen.program
    return {
        "name": program.name,
        "level": program.level,
        "weights": seen.weights,
        "verdict": seen.verdict,
        "num_steps": seen.num_steps,
        "num_logs": seen.num_logs,
        "num_bytes": seen.num_bytes,
        "expected": str(program.place),
        "named": seen.place and str(seen.place),
        "problems": seen.problems,
    }


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
