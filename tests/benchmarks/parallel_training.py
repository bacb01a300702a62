"""What bits that do not depend on the number of ranks cost: canonical sums against the library's, step by step.

    python -m tests.benchmarks.parallel_training [--ranks 1 2 4] [--rounds 5]

Gloo ranks of one thread train a decoder of a million parameters on 16 fixed microbatches: with replicated weights,
fully sharded and hybrid. Then a sum over ranks alone, the weights as a sync streams them, and a checkpoint. Least
seconds of rounds that take turns, of the slowest rank.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime

from harness.fixtures.ranks import start_ranks
from rlcore.models.decoder import Decoder
from rlcore.numerics.probe import machine
from tests.support.rank_costs import CONFIG, NUM_MICROBATCHES, Seconds, state_s, steps_s, sums_s


def measure(num_ranks: int, num_rounds: int) -> dict[str, Seconds]:
    """Measure everything with this number of ranks."""
    shards = [1, *([2] if num_ranks == 4 else []), *([num_ranks] if num_ranks > 1 else [])]
    directory = tempfile.mkdtemp(prefix="parallel-training-")
    found: dict[str, Seconds] = {}
    try:
        with closing(start_ranks(num_ranks, timeout_s=600, env={"OMP_NUM_THREADS": "1"})) as ranks:
            for num_shards in shards:
                name = f"step, {num_ranks // num_shards} x {num_shards}"
                found[name] = slowest(ranks.run(steps_s, num_shards, num_rounds))
            if num_ranks > 1:
                found["sum of 32 MiB"] = slowest(ranks.run(sums_s, num_rounds))
                found["state, sharded"] = slowest(ranks.run(state_s, directory, num_rounds))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return found


def slowest(by_rank: Sequence[Seconds]) -> Seconds:
    """Return the seconds of the slowest rank."""
    return {name: max(seconds[name] for seconds in by_rank) for name in by_rank[0]}


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    num_parameters = sum(parameter.numel() for parameter in Decoder(CONFIG).parameters())
    load = os.getloadavg()[0]
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine()}, load {load:.1f} before")
    print(f"{num_parameters:,} parameters, {NUM_MICROBATCHES} microbatches; milliseconds, least of {arguments.rounds}")
    for num_ranks in arguments.ranks:
        print(f"\n{num_ranks} ranks")
        for name, seconds in measure(num_ranks, arguments.rounds).items():
            told = ", ".join(f"{what} {1000 * each:.0f}" for what, each in seconds.items())
            print(f"  {name}: {told}")


if __name__ == "__main__":
    main()
