"""Two ranks meet through a file, and add their numbers over torch's Gloo; rank 0 prints the sum.

    python -m tests.support.networks.two_ranks             both, on this host
    python -m tests.support.networks.two_ranks RANK FILE   one of them; FILE, for both, is made by the first

A store of files leaves Gloo alone with the network: whatever hangs here is Gloo.
"""

import multiprocessing
import sys
import tempfile

import torch
import torch.distributed


def take_part(rank: int, store: str) -> None:
    """One rank: join the group, add, leave."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    number = torch.tensor([rank + 1.0])
    torch.distributed.all_reduce(number)
    if rank == 0:
        print(f"sum {number.item():g}", flush=True)
    torch.distributed.destroy_process_group()


def start_both() -> int:
    """Both ranks as processes of this one; the worse of their exit codes."""
    with tempfile.TemporaryDirectory() as directory:
        spawning = multiprocessing.get_context("spawn")
        ranks = [spawning.Process(target=take_part, args=(rank, f"{directory}/store")) for rank in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    return max(process.exitcode or 0 for process in ranks)


if __name__ == "__main__":
    print("starting Gloo", flush=True)
    if len(sys.argv) == 1:
        sys.exit(start_both())
    take_part(int(sys.argv[1]), sys.argv[2])
