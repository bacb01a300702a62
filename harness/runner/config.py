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

    [[tool.rlharness.scenario]]  # as a file of a scenario, with a name
    name = "train"
    command = "python train.py --steps {steps}"
    config = { steps = 100 }

Patterns are those of .gitignore, against paths relative to the root directory. The last pattern that matches wins, for
the need and for the timeout each by itself; a need from here wins over markers. An absent key has the value None:
the command line's values override these, and these override its defaults.
"""

import difflib
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from annotated_types import Ge, Gt, MinLen

from harness.bits.errors import UsageError
from harness.bits.files import MAX_SETTINGS_BYTES, read_text
from harness.runner.need import Need, NeedRule, match_spec

Seconds = Annotated[float, Gt(0), "seconds, above 0"]
SecondsOrZero = Annotated[float, Ge(0), "seconds, 0 or more"]
Count = Annotated[int, Ge(1), "a whole number, 1 or more"]
CountOrZero = Annotated[int, Ge(0), "a whole number, 0 or more"]
Flag = Annotated[bool, "true or false"]
Names = Annotated[list[str], 'a list of names, such as ["a", "b"]']
Capability = Annotated[float | str | list[int], "9.0, '9.0' or [9, 0]"]
Isolation = Annotated[Literal["file", "test", "interpreter"], "'file', 'test' or 'interpreter'"]
"""Each type with its check and, for people, what is legal."""


@dataclass(frozen=True)
class Keys:
    """The keys of `[tool.rlharness]` that are no tables; see `rlharness run --help` for each."""

    timeout_s: Seconds | None = None
    grace_s: SecondsOrZero | None = None
    slow_s: SecondsOrZero | None = None
    wait_s: SecondsOrZero | None = None
    collect_timeout_s: Seconds | None = None
    cpu_units: Count | None = None
    isolate: Isolation | None = None
    check_leaning: Flag | None = None
    """Run a failing file once more, after the files before it."""
    leaning: Annotated[Literal["fail", "report"], "'fail' or 'report'"] | None = None
    """Whether a leaning file makes the run fail, or is only reported."""
    maxfail: CountOrZero | None = None
    retries: CountOrZero | None = None
    allow_missing_gpus: Flag | None = None
    mix_models: Flag | None = None
    split: Flag | None = None
    device_ids: Annotated[Literal["uuid", "number"], "'uuid' or 'number'"] | None = None
    results_dir: Annotated[str, MinLen(1), "a directory, relative to the configuration"] | None = None
    """Directory in which `.rlharness` is made."""
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
    timeout_s: Seconds | None = None


@dataclass(frozen=True)
class NeedEntry:
    """The keys of one entry of the table of needs."""

    gpus: CountOrZero | None = None
    memory_gb: Annotated[float, Ge(0), "GB per GPU, 0 or more"] = 0.0
    model: Annotated[str, MinLen(1), "a part of the GPU's name, such as 'H100'"] | None = None
    min_capability: Capability | None = None
    exclusive: Flag = False
    shared: Flag = False
    timeout_s: Seconds | None = None


@dataclass(frozen=True)
class Config(Keys):
    """A checked configuration."""

    needs: tuple[NeedRule, ...] = ()
    gate: GateKeys = GateKeys()
    scenarios: tuple[dict[str, Any], ...] = ()
    """The tables `[[tool.rlharness.scenario]]`, as they stand there."""
    path: Path | None = None
    """The file it was read from; None where there is none."""


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


def load_config_for(paths: Sequence[Path], cwd: Path) -> Config:
    """The configuration for a command over `paths`, as pytest finds its own: that of their common directory, else that
    of the paths themselves, else that of `cwd`.

    Raises UsageError where two paths have different configurations and their common directory has none.
    """
    directories = [path if path.is_dir() else path.parent for path in paths if path.exists()]
    if not directories:
        return load_config(cwd)
    config = load_config(Path(os.path.commonpath(directories)))
    if config.path is not None:
        return config
    found = [(path, each) for path in directories if (each := load_config(path)).path is not None]
    for path, other in found[1:]:
        if other.path != found[0][1].path:
            raise UsageError(
                f"{found[0][0]} is configured by {found[0][1].path}, but {path} by {other.path}",
                legal="paths of one project, or a configuration above all of them",
                remedy="run each project by itself",
            )
    return found[0][1] if found else load_config(cwd)


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


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path, max_bytes=MAX_SETTINGS_BYTES, follows_links=True))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", remedy="name a readable file") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}", remedy="correct the file") from None


def _config(table: Any, path: Path) -> Config:
    where = f"{path}: [tool.rlharness]"
    if not isinstance(table, dict):
        raise UsageError(f"{where} is {table!r}", legal="a table", remedy="write [tool.rlharness] on a line of its own")
    rest = dict(table)
    rules = _rules(rest.pop("needs", {}), f"{where}.needs")
    gate = _gate(rest.pop("gate", {}), f"{path}: [tool.rlharness.gate]")
    scenarios = rest.pop("scenario", [])
    if not isinstance(scenarios, list) or not all(isinstance(each, dict) and each.get("name") for each in scenarios):
        raise UsageError(
            f"{where} scenario is {scenarios!r:.100}",
            legal="tables [[tool.rlharness.scenario]], each with a name",
            remedy='write name = "train" and command = "python train.py" below [[tool.rlharness.scenario]]',
        )
    keys = checked_table(Keys, rest, where, more_keys=("needs", "gate", "scenario"))
    given = {each.name: getattr(keys, each.name) for each in fields(keys)}
    return Config(**given, needs=rules, gate=gate, scenarios=tuple(scenarios), path=path)


def _gate(table: Any, where: str) -> GateKeys:
    if not isinstance(table, dict):
        raise UsageError(f"{where} is {table!r}", legal="a table", remedy='write scenarios = ["name"] below it')
    return checked_table(GateKeys, table, where)


def _rules(table: Any, where: str) -> tuple[NeedRule, ...]:
    if not isinstance(table, dict):
        raise UsageError(f"{where} is {table!r}", legal="a table of patterns", remedy='write "tests/gpu/**" = 2')
    return tuple(_rule(glob, entry, f"{where}: {glob!r}") for glob, entry in table.items())


def _rule(glob: str, entry: Any, where: str) -> NeedRule:
    if match_spec(glob).patterns[0].include is not True:
        raise UsageError(f"{where} matches nothing", legal="a pattern as in .gitignore, without '!' and '#'")
    checked = checked_table(NeedEntry, entry if isinstance(entry, dict) else {"gpus": entry}, where)
    return NeedRule(glob, _need(checked, where), checked.timeout_s)


def _need(checked: NeedEntry, where: str) -> Need | None:
    """Return the need of an entry, which has the rules of a marker; None where it has none."""
    given = {name: value for name, value in vars(checked).items() if value and name not in ("gpus", "timeout_s")}
    if not given.keys() - {"exclusive"}:
        is_none = checked.gpus is None and not checked.exclusive
        return None if is_none else Need(gpus=checked.gpus or 0, exclusive=checked.exclusive)
    from harness.plugin import MarkError, need_of_mark  # late: it imports pytest

    try:
        return Need.from_json(need_of_mark((checked.gpus or 0,), given))
    except MarkError as error:
        what, _, legal = str(error).partition("; legal: ")
        raise UsageError(f"{where} {what}", legal=legal) from None


T = TypeVar("T")


def _spelt(name: str) -> str:
    """The key of a field: `collect-timeout` for `collect_timeout_s`."""
    return name.removesuffix("_s").removesuffix("_").replace("_", "-")


def keys_of(table: type[Any]) -> dict[str, tuple[Any, str]]:
    """Return, by the key of each field of a table, its type without None, and what is legal in words."""
    hints = get_type_hints(table, include_extras=True)
    return {_spelt(name): (_given(hint), legal_of(hint)) for name, hint in hints.items()}


def checked_table(table: type[T], given: dict[str, Any], where: str, more_keys: tuple[str, ...] = ()) -> T:
    """A `table` (a dataclass) of the values `given` under its keys; `more_keys` are legal here but read elsewhere."""
    if not given:  # pydantic takes 0.1 s to import
        return table()
    from pydantic import TypeAdapter, ValidationError

    hints = {_spelt(name): (name, hint) for name, hint in get_type_hints(table, include_extras=True).items()}
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in hints:
            keys = sorted([*more_keys, *hints])
            near = _nearest(key, keys)
            remedy = f"did you mean {near!r}?" if near else f"remove {key}"
            raise UsageError(f"{where} has no key {key!r}", legal=", ".join(keys), remedy=remedy)
        name, hint = hints[key]
        try:
            values[name] = TypeAdapter(hint, config={"strict": True, "allow_inf_nan": False}).validate_python(value)
        except ValidationError:
            raise UsageError(f"{where} {key} = {value!r}", legal=legal_of(hint), remedy=f"change {key}") from None
    return table(**values)


def _nearest(key: str, keys: list[str]) -> str:
    """Return the key that was most likely meant: one that begins like it, else a similar one; empty without any."""
    spelt = key.replace("_", "-")
    begins = [each for each in keys if each.startswith(spelt)]
    return next(iter(begins or difflib.get_close_matches(spelt, keys, n=1)), "")


def _given(hint: Any) -> Any:
    """Return the type of a value that is given: an optional type without its None."""
    rest = [each for each in get_args(hint) if each is not NoneType]
    return rest[0] if NoneType in get_args(hint) else hint


def legal_of(hint: Any) -> str:
    """The text for people in a field's type: of the type itself, or of the one it is optional of."""
    return next(
        text for each in (hint, *get_args(hint)) for text in getattr(each, "__metadata__", ()) if type(text) is str
    )
