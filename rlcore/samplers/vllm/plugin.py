"""What an engine's process does before it is vLLM's.

vLLM spawns the process with its configuration, in which a `Trainer` travels: it takes effect where it is unpickled,
before vLLM waits for the trainer, which may have ended by then.
"""

import os
import signal
import threading
from dataclasses import dataclass, field
from typing import Any

from rlcore.models.config import DecoderConfig

CHECK_EVERY_S = 0.5


@dataclass(frozen=True)
class Trainer:
    """The process that an engine works for, and what the engine's process takes from it: vLLM's `additional_config`."""

    config: DecoderConfig | None = None
    """Of a sampler's model."""
    is_packed: bool = True
    """Whether vLLM may pack the weights of its own models for oneDNN, which leaves empty parameters on a CPU."""
    pid: int = field(default_factory=os.getpid)

    def compute_hash(self) -> str:
        """Return what vLLM adds to the key of its compilation cache: nothing is compiled."""
        return ""

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickled, (self.config, self.is_packed, self.pid)


def unpickled(config: DecoderConfig | None, is_packed: bool, pid: int) -> Trainer:
    """Return a trainer; in another process than its own, prepare that one for its engine."""
    if os.getpid() != pid:
        threading.Thread(target=_end_with, args=(pid,), name="rlcore-trainer", daemon=True).start()
        register_model()
        if not is_packed:
            from vllm import _custom_ops

            _custom_ops._supports_onednn = False
    return Trainer(config, is_packed, pid)


def _end_with(trainer: int) -> None:
    """Kill this process once the trainer is no longer its parent: one that was killed says no farewell."""
    ended = threading.Event()
    while os.getppid() == trainer:
        ended.wait(CHECK_EVERY_S)
    os.kill(os.getpid(), signal.SIGKILL)


def register_model() -> None:
    """Make the decoder known to vLLM in this process."""
    from vllm import ModelRegistry

    from rlcore.samplers.vllm.model import ARCHITECTURE, RlcoreForCausalLM

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, RlcoreForCausalLM)
