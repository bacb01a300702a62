"""What a recorded process watches for: torch, and the modules through which programs log.

Loaded by `boot/sitecustomize.py` from its file, in every Python process of the program, before the program's own
directory is on the import path: nothing of this package is imported until torch is.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]
LIBRARIES = {
    "torch.utils.tensorboard.writer": "hook_tensorboard",
    "tensorboardX.writer": "hook_tensorboard",
    "transformers.trainer_callback": "hook_trainer",
    "trl.trainer.grpo_trainer": "hook_rollouts",
    "trl.trainer.rloo_trainer": "hook_rollouts",
    "trl.experimental.online_dpo.online_dpo_trainer": "hook_rollouts",
}
"""By module: the function of `library_hooks` that hooks it."""


def import_hooks(
    orders: Mapping[str, Any], bring_package: Callable[[], str], report: Callable[[str], None]
) -> dict[str, Hook]:
    """What to call after which module has been imported.

    `bring_package` returns the name under which this package can be imported; an empty one if it cannot be used.
    `report` takes why this process is not recorded.
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
            try:
                of("active").start_recording(of("run_spec").RunSpec.of(orders))
            except Exception as error:  # of a package that is half there, say: the program goes on
                report(f"the recorder cannot start: {type(error).__name__}: {error}")

    def generator_is_there(numpy_random: ModuleType) -> None:
        if orders["level"] != "off" and is_brought():
            of("determinism_flags").seed_numpy(numpy_random, orders["level"])
        if is_recording():
            of("active").meet_generators()

    def library_is_there(hook: str, module: ModuleType) -> None:
        """A mistake in a hook, of a version that is not known, say, leaves the program as it is."""
        if is_recording():
            try:
                getattr(of("library_hooks"), hook)(module, of("active").log_values, of("active").see_rollout)
            except Exception as error:  # whatever it is: a program must go on as it would unrecorded
                of("notices").say(f"what {module.__name__} logs or samples is not recorded: {error}")

    hooks: dict[str, Hook] = {"torch": torch_is_there, "numpy.random": generator_is_there}
    if orders.get("has_entry"):
        return hooks
    return hooks | {module: functools.partial(library_is_there, hook) for module, hook in LIBRARIES.items()}
