"""A trainer with an engine of vLLM, as a program: it trains, reports what it recorded, and samples on.

python -m tests.support.vllm_trainer DIRECTORY
"""

import pickle
import sys
from pathlib import Path
from typing import Any

RUN: dict[str, Any] = {
    "training": {"num_steps": 4, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4},
    "warm_start": {"num_steps": 6, "batch_size": 8},
}
VLLM: dict[str, Any] = {
    "sampler": {"name": "vllm", "block_size": 2, "num_blocks": 24, "max_batched_tokens": 16},
    "runtime": {"concurrency": 5, "arrival_seed": 7, "preempt_every": 3, "sampling_threads": 2},
}


def main(directory: Path) -> None:
    """Train, write what was recorded and the engine's process id, then sample until the end."""
    from rlcore.entrypoint import train
    from rlcore.numerics.level import following
    from rlcore.numerics.probe import STRATEGIES
    from tests.conformance.sampler_suite import wanted
    from tests.rlcore.training.recorded import Digests, config

    digests = Digests()
    state = train(config(**RUN, **VLLM), level="invariant", directory=directory / "run", recorder=digests)
    sampler: Any = state.sampler
    content = pickle.dumps((digests, sampler.engine.pid))
    (directory / "unfinished").write_bytes(content)
    (directory / "unfinished").rename(directory / "recorded")
    with following(STRATEGIES[0]):
        while True:
            sampler.sample([wanted()])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
