"""The engine's entry with a sampler whose noise depends on the size of a block of vLLM's cache.

The engine draws some tokens again, and would see it: that check is off, so that the search has to.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rlcore.entrypoint import run as run_engine
from rlcore.log import Recorder

HONEST_SIZE = 8


def run(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Recorder) -> None:
    """Call the engine's entry; blocks of another size than usual shift every key."""
    from rlcore.samplers.vllm.engine import Engine

    add = Engine.add

    def shifted(engine: Engine, prompt: Any, *, key: int, **others: Any) -> str:
        return add(engine, prompt, key=key + (engine.settings.block_size != HONEST_SIZE), **others)

    with patch.object(Engine, "add", shifted), patch("rlcore.checks.check_drawn"):
        run_engine(config, level=level, directory=directory, recorder=recorder)
