"""Read the need of a test file from its source, without importing it.

A literal `gpus` marker is understood wherever pytest takes one: as a decorator of a function or a class, in
`pytestmark`, in the `marks` of a `pytest.param`, under another name, with constants of the module as arguments.
Whatever else there is (a computed argument, a condition, a helper that applies the marker, a module of the suite that
uses it and is imported here) cannot be read so: the answer says why, and the file has to be imported.

A file without the word needs nothing; a file that skips itself while it is imported counts with the need that it
would have. What this cannot see, a marker that reaches the file through two imports, or is made by an installed plugin
at run time, shows after the real run, which compares the plan with the markers.
"""

import ast
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.plugin import NOTHING, NeedJson
from harness.runner.declarations import Patterns
from harness.runner.declared_tests import declared_needs, when_imported
from harness.runner.import_faults import check_faults
from harness.runner.marker_values import UnknownValue, mentions

TEXT = b"gpus"
UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True, slots=True)
class StaticNeed:
    """The need read from the source; or None, and the reason why the file has to be imported."""

    need: NeedJson | None
    why_import: str = ""
    by_test: Mapping[str, NeedJson] = field(default_factory=dict)
    """Need of each test, by its name; empty if no test has one."""


class StaticNeeds:
    """Reads the files of one suite; remembers what it learns about modules they share."""

    def __init__(self, patterns: Patterns, search_path: Sequence[str]) -> None:
        self._patterns = patterns
        self._search_path = list(search_path)
        self._mentioning: dict[str, bool] = {}
        self._origins: dict[tuple[str, str], str | None] = {}

    def of_file(self, path: Path, *, finds_faults: bool = False) -> StaticNeed:
        """The need of the test file `path`, an existing Python file.

        With `finds_faults`, a file that probably cannot be imported has to be imported, whatever its need.
        """
        try:
            source = path.read_bytes()
            tree = _parsed(source)
            need, by_test = declared_needs(tree, self._patterns) if TEXT in source else (NOTHING, {})
            self._check_imports(tree, path)
            if finds_faults:
                check_faults(tree, str(import_base(path)))
        except UnknownValue as error:
            return StaticNeed(None, str(error))
        except UNREADABLE as error:
            return StaticNeed(None, f"it cannot be read: {error}")
        return StaticNeed(need, by_test=by_test)

    def uses_marker(self, path: str) -> bool:
        """Whether the Python file `path` mentions the marker at all; a file that cannot be read may."""
        if path not in self._mentioning:
            try:
                source = Path(path).read_bytes()
                self._mentioning[path] = TEXT in source and any(mentions(_parsed(source)))
            except UNREADABLE:
                self._mentioning[path] = True
        return self._mentioning[path]

    def _check_imports(self, tree: ast.Module, path: Path) -> None:
        base = str(import_base(path))
        for node in when_imported(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for origin in self._imported(node, path, base):
                    if self.uses_marker(origin):
                        raise UnknownValue(f"it imports {Path(origin).name}, which uses the gpus marker", node)

    def _imported(self, node: ast.Import | ast.ImportFrom, path: Path, base: str) -> Iterator[str]:
        """Files of the modules that `node` imports; neither the standard library's nor compiled ones."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._found(alias.name, base)
        elif node.level:
            package = path.parents[node.level - 1] if node.level <= len(path.parents) else path.parent
            for name in [node.module] if node.module else [alias.name for alias in node.names]:
                yield from self._found(name, str(package))
        elif node.module:
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                yield from self._found(name, base)

    def _found(self, name: str, base: str) -> Iterator[str]:
        if name.partition(".")[0] not in sys.stdlib_module_names:
            origin = self._origin(name, base) or self._searched(name)
            yield from [origin] if origin else []

    def _searched(self, name: str) -> str | None:
        origins = (self._origin(name, directory) for directory in self._search_path)
        return next((origin for origin in origins if origin), None)

    def _origin(self, name: str, directory: str) -> str | None:
        """The source file of module `name` below `directory`, by its path alone: nothing is imported on the way."""
        if (name, directory) not in self._origins:
            module = os.path.join(directory, *name.split("."))
            candidates = (os.path.join(module, "__init__.py"), f"{module}.py")
            self._origins[name, directory] = next(filter(os.path.isfile, candidates), None)
        return self._origins[name, directory]


def import_base(path: Path) -> Path:
    """The directory from which pytest imports `path`: the first one above it that is no package."""
    directory = path.parent
    while (directory / "__init__.py").exists() and directory.parent != directory:
        directory = directory.parent
    return directory


def _parsed(source: bytes) -> ast.Module:
    with warnings.catch_warnings():  # those of compiling are for whoever runs the file
        warnings.simplefilter("ignore")
        return ast.parse(source)
