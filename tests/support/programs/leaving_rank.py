"""A rank that trains nothing: it adds up ranks, prints without a newline, and leaves; or fails.

leaving_rank.py RANK STORE [--fail]
"""

import atexit
import sys

import torch
import torch.distributed as dist

from rlcore.trainers.process_group import run_as_rank
from rlcore.trainers.ranks import Ranks


def main(ranks: Ranks) -> int:
    """Add up the ranks, and fail if asked to."""
    total = torch.tensor([float(ranks.rank)])
    dist.all_reduce(total)
    sys.stdout.write(f"sum {int(total)}")
    if "--fail" in sys.argv:
        raise ValueError("as asked")
    return 0


if __name__ == "__main__":
    atexit.register(print, "the interpreter has ended")
    rank, store = int(sys.argv[1]), sys.argv[2]
    run_as_rank(main, timeout_s=120.0, init_method=f"file://{store}", rank=rank, world_size=2)
