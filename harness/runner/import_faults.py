"""Faults that would stop a test file at its import, as far as its source shows them without importing anything.

A fault is a reason to import the file in a process of its own, which then says what is wrong: a module that is not
found here, or a `timeout` marker whose literal value is no number. A false alarm costs that one import.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec

from harness.runner.marker_values import UnknownValue

SKIPS_ITSELF = frozenset(("importorskip", "allow_module_level"))
"""Names in a file that may end its import before a module is missing."""


def check_faults(tree: ast.Module, base: str) -> None:
    """Raise UnknownValue for the first fault; `base` is the directory from which pytest imports the file."""
    if not any(_names_of(node) in SKIPS_ITSELF for node in ast.walk(tree)):
        for name, statement in _imported(tree):
            if not is_found(name, base):
                raise UnknownValue(f"no module {name} is found", statement)
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(ast.Attribute(attr="mark") | ast.Name("mark"), "timeout"), args, keywords):
                given = args[0] if args else next((each.value for each in keywords if each.arg == "timeout"), None)
                if isinstance(given, ast.Constant) and not _is_seconds(given.value):
                    raise UnknownValue(f"timeout marker: {given.value!r}", node)


def is_found(name: str, base: str, find: Callable[[str], object] = find_spec) -> bool:
    """Return whether a top-level module of this name is in `base`, or is found by this interpreter."""
    if name in sys.modules or name in sys.stdlib_module_names:
        return True
    try:
        return PathFinder.find_spec(name, [base]) is not None or find(name) is not None
    except Exception:  # of a finder that somebody has installed: the import shows what it does
        return False


def _imported(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the top-level modules that the file certainly imports, each with its statement."""
    for statement in tree.body:
        match statement:
            case ast.Import(names):
                yield from ((alias.name.partition(".")[0], statement) for alias in names)
            case ast.ImportFrom(str(module), level=0):
                yield module.partition(".")[0], statement


def _names_of(node: ast.AST) -> str:
    match node:
        case ast.Name(name) | ast.Attribute(attr=name) | ast.keyword(str(name)) | ast.alias(name):
            return name
    return ""


def _is_seconds(value: object) -> bool:
    """Whether the plugin takes this value of a `timeout` marker."""
    if not isinstance(value, str):
        return value is None or isinstance(value, (int, float))
    try:
        float(value)
    except ValueError:
        return False
    return True
