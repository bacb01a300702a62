"""Source lines of failed tests, from the text of a failure or from the definition of the test."""

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from harness.bits.files import open_regular
from harness.runner.units import file_of

MAX_SOURCE_BYTES = 1 << 24
_LOCATION = re.compile(r'^([^\s:"][^:\n]*):(\d+)(?::|$)|^[ E]*File "([^"\n]+)", line (\d+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of a file below the root of a repository."""

    file: str
    """Path relative to the root of the repository, with forward slashes."""
    line: int | None = None
    """Line number from 1; None if unknown."""


@dataclass(frozen=True, slots=True)
class SourceTree:
    """A repository and the working directory of pytest in it."""

    root: Path
    cwd: Path

    def locate(self, name: str, text: str = "") -> SourceLocation | None:
        """Return the line of a test or unit: the last line of its file in the text of its failure.

        If the text names no line of it: the first line of any file of the repository in the text, then the definition
        of the test, then its file. None for a unit that has no file in the repository.
        """
        path = file_of(name.partition("::")[0])
        named = [found for found in self._named(text) if found is not None]
        own = [found for found in named if _ends_with(found.file, path)]
        if own or named:
            return own[-1] if own else named[0]
        directories = (self.cwd, *self.cwd.parents)
        files = (self._below(directory / path) for directory in directories if directory.is_relative_to(self.root))
        file = next((file for file in files if file is not None), None)
        if file is None:
            return None
        return SourceLocation(file, _definition(self.root / file, name))

    def _named(self, text: str) -> Iterator[SourceLocation | None]:
        for match in _LOCATION.finditer(text):
            file = self._below(self.cwd / (match[1] or match[3]))
            yield SourceLocation(file, int(match[2] or match[4])) if file is not None else None

    def _below(self, path: Path) -> str | None:
        """Return the path of a file relative to the root; None if there is no such file below the root."""
        try:
            resolved, root = path.resolve(), self.root.resolve()
            if resolved.is_file() and resolved.is_relative_to(root):
                return resolved.relative_to(root).as_posix()
        except (OSError, ValueError, RuntimeError):  # too long, with a null character, a loop of links
            pass
        return None


def _ends_with(file: str, path: str) -> bool:
    parts = PurePath(path).parts
    return bool(parts) and PurePath(file).parts[-len(parts) :] == parts


def _definition(file: Path, nodeid: str) -> int | None:
    """Return the line that defines a test, or its class for an inherited test; None if there is no such line."""
    try:
        with open_regular(file, follows_links=True) as source, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the source are for those who run it
            body = ast.parse(source.read(MAX_SOURCE_BYTES)).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    line = None
    for name in nodeid.partition("::")[2].partition("[")[0].split("::"):
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found = [each for each in body if isinstance(each, definitions) and each.name == name]
        if not found:
            break
        line, body = found[-1].lineno, found[-1].body
    return line
