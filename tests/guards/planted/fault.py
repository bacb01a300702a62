"""Planted faults: rows of faults.yaml, each a text of the engine and what stands there instead, and how they get there.

An old text occurs exactly once in its file. Lines after its first have their indentation relative to that one's.
Only bodies of functions may change: a running function is given the code of the changed source, for as long as a run
takes, so that whoever has imported it calls the changed one, and no process has to start for a fault.

In a new text FAULT is the run's `Deeds`.
"""

import difflib
import importlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import yaml

import rlcore
from harness.trace.format import PHASES

RESUME = "resume"
"""Where a fault lies that is no phase's: between the checkpoint and the first step after it."""
LEVEL = "level"
"""The same: what the whole process is told about arithmetic."""
PLACES = (*PHASES, RESUME, LEVEL)
ROWS = Path(__file__).with_name("faults.yaml")
ROOT = Path(rlcore.__file__).resolve().parents[1]
"""Of the engine that runs here."""
OPTIMIZED = 0x1
"""Flag of the code of a function; that of a class or a module has not got it."""


class StaleError(Exception):
    """A row that does not fit the engine as it is."""


@dataclass(slots=True)
class Deeds:
    """What the changed texts of one run know of it, and keep from call to call."""

    step: int | None = None
    """The step that has begun, or the next one; None before the first, and in processes that train with others."""
    held: dict[Any, Any] = field(default_factory=dict)
    is_reached: bool = False
    """Whether a text has said that it ran: those say it that nothing may find."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    name: str
    source: str
    """The thread it was reported in, or the program it was seen in."""
    about: str
    """What is done wrongly, in a line."""
    finder: str
    """What found it first when it was frozen: engine, replay, chaos or gate; `nothing` for one that moves no bit.

    Empty for a row that is no fault, and helps another to be seen.
    """
    phases: tuple[str, ...]
    """Where a right localisation points: phases of a trace, or `resume`."""
    edits: tuple[Mapping[str, str], ...]
    """Each `in` a file, `old` and `new`."""
    setting: str = "grpo"
    """Of the tiny scenario it is tried in: one in which it makes a difference."""
    leaves: tuple[str, ...] = ()
    """Parts of names of values, one of which has to be named where a value is; any of the phase will do without."""
    is_in_ranks: bool = False
    """Whether it lies in processes that train together: it is then tried in two of them too."""
    is_harmless: bool = False
    """Whether no bit of a run depends on it: right is then that nothing is found."""


def read_rows() -> dict[str, Fault]:
    """Read all faults, by name, in the order of the file."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows = yaml.load(ROWS.read_text("utf-8"), loader)
    lists = ("phases", "edits", "leaves")
    return {
        name: Fault(name, **{**row, **{key: tuple(row[key]) for key in lists if key in row}})
        for name, row in rows.items()
    }


_ROWS = read_rows()
FAULTS = tuple(fault for fault in _ROWS.values() if fault.finder)


def named(name: str) -> Fault:
    """The fault of a name; KeyError, with the nearest names, where there is none."""
    if name not in _ROWS:
        near = ", ".join(difflib.get_close_matches(name, _ROWS, n=3, cutoff=0.4))
        raise KeyError(f"no fault {name!r}" + (f"; did you mean {near}?" if near else ""))
    return _ROWS[name]


@contextmanager
def planted(fault: Fault, deeds: Deeds) -> Iterator[None]:
    """Put a fault into this process for as long as the context lasts; raises StaleError for a row that does not fit."""
    before: list[tuple[FunctionType, CodeType]] = []
    modules = []
    try:
        for file, functions in changes(fault).items():
            modules.append(importlib.import_module(file.removesuffix(".py").replace("/", ".")))
            vars(modules[-1])["FAULT"] = deeds
            for path, code in functions.items():
                function = _running(modules[-1], path)
                before.append((function, function.__code__))
                function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code
        for module in modules:
            vars(module).pop("FAULT", None)


def changes(fault: Fault) -> dict[str, dict[str, CodeType]]:
    """Return the code of the functions that a fault changes, by file and by qualified name.

    Raises StaleError for a file or a text that is not there once, and for a change outside of the body of a function.
    """
    texts: dict[str, str] = {}
    for edit in fault.edits:
        file = edit["in"]
        if not (ROOT / file).is_file():
            raise StaleError(f"{fault.name}: there is no {file}")
        texts[file] = _edited(texts.get(file) or _text(file), edit, fault.name)
    found = {}
    for file, text in texts.items():
        try:
            before, after = _functions(_compiled(file)), _functions(compile(text, str(ROOT / file), "exec"))
        except SyntaxError as error:
            raise StaleError(f"{fault.name}: {file} is no Python any more: {error}") from error
        changed = {path: code for path, code in after.items() if _shape(code) != _shape(before.get(path))}
        if before.keys() != after.keys() or "" in changed or not changed:
            raise StaleError(f"{fault.name}: {file} changes elsewhere than in bodies of functions, or not at all")
        if any(code.co_freevars != before[path].co_freevars for path, code in changed.items()):
            raise StaleError(f"{fault.name}: {file}: a function has other variables of the one around it")
        found[file] = changed
    return found


@cache
def _text(file: str) -> str:
    return (ROOT / file).read_text("utf-8")


@cache
def _compiled(file: str) -> CodeType:
    return compile(_text(file), str(ROOT / file), "exec")


def _edited(text: str, edit: Mapping[str, str], name: str) -> str:
    """A text with one edit."""
    first, *_ = edit["old"].splitlines()
    found = []
    for match in re.finditer(re.escape(first), text):
        line = text[text.rfind("\n", 0, match.start()) + 1 :]
        indent = "\n" + line[: len(line) - len(line.lstrip(" "))]
        old, new = (re.sub(r"\n(?=[^\n])", indent, edit[key]) for key in ("old", "new"))
        if text.startswith(old, match.start()):
            found.append(text[: match.start()] + new + text[match.start() + len(old) :])
    if len(found) != 1:
        raise StaleError(f"{name}: its text is {len(found)} times in {edit['in']}: {first}")
    return found[0]


def _functions(code: CodeType, path: str = "") -> dict[str, CodeType]:
    """The code of a module at "" and those of its functions and of its classes' functions, by qualified name."""
    found = {path: code}
    for each in code.co_consts:
        if isinstance(each, CodeType) and not each.co_name.startswith("<"):
            found |= {each.co_qualname: each} if each.co_flags & OPTIMIZED else _functions(each, each.co_qualname)
    return found


def _shape(code: CodeType | None) -> Any:
    """What of a code makes a difference: not its lines. Functions in a module or a class are compared by themselves."""
    if code is None:
        return None
    is_function = code.co_flags & OPTIMIZED
    consts = [
        (_shape(each) if is_function or each.co_name.startswith("<") else each.co_qualname)
        if isinstance(each, CodeType)
        else repr(each)
        for each in code.co_consts
    ]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, consts


def _running(module: ModuleType, path: str) -> FunctionType:
    """The function of a qualified name, under whatever decorates it."""
    owner: Any = module
    for part in path.split("."):
        owner = vars(owner)[part]
    while not isinstance(owner, FunctionType):
        owner = next(
            getattr(owner, name) for name in ("__wrapped__", "__func__", "fget", "func") if hasattr(owner, name)
        )
    while hasattr(owner, "__wrapped__"):
        owner = owner.__wrapped__
    return owner  # type: ignore[no-any-return]
