"""Calls a function right after a module has been imported for the first time. The standard library only."""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]


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
