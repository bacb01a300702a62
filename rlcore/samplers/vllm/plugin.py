"""Entry point `vllm.general_plugins`: prepares the processes of an engine that rlcore has started.

Every process of vLLM in this environment calls `register`. Without the variable it imports nothing and returns.
"""

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

VARIABLE = "RLCORE_VLLM_TRAINER"
"""Process id of the trainer; set only while it starts an engine."""
GROUP, NAME = "vllm.general_plugins", "rlcore"
CHECK_EVERY_S = 0.5
QUIET = {"PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR", "TORCH_LOGS": "-torch._library.triton"}
"""Variables against what vLLM's imports print: nothing that a user could change."""


def register() -> None:
    """Make the decoder known to vLLM, and end this process with the trainer, however that ends."""
    if (trainer := os.environ.get(VARIABLE)) is None:
        return
    if int(trainer) != os.getpid():
        end_with_trainer()
        os.environ["VLLM_BATCH_INVARIANT"] = "0"  # before vLLM builds the model
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both; the trainer ends this process
    register_model()


def register_model() -> None:
    """Make the decoder known to vLLM in this process."""
    from vllm import ModelRegistry

    from rlcore.samplers.vllm.model import ARCHITECTURE, RlcoreForCausalLM

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, RlcoreForCausalLM)


@cache
def end_with_trainer() -> None:
    """Kill a process of an engine once the trainer is no longer its parent: one that was killed says no farewell.

    Nothing in the trainer itself, and in processes that it did not start for an engine.
    """
    trainer = os.environ.get(VARIABLE)
    if trainer is None or int(trainer) == os.getpid():
        return
    parent = int(trainer)
    ended = threading.Event()

    def watch() -> None:
        while os.getppid() == parent:
            ended.wait(CHECK_EVERY_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="rlcore-parent", daemon=True).start()


@contextmanager
def starting(given: Mapping[str, str | None]) -> Iterator[None]:
    """Let `register` prepare the processes that are started inside; they inherit these variables, None for none."""
    allowed = os.environ.get("VLLM_PLUGINS")
    own: dict[str, str | None] = {**QUIET, VARIABLE: str(os.getpid())}
    own["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # a trainer has threads
    if allowed is not None:
        own["VLLM_PLUGINS"] = f"{allowed},{NAME}"
    added = {**given, **own}
    before = {name: os.environ.get(name) for name in added}
    _set_variables(added)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def check_entry_point() -> None:
    """Raise InvalidValueError if vLLM's processes would not find rlcore."""
    from importlib.metadata import entry_points

    from rlcore.errors import InvalidValueError

    if not entry_points(group=GROUP, name=NAME):
        raise InvalidValueError(
            f"sampler.engine process, and no installed distribution has the entry point {NAME} of {GROUP}",
            legal="rlharness, installed in this environment: vLLM's process finds the decoder by it",
            remedy="pip install --no-deps -e . in the checkout, or sampler.engine=in_process",
        )
