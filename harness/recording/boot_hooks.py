"""What a recorded process watches for: torch, and the modules through which programs log.

Loaded by `boot/sitecustomize.py` from its file, in every Python process of the program, before the program's own
directory is on the import path: nothing of this package is imported until torch is.
"""

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]


def import_hooks(orders: Mapping[str, Any], bring_package: Callable[[], bool]) -> dict[str, Hook]:
    """What to call after which module has been imported; `bring_package` says whether this package can be used."""

    def torch_is_there(torch: ModuleType) -> None:
        if bring_package():
            from harness.recording.active import start_recording
            from harness.recording.run_spec import RunSpec

            start_recording(RunSpec.of(orders))

    def generator_is_there(numpy_random: ModuleType) -> None:
        if orders["level"] != "off" and bring_package():
            from harness.recording.determinism_flags import seed_numpy

            seed_numpy(numpy_random, orders["level"])
        if is_recording():
            from harness.recording.active import meet_generators

            meet_generators()

    def tensorboard_is_there(module: ModuleType) -> None:
        if is_recording():
            from harness.recording.metric_hooks import hook_tensorboard

            hook_tensorboard(module)

    def trainer_is_there(module: ModuleType) -> None:
        if is_recording():
            from harness.recording.metric_hooks import hook_trainer

            hook_trainer(module)

    def grpo_is_there(module: ModuleType) -> None:
        if is_recording():
            from harness.recording.active import report, see_rollout
            from harness.recording.trl_rollouts import hook_grpo

            hook_grpo(module, see_rollout, report)

    if orders.get("has_entry"):
        return {"torch": torch_is_there, "numpy.random": generator_is_there}
    return {
        "torch": torch_is_there,
        "numpy.random": generator_is_there,
        "torch.utils.tensorboard.writer": tensorboard_is_there,
        "tensorboardX.writer": tensorboard_is_there,
        "transformers.trainer_callback": trainer_is_there,
        "trl.trainer.grpo_trainer": grpo_is_there,
    }


def is_recording() -> bool:
    """Whether this process's recording has begun: torch was imported, and this package could be."""
    return "harness.recording.active" in sys.modules
