"""What a run would collect, without running it."""

import asyncio
import os
from contextlib import closing
from pathlib import Path
from typing import Any

from harness.process.invocation import Invocation
from harness.runner.collection.collect import Collected, collect
from harness.runner.options import RunOptions
from harness.runner.sessions.suite import Suite

ROOT = Path(__file__).parents[2]


def collect_in(root: Path, *paths: str, pytest_args: tuple[str, ...] = (), **options: Any) -> Collected:
    """Return the units below `paths` of the suite in `root`."""
    scratch = root.with_name(f"{root.name}-scratch")
    scratch.mkdir(exist_ok=True)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    given = RunOptions(Invocation(root, environ, trailing=pytest_args), root, paths=paths, **options)

    async def collected() -> Collected:
        number = len(list(scratch.iterdir()))
        (scratch / str(number)).mkdir()
        with closing(Suite(given, f"t{number}", scratch / str(number), master_port=29500, has_gpus=True)) as suite:
            return await collect(given, suite)

    return asyncio.run(collected())
