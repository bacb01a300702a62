"""`python -m tests.benchmarks.mutations`: carries the benchmark out; --of, --only NAME, --pairs N, --json, --write."""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.mutations.catalogue import COLLECTIONS, named
from tests.benchmarks.mutations.fault import Fault
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
    parser.add_argument("--of", choices=tuple(COLLECTIONS), action="append", default=[], help="a collection; all")
    parser.add_argument("--pairs", metavar="N", type=int, help=f"honest pairs a collection; {NUM_PAIRS}, 0 with --only")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {DESIGN.relative_to(ROOT)}")
    given = parser.parse_args(argv)
    if given.only and (given.write or given.of):
        parser.error("--only tries single faults; it does not go with --write or --of, which are of whole collections")
    try:
        single = tuple(map(named, given.only))
    except KeyError as error:
        parser.error(str(error.args[0]))
    chosen = {"": single} if single else {name: COLLECTIONS[name] for name in given.of or COLLECTIONS}
    num_pairs = given.pairs if given.pairs is not None else (0 if single else NUM_PAIRS)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        has_failed = [_carried_out(name, faults, num_pairs, given) for name, faults in chosen.items()]
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return 1 if any(has_failed) else 0


def _carried_out(name: str, faults: Sequence[Fault], num_pairs: int, given: argparse.Namespace) -> bool:
    """Try the faults of a collection and report; return whether a goal was missed."""
    began_s = time.monotonic()
    with Workers() as workers:
        results = carry_out(faults, num_pairs, workers, _progress(began_s))
    took_s = time.monotonic() - began_s
    print(as_json(results, took_s) if given.json else as_text(results, took_s))
    if given.write:
        write_into(Path(DESIGN), name, results, took_s)
    return bool(results.shortcomings)


def _progress(began_s: float) -> Progress:
    def told(line: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {line}", file=sys.stderr, flush=True)

    return told


if __name__ == "__main__":
    sys.exit(main())
