"""The configuration: `[tool.rlharness]` of pyproject.toml, and the file given by `--needs`.

    [tool.rlharness]
    timeout = 1200
    allow-missing-gpus = true

    [tool.rlharness.gate]
    scenarios = ["grpo_tiny"]
    fail-on = ["behaviour", "slowdown"]

    [tool.rlharness.needs]
    "tests/gpu/**" = 2
    "*_on_8_gpus.py" = { gpus = 8, memory-gb = 80, min-capability = 9.0, timeout = 3600 }
    "tests/slow/" = { timeout = 7200 }

Patterns are those of .gitignore, against paths relative to the root directory. The last pattern that matches wins, for
the need and for the timeout each by itself; a need from here wins over markers. An absent key has the value None:
the command line's values override these, and these override its defaults.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib.machinery import PathFinder
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from annotated_types import Ge, Gt, MinLen

from harness.core.errors import UsageError
from harness.core.need import Need

if TYPE_CHECKING:
    from pathspec import PathSpec

T = TypeVar("T")
MAX_SEARCHED = 20_000
"""Files among which a pattern of the needs table is looked for."""


def _spelt(name: str) -> str:
    """The key of a field: `collect-timeout` for `collect_timeout_s`."""
    return name.removesuffix("_s").replace("_", "-")


Seconds = Annotated[float, Gt(0), "seconds, above 0"]
SecondsOrZero = Annotated[float, Ge(0), "seconds, 0 or more"]
Count = Annotated[int, Ge(1), "a whole number, 1 or more"]
CountOrZero = Annotated[int, Ge(0), "a whole number, 0 or more"]
Flag = Annotated[bool, "true or false"]
Ratio = Annotated[float, Gt(1), "a ratio above 1, such as 1.25"]
Names = Annotated[list[str], 'a list of names, such as ["a", "b"]']
Capability = Annotated[float | str | list[int], "9.0, '9.0' or [9, 0]"]
"""Each type with its check and, for people, what is legal."""


@dataclass(frozen=True)
class Keys:
    """The keys of `[tool.rlharness]` but for `needs`; see `rlharness run --help` for what each does."""

    timeout_s: Seconds | None = None
    grace_s: SecondsOrZero | None = None
    slow_s: SecondsOrZero | None = None
    collect_timeout_s: Seconds | None = None
    cpu_units: Count | None = None
    isolate: Annotated[Literal["file", "interpreter"], "'file' or 'interpreter'"] | None = None
    preload: Names | None = None
    """Modules to import for all files, before those that are found to be imported by several."""
    maxfail: CountOrZero | None = None
    allow_missing_gpus: Flag | None = None
    mix_models: Flag | None = None
    device_ids: Annotated[Literal["uuid", "number"], "'uuid' or 'number'"] | None = None
    history_free: Flag | None = None
    """Neither read nor keep how long files take."""


@dataclass(frozen=True)
class GateKeys:
    """The keys of `[tool.rlharness.gate]`; see `rlharness gate --help` for what each does."""

    scenarios: Names | None = None
    """Scenarios that it runs; with None, all of the project."""
    size: Annotated[str, MinLen(1), "the name of a size"] | None = None
    runs: Count | None = None
    golden: Annotated[str, MinLen(1), "a directory"] | None = None
    fail_on: Names | None = None
    slowdown: Ratio | None = None
    memory: Ratio | None = None
    timeout_s: Seconds | None = None


@dataclass(frozen=True)
class NeedEntry:
    """The keys of one entry of the table of needs."""

    gpus: CountOrZero | None = None
    memory_gb: Annotated[float, Ge(0), "GB per GPU, 0 or more"] = 0.0
    model: Annotated[str, MinLen(1), "a part of the GPU's name, such as 'H100'"] | None = None
    min_capability: Capability | None = None
    exclusive: Flag = False
    timeout_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class NeedRule:
    """Need of the files that match a pattern."""

    glob: str
    need: Need | None
    """None where the entry sets a timeout only."""
    timeout_s: float | None = None


@dataclass(frozen=True)
class Config(Keys):
    """A checked configuration."""

    needs: tuple[NeedRule, ...] = ()
    gate: GateKeys = GateKeys()
    path: Path | None = None
    """The file it was read from; None where there is none."""


class NeedsTable:
    """The rules of the configuration and of `--needs`, ready to be asked about files."""

    def __init__(self, rules: Iterable[NeedRule]) -> None:
        self._last_first = [(rule, _pattern(rule.glob)) for rule in rules][::-1]

    def need(self, path: str) -> Need | None:
        """Return the need of the last matching rule with one for `path`, relative to the root directory; else None."""
        return next((rule.need for rule, spec in self._last_first if rule.need and spec.match_file(path)), None)

    def timeout_s(self, path: str) -> float | None:
        """The time limit that the last matching rule with a timeout sets; None for none."""
        return next(
            (rule.timeout_s for rule, spec in self._last_first if rule.timeout_s and spec.match_file(path)), None
        )

    def idle(self, paths: Sequence[str]) -> list[str]:
        """Patterns that match none of `paths`: most likely misspelt."""
        return [rule.glob for rule, spec in self._last_first if not any(spec.match_file(path) for path in paths)][::-1]

    def idle_below(self, root: Path, paths: Sequence[str]) -> list[str]:
        """Patterns that match none of `paths` and no other file below `root`; empty for a tree too large to search."""
        idle = set(self.idle(paths))
        if not idle:
            return []
        for number, path in enumerate(_files_below(root)):
            if number == MAX_SEARCHED:
                return []
            idle -= {rule.glob for rule, spec in self._last_first if rule.glob in idle and spec.match_file(path)}
        return [rule.glob for rule, _ in self._last_first if rule.glob in idle][::-1]


def _files_below(root: Path) -> Iterator[str]:
    """Yield the files below a directory, relative to it, without those of hidden directories."""
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".") and name != "__pycache__"]
        yield from (os.path.relpath(os.path.join(directory, name), root) for name in files)


def load_config(start: Path) -> Config:
    """The configuration for `start`: of the nearest pyproject.toml in it or above it that has `[tool.rlharness]`.

    Raises UsageError for a file that is no TOML, an unknown key or a value that is not legal.
    """
    for directory in (start.absolute(), *start.absolute().parents):
        path = directory / "pyproject.toml"
        if path.is_file():
            tools = _toml(path).get("tool")
            if isinstance(tools, dict) and "rlharness" in tools:
                return _config(tools["rlharness"], path)
    return Config()


def keys_of(table: type[Any]) -> dict[str, tuple[Any, str]]:
    """Return, by the key of each field of a table, its type without None, and what is legal in words."""
    hints = get_type_hints(table, include_extras=True)
    return {_spelt(name): (_given(hint), _legal(hint)) for name, hint in hints.items()}


def load_needs_file(path: Path) -> tuple[NeedRule, ...]:
    """The rules of a file given by `--needs`: TOML whose top level is the table of patterns.

    Raises UsageError for a file that cannot be read, and for what `load_config` refuses in such a table.
    """
    table = _toml(path)
    if isinstance(table.get("tool"), dict):
        raise UsageError(
            f"{path} has [tool.…] tables",
            legal='patterns at the top level of the file, such as "tests/gpu/**" = 2',
            remedy="remove the line [tool.rlharness.needs]",
        )
    return _rules(table, str(path))


def shadowing(cwd: Path) -> str:
    """The path of another top-level `harness` in `cwd`, which `python -m` imports first; empty where there is none."""
    spec = PathFinder.find_spec("harness", [str(cwd)])
    if spec is None or spec.origin is None:  # a directory without __init__.py gives way to a package
        return ""
    return "" if Path(spec.origin).resolve().parent == Path(__file__).resolve().parents[1] else spec.origin


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", remedy="name a readable file") from None
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}", remedy="correct the file") from None


def _config(table: Any, path: Path) -> Config:
    where = f"{path}: [tool.rlharness]"
    if not isinstance(table, dict):
        raise UsageError(f"{where} is {table!r}", legal="a table", remedy="write [tool.rlharness] on a line of its own")
    rest = dict(table)
    rules = _rules(rest.pop("needs", {}), f"{where}.needs")
    gate = _gate(rest.pop("gate", {}), f"{path}: [tool.rlharness.gate]")
    keys = _checked(Keys, rest, where, more_keys=("needs", "gate"))
    return Config(**{each.name: getattr(keys, each.name) for each in fields(keys)}, needs=rules, gate=gate, path=path)


def _gate(table: Any, where: str) -> GateKeys:
    if not isinstance(table, dict):
        raise UsageError(f"{where} is {table!r}", legal="a table", remedy='write scenarios = ["name"] below it')
    return _checked(GateKeys, table, where)


def _rules(table: Any, where: str) -> tuple[NeedRule, ...]:
    if not isinstance(table, dict):
        raise UsageError(f"{where} is {table!r}", legal="a table of patterns", remedy='write "tests/gpu/**" = 2')
    return tuple(_rule(glob, entry, f"{where}: {glob!r}") for glob, entry in table.items())


def _rule(glob: str, entry: Any, where: str) -> NeedRule:
    if _pattern(glob).patterns[0].include is not True:
        raise UsageError(f"{where} matches nothing", legal="a pattern as in .gitignore, without '!' and '#'")
    given = entry if isinstance(entry, dict) else {"gpus": entry}
    checked = _checked(NeedEntry, given, where)
    of_gpus = checked.memory_gb or checked.model or checked.min_capability
    if of_gpus and not checked.gpus:
        raise UsageError(
            f"{where} describes GPUs but requests 0 of them",
            legal="gpus = 1 or more if memory-gb, model or min-capability is given",
            remedy="add gpus = 1",
        )
    need = None
    if checked.gpus is not None or checked.exclusive:
        need = Need(
            gpus=checked.gpus or 0,
            memory_gb=checked.memory_gb,
            model=checked.model,
            min_capability=_capability(checked.min_capability, where),
            exclusive=checked.exclusive,
        )
    return NeedRule(glob, need, checked.timeout_s)


def _capability(value: Any, where: str) -> tuple[int, int] | None:
    if value is None:
        return None
    from harness.plugin import MarkError, capability

    try:
        major, minor = capability(value) or (0, 0)
    except MarkError:
        raise UsageError(f"{where} min-capability = {value!r}", legal=_legal(Capability)) from None
    return major, minor


def _checked(table: type[T], given: dict[str, Any], where: str, more_keys: tuple[str, ...] = ()) -> T:
    """A `table` (a dataclass) of the values `given` under its keys; `more_keys` are legal here but read elsewhere."""
    from pydantic import TypeAdapter, ValidationError

    hints = {_spelt(name): (name, hint) for name, hint in get_type_hints(table, include_extras=True).items()}
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in hints:
            keys = sorted([*more_keys, *hints])
            near = difflib.get_close_matches(key, keys, n=1, cutoff=0.0)[0]
            raise UsageError(f"{where} has no key {key!r}", legal=", ".join(keys), remedy=f"did you mean {near!r}?")
        name, hint = hints[key]
        try:
            values[name] = TypeAdapter(hint, config={"strict": True, "allow_inf_nan": False}).validate_python(value)
        except ValidationError:
            raise UsageError(f"{where} {key} = {value!r}", legal=_legal(hint), remedy=f"change {key}") from None
    return table(**values)


def _given(hint: Any) -> Any:
    """Return the type of a value that is given: an optional type without its None."""
    rest = [each for each in get_args(hint) if each is not NoneType]
    return rest[0] if NoneType in get_args(hint) else hint


def _legal(hint: Any) -> str:
    """The text for people in a field's type: of the type itself, or of the one it is optional of."""
    return next(
        text for each in (hint, *get_args(hint)) for text in getattr(each, "__metadata__", ()) if type(text) is str
    )


def _pattern(glob: str) -> "PathSpec[Any]":
    from pathspec import PathSpec

    return PathSpec.from_lines("gitignore", [glob])
