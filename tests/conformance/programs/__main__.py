"""Records programs of other people's trainers, and checks what is seen of each.

    python -m tests.conformance.programs                        all; makes three environments first
    python -m tests.conformance.programs --only ddp gcn         some of them
    python -m tests.conformance.programs --write                puts their rows into tests/benchmarks/README.md

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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path

from tests.conformance.programs.checks import ROOT, Seen, check
from tests.conformance.programs.table import HERE, PROGRAMS, Environment, Program
from tests.rlcore.peers.environments import Environment as Made
from tests.rlcore.peers.environments import install, make_all

PAGE = ROOT / "tests" / "benchmarks" / "README.md"
BEGIN, END = "<!-- programs: begin -->\n", "<!-- programs: end -->"
VERSIONS = "import importlib.metadata as m, sys; print(*[f'{n}={m.version(n)}' for n in sys.argv[1:]], sep='\\n')"


def environments(programs: Sequence[Program], into: Path) -> dict[Environment, Path]:
    """Interpreter of each environment that these programs need and that could be made."""
    wanted = sorted({each.environment for each in programs})
    made = make_all([Made(each, each, HERE / f"{each}.txt") for each in wanted], into, install)
    return {each: Path(made[each]) for each in wanted if each in made}


def versions(programs: Sequence[Program], pythons: dict[Environment, Path]) -> dict[str, str]:
    """Version of each package that the table shows."""
    found: dict[str, str] = {}
    for environment, python in pythons.items():
        names = {each.package for each in programs if each.environment is environment and each.package} | {"torch"}
        command = [str(python), "-c", VERSIONS, *sorted(names)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found |= dict(line.split("=", 1) for line in done.stdout.splitlines())
    return found


def row(seen: Seen, found: dict[str, str]) -> str:
    """The line of the table for one program."""
    program = seen.program
    package = f"{program.package} {found[program.package]}: " if program.package else ""
    wrong = f" **not as expected: {'; '.join(each.splitlines()[0] for each in seen.problems)}**"
    cells = [
        program.name,
        f"{package}{program.uses}",
        f"{seen.num_steps} ({seen.num_logs})",
        seen.weights if len(seen.weights) < 10 else "DIFFER",
        f"{seen.verdict.upper() or '-'} at `{program.level}`",
        program.planted,
        f"{seen.place or '-'}{wrong if seen.problems else ''}",
        f"{seen.num_bytes / 1e3:.0f} kB",
        f"{datetime.now(UTC):%Y-%m-%d}",
    ]
    return f"| {' | '.join(cells)} |"


def table(rows: Mapping[str, str], heading: str) -> str:
    """The table of the page, in the order of the programs."""
    lines = [
        "| program | uses | steps (logs) | weights | honest pair | planted | named | trace | date |",
        "|---|---|---|---|---|---|---|---|---|",
        *[rows[each.name] for each in PROGRAMS if each.name in rows],
    ]
    num_right = sum("**not as expected" not in line for line in rows.values())
    return "\n".join([heading, "", *lines, "", f"{num_right} of {len(rows)} programs are as expected."])


def written(page: str, rows: Mapping[str, str], heading: str) -> str:
    """Return the page with these rows replaced; ValueError if it has no place for them."""
    head, found, rest = page.partition(BEGIN)
    old, closed, tail = rest.partition(END)
    if not (found and closed):
        raise ValueError(f"the page has no {BEGIN.strip()} ... {END}")
    kept = {line.split(" | ")[0].removeprefix("| "): line for line in old.splitlines() if line.startswith("| ")}
    names = {each.name for each in PROGRAMS}
    merged = {name: line for name, line in kept.items() if name in names} | dict(rows)
    return f"{head}{BEGIN}{table(merged, heading)}\n{END}{tail}"


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
    parser.add_argument("--write", action="store_true", help="put the rows into tests/benchmarks/README.md")
    arguments = parser.parse_args(words)
    programs = [each for each in PROGRAMS if arguments.only is None or each.name in arguments.only]
    if arguments.list:
        print(*[f"{each.name:24} {each.environment:14} {each.uses}" for each in programs], sep="\n")
        return 0
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    pythons = environments(programs, (arguments.into or cache / "rlharness" / "programs").absolute())
    possible = [each for each in programs if each.environment in pythons]
    began_s, found = time.monotonic(), versions(possible, pythons)
    heading = (
        f"Python {platform.python_version()}, torch {found.get('torch', '-')}, {platform.machine()},"
        f" {os.cpu_count()} cores, one thread a program unless it says more"
    )

    def on_seen(seen: Seen) -> None:
        print(
            f"{seen.program.name:24} {'FAILED' if seen.problems else 'ok':6} {time.monotonic() - began_s:5.0f} s",
            flush=True,
        )
        print(*[f"    {problem}\n" for problem in seen.problems], sep="", end="", flush=True)
        if arguments.write:  # at once: a run of all takes long, and may be interrupted
            rows = {seen.program.name: row(seen, found)}
            PAGE.write_text(written(PAGE.read_text("utf-8"), rows, heading), "utf-8")

    with tempfile.TemporaryDirectory(prefix="rlh-programs-") as scratch:
        results = run(possible, pythons, Path(scratch), arguments.jobs, on_seen)
    print(table({each.program.name: row(each, found) for each in results}, heading))
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
