"""What a recorded process watches for: torch, and the modules through which programs log.

Loaded by `boot/sitecustomize.py` from its file, in every Python process of the program, before the program's own
directory is on the import path: nothing of this package is imported until torch is.
"""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
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
"""By module: the function of `hooks` that hooks it."""


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
        return bool(recording) and f"{recording[0]}.recording.automatic" in sys.modules

    def torch_is_there(torch: ModuleType) -> None:
        if is_brought():
            try:
                of("automatic").start_recording(of("run_spec").RunSpec.of(orders))
            except Exception as error:  # of a package that is half there, say: the program goes on
                report(f"the recorder cannot start: {type(error).__name__}: {error}")

    def generator_is_there(numpy_random: ModuleType) -> None:
        if orders["level"] == "deterministic":
            numpy_random.seed(0)
        if is_recording():
            of("automatic").meet_generators()

    def library_is_there(hook: str, module: ModuleType) -> None:
        """A mistake in a hook, of a version that is not known, say, leaves the program as it is."""
        if is_recording():
            try:
                getattr(of("hooks"), hook)(module, of("automatic").log_values, of("automatic").see_rollout)
            except Exception as error:  # whatever it is: a program must go on as it would unrecorded
                of("notices").say(f"what {module.__name__} logs or samples is not recorded: {error}")

    hooks: dict[str, Hook] = {"torch": torch_is_there, "numpy.random": generator_is_there}
    if orders.get("has_entry"):
        return hooks
    return hooks | {module: functools.partial(library_is_there, hook) for module, hook in LIBRARIES.items()}


# ------------------------------------------------------------------------------------------------------ after an import
# Calls a function right after a module has been imported for the first time. The standard library only.


def after_import(hooks: Mapping[str, Hook]) -> None:
    """Call `hooks[name](module)` once for each module of that name, at once for those that are there already."""
    for name, hook in hooks.items():
        if name in sys.modules:
            hook(sys.modules[name])
    sys.meta_path.insert(0, _Finder({name: hook for name, hook in hooks.items() if name not in sys.modules}))


class _Finder(MetaPathFinder):
    """Finds nothing itself: asks the finders after it, and wraps the loader they name."""

    def __init__(self, hooks: dict[str, Hook]) -> None:
        self._hooks = hooks

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._hooks:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, functools.partial(self._call, name))
                return spec
        return None

    def _call(self, name: str, module: ModuleType) -> None:
        """Once: others than the import system look for specs too, and import nothing."""
        if (hook := self._hooks.pop(name, None)) is not None:
            hook(module)


class _Loader(Loader):
    """The loader that was found, with the hook after it; the module keeps the loader that it would have had."""

    def __init__(self, loader: Any, hook: Hook) -> None:
        self._loader = loader
        self._hook = hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._hook(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
