"""What pytest finds out about its plugins in every session, found out once before the forks.

A session scans every attribute of every plugin for fixtures, and reads the metadata of every distribution with plugins
for its first line. In a fork of the warm session that was two thirds of a small file's time.

A plugin is scanned again if any of its attributes is another object than before the fork.
"""

import inspect
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.message import Message
from functools import cached_property
from importlib.metadata import Distribution
from types import ModuleType
from typing import Any

import pytest
from _pytest import fixtures
from _pytest.fixtures import FixtureManager

Holder = ModuleType | type[Any]
Definition: Any = getattr(fixtures, "FixtureFunctionDefinition", None)
"""What `pytest.fixture` returns since pytest 8.4. Before, modules with fixtures are scanned in every fork."""


MISSING = object()
_scan = FixtureManager.parsefactories
"""What pytest itself does, whatever stands there later."""


class KnownDistribution(Distribution):
    """A distribution whose metadata is read once."""

    def __init__(self, dist: Distribution) -> None:
        self._dist = dist

    @cached_property
    def metadata(self) -> Message:  # type: ignore[override]
        """The parsed METADATA."""
        return self._dist.metadata  # type: ignore[return-value]

    def read_text(self, filename: str) -> str | None:
        """Return the text of a file of the metadata."""
        return self._dist.read_text(filename)

    def locate_file(self, path: Any) -> Any:
        """Return where a file of the distribution is."""
        return self._dist.locate_file(path)


def read_metadata_once(manager: pytest.PytestPluginManager) -> None:
    """Read the metadata of the distributions with plugins now, and never again."""
    for number, (plugin, dist) in enumerate(getattr(manager, "_plugin_distinfo", ())):
        if isinstance(dist, Distribution):
            manager._plugin_distinfo[number] = (plugin, _known(dist))
        else:  # pluggy before 1.7 keeps its own wrapper
            dist._dist = _known(dist._dist)


def _known(dist: Distribution) -> KnownDistribution:
    known = KnownDistribution(dist)
    known.__dict__["metadata"] = dist.metadata
    return known


class _Probe(FixtureManager):
    """Notes the fixtures that `parsefactories` finds."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, ...]] = []
        self._holderobjseen: set[object] = set()

    def _register_fixture(self, *args: Any, **kwargs: Any) -> None:
        self.found.append((args, kwargs))


class KnownFixtures:
    """Fixtures of the modules and classes that are, or make, plugins."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def learn(self, plugins: Iterable[object]) -> None:
        """Scan those among `plugins` that are not known, and the classes of plugins that their modules define."""
        for plugin in plugins:
            self._scan(_holder(plugin))
            for value in list(vars(plugin).values()) if isinstance(plugin, ModuleType) else ():
                if isinstance(value, type) and any(name.startswith("pytest_") for name in dir(value)):
                    self._scan(value)

    def _scan(self, holder: Holder) -> None:
        if id(holder) in self._known:
            return
        only = ModuleType(holder.__name__)
        if isinstance(holder, ModuleType):
            vars(only).update((name, value) for name, value in vars(holder).items() if type(value) is Definition)
        if found_fixtures(holder) == found_fixtures(only) is not None:
            self._known[id(holder)] = _Known(holder, _attributes(holder), only)

    def use(self) -> None:
        """Have the sessions of this process know them."""

        def parsefactories(manager: FixtureManager, *args: Any, **kwargs: Any) -> None:
            if len(args) == 2:
                args = (self.short(args[0]), args[1])
            elif "holder" in kwargs:
                kwargs["holder"] = self.short(kwargs["holder"])
            _scan(manager, *args, **kwargs)

        FixtureManager.parsefactories = parsefactories  # type: ignore[method-assign,assignment]

    def short(self, plugin: object) -> object:
        """Return a module with the fixtures of a plugin and nothing else; the plugin itself if it is not known."""
        holder = _holder(plugin)
        known = self._known.get(id(holder))
        return known.only if known is not None and known.is_same(holder) else plugin


def _holder(plugin: object) -> Holder:
    """What has the fixtures of a plugin: pytest looks for them in the class of an object."""
    return plugin if isinstance(plugin, ModuleType | type) else type(plugin)


def _attributes(holder: Holder) -> list[Mapping[str, object]]:
    classes = holder.__mro__[:-1] if isinstance(holder, type) else (holder,)
    return [dict(vars(each)) for each in classes]


@dataclass(frozen=True, slots=True)
class _Known:
    holder: Holder
    attributes: list[Mapping[str, object]]
    only: ModuleType

    def is_same(self, holder: Holder) -> bool:
        """Whether nothing was set in `holder` since."""
        now = _attributes(holder)
        return len(now) == len(self.attributes) and all(
            len(new) == len(old) and all(old.get(name, MISSING) is value for name, value in new.items())
            for old, new in zip(self.attributes, now, strict=True)
        )


def found_fixtures(holder: object) -> list[tuple[Any, ...]] | None:
    """The fixtures that pytest finds in a plugin; None where it warns or fails."""
    probe = _Probe()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            if "holder" in inspect.signature(_scan).parameters:
                _scan(probe, holder=holder, node=None)  # type: ignore[call-overload]
            else:  # before pytest 9.1
                _scan(probe, holder, "")
        except Exception:  # whatever a plugin's attributes raise: pytest itself will see it
            return None
    return probe.found
