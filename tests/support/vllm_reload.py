"""The way of vLLM itself to other weights: a checkpoint on a disk, which every worker reloads in place.

    reload = CheckpointReload(call, reset_cache, config, directory)
    reload(named_tensors)                              # write, reload_weights, reset the prefix cache
    receipt_for(named_tensors, VllmWorkers(call), version)

vLLM keeps the path of the last reload, and sleep mode reads it again: the last checkpoint stays.
"""

import shutil
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CheckpointReload:
    """Reloads the workers of one engine. Adapters have to be merged into the weights."""

    call: Callable[..., Any]
    """`LLM.collective_rpc`."""
    reset_cache: Callable[[], Any]
    """`LLM.reset_prefix_cache`: vLLM does not reset it with the weights."""
    config: Path
    """config.json of the model, as it was loaded first."""
    directory: Path
    """Directory of the checkpoints, which the workers see."""

    def __call__(self, tensors: Iterable[tuple[str, Tensor]]) -> Path:
        """Send tensors under a checkpoint's names; return the checkpoint, which replaces the one before."""
        older = list(self.directory.glob("reload-*"))
        target = self.directory / f"reload-{uuid.uuid4().hex}"
        target.mkdir(parents=True)
        shutil.copy(self.config, target / "config.json")
        contents = {name: tensor.detach().cpu().clone() for name, tensor in tensors}
        save_file(contents, target / "model.safetensors", metadata={"format": "pt"})
        self.call("reload_weights", kwargs={"weights_path": str(target)})
        self.reset_cache()
        for directory in older:
            shutil.rmtree(directory)
        return target
