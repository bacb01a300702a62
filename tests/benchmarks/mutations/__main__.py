"""`python -m tests.benchmarks.mutations`: carries the benchmark out; --only NAME, --pairs N, --json, --write."""

import argparse
import signal
import sys
import time
from pathlib import Path

from tests.benchmarks.mutations.catalogue import FAULTS, named
from tests.benchmarks.mutations.runner import carry_out
from tests.benchmarks.mutations.table import as_json, as_text, write_into
from tests.benchmarks.mutations.workers import ROOT, Progress, Workers

DESIGN = ROOT / "harness" / "DESIGN.md"
NUM_PAIRS = 100
INTERRUPTED = 2


def main(argv: list[str] | None = None) -> int:
    """0 where the goals are met, 1 where they are not, 2 where it was interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.mutations", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="this fault; several times")
    parser.add_argument("--pairs", metavar="N", type=int, help=f"honest pairs; {NUM_PAIRS}, or 0 with --only")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.add_argument("--write", action="store_true", help=f"put the table into {DESIGN.relative_to(ROOT)}")
    given = parser.parse_args(argv)
    if given.write and given.only:
        parser.error("--write puts the whole table in; it does not go with --only")
    try:
        faults = tuple(map(named, given.only)) or FAULTS
    except KeyError as error:
        parser.error(str(error.args[0]))
    num_pairs = given.pairs if given.pairs is not None else (0 if given.only else NUM_PAIRS)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began_s = time.monotonic()
    try:
        with Workers() as workers:
            results = carry_out(faults, num_pairs, workers, _progress(began_s))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    took_s = time.monotonic() - began_s
    print(as_json(results, took_s) if given.json else as_text(results, took_s))
    if given.write:
        write_into(Path(DESIGN), results, took_s)
    return 1 if results.shortcomings else 0


def _progress(began_s: float) -> Progress:
    def told(line: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {line}", file=sys.stderr, flush=True)

    return told


if __name__ == "__main__":
    sys.exit(main())
