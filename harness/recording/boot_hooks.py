"""What a recorded process watches for: torch, and the modules through which programs log.

Loaded by `boot/sitecustomize.py` from its file, in every Python process of the program, before the program's own
directory is on the import path: nothing of this package is imported until torch is.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]


def import_hooks(orders: Mapping[str, Any], bring_package: Callable[[], str]) -> dict[str, Hook]:
    """What to call after which module has been imported.

    `bring_package` returns the name under which this package can be imported; an empty one if it cannot be used.
    """
    recording: list[str] = []

    def of(module: str) -> Any:
        return importlib.import_module(f"{recording[0]}.recording.{module}")

    def is_brought() -> bool:
        if not recording and (package := bring_package()):
            recording.append(package)
        return bool(recording)

    def is_recording() -> bool:
        return bool(recording) and f"{recording[0]}.recording.active" in sys.modules

    def torch_is_there(torch: ModuleType) -> None:
        if is_brought():
            of("active").start_recording(of("run_spec").RunSpec.of(orders))

    def generator_is_there(numpy_random: ModuleType) -> None:
        if orders["level"] != "off" and is_brought():
            of("determinism_flags").seed_numpy(numpy_random, orders["level"])
        if is_recording():
            of("active").meet_generators()

    def tensorboard_is_there(module: ModuleType) -> None:
        if is_recording():
            of("library_hooks").hook_tensorboard(module, of("active").active_log().log_values)

    def trainer_is_there(module: ModuleType) -> None:
        if is_recording():
            of("library_hooks").hook_trainer(module, of("active").active_log().log_values)

    def rollouts_are_there(module: ModuleType) -> None:
        if is_recording():
            of("library_hooks").hook_trainers(module, of("active").see_rollout, of("notices").say)

    if orders.get("has_entry"):
        return {"torch": torch_is_there, "numpy.random": generator_is_there}
    return {
        "torch": torch_is_there,
        "numpy.random": generator_is_there,
        "torch.utils.tensorboard.writer": tensorboard_is_there,
        "tensorboardX.writer": tensorboard_is_there,
        "transformers.trainer_callback": trainer_is_there,
        "trl.trainer.grpo_trainer": rollouts_are_there,
        "trl.trainer.rloo_trainer": rollouts_are_there,
        "trl.experimental.online_dpo.online_dpo_trainer": rollouts_are_there,
    }
