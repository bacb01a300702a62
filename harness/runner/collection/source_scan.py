"""Decide from its text whether a test file has to be imported for the plan, and digest what decides its tests.

A file needs 0 GPUs, and nothing of it is imported, if no text that may mark its tests mentions `gpus`: its own, that of
the plugins and conftest files that apply to it, and that of the suite's own modules that any of these import, directly
or through others. A mention is the word `gpus` in a file that also says `pytest` or `marker`; the option `--gpus` is
none. A false alarm costs one import; a marker that this rule does not see shows after the run, which compares the plan
with the markers.

Also imported are files that fail at import for a reason that the text shows. Nothing is imported here.
"""

import ast
import hashlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from harness.bits.files import read_regular

WORD = re.compile(rb"(?<!-)\bgpus\b")
MARKING = re.compile(rb"pytest|marker")
IMPORTS = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+import\b[ \t]*(\([^)]*\)|(?:\\\n|[^\n])*)|import[ \t]+((?:\\\n|[^\n])*))",
    re.MULTILINE,
)
COMMENT = re.compile(r"#[^\n]*")
BAD_TIMEOUT = re.compile(rb"""\bmark\.timeout\(\s*(?:timeout\s*=\s*)?["']""")
SKIPS_ITSELF = re.compile(rb"importorskip|allow_module_level")
"""What may end the import of a file before a module is missing."""
INSTALLED = ("site-packages", "dist-packages")
OURSELVES = __name__.partition(".")[0]
UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)

Imported = tuple[int, str, tuple[str, ...]]
"""Level, module and names of `from module import names`; without names for `import module`."""


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """Facts from the text of one test file and of its dependencies."""

    why_import: str
    """Why the file has to be imported for its need; empty if it needs no GPU."""
    digest: str
    """Digest of every text that decides which tests the file has and what they need."""


@dataclass(frozen=True, slots=True)
class _Source:
    digest: bytes
    mentions: bool
    imports: tuple[Imported, ...]


class SourceScan:
    """Scans the files of one suite; remembers the modules that they share."""

    def __init__(self, rootdir: Path, search_path: Sequence[str], fixed: bytes = b"") -> None:
        """`fixed` holds the inputs that decide all files' tests: versions, the configuration of pytest."""
        self._rootdir = str(rootdir)
        self._search_path = [os.path.abspath(each) for each in search_path]
        self._fixed = fixed
        self._sources: dict[str, _Source] = {}
        self._imported: dict[str, tuple[str, ...]] = {}
        self._closures: dict[str, frozenset[str]] = {}
        self._found: dict[tuple[str, str], str | None] = {}
        self._bases: dict[str, str] = {}

    def of_file(self, path: Path, applied: Sequence[Path] = ()) -> ScannedFile:
        """Scan the test file `path`, to which the plugins and conftest files `applied` apply."""
        roots = [str(path), *sorted(map(str, applied))]
        reached = sorted(frozenset().union(*map(self._closure, roots)) - {*roots})
        digest = hashlib.blake2b(self._fixed, digest_size=16)
        for each in (*roots, *reached):
            digest.update(os.fsencode(each) + b"\0" + self._source(each).digest)
        mentioning = next((each for each in (*roots, *reached) if self._source(each).mentions), None)
        if mentioning is not None:
            name = "it" if mentioning == str(path) else os.path.relpath(mentioning, self._rootdir)
            return ScannedFile(f"{name} mentions gpus", digest.hexdigest())
        return ScannedFile(self._fault(path) if path.suffix == ".py" else "", digest.hexdigest())

    def _source(self, path: str) -> _Source:
        if path not in self._sources:
            try:
                source = read_regular(path, follows_links=True)
            except OSError:  # it is imported, since its text is unknown
                self._sources[path] = _Source(b"", True, ())
            else:
                mentions = bool(WORD.search(source) and MARKING.search(source))
                imports = tuple(_imports(source)) if path.endswith(".py") else ()
                self._sources[path] = _Source(hashlib.blake2b(source, digest_size=16).digest(), mentions, imports)
        return self._sources[path]

    def _closure(self, path: str) -> frozenset[str]:
        """Return the file and the suite's own modules that importing it imports."""
        if path not in self._closures:
            reached, waiting = {path}, [path]
            while waiting:
                found = self._imports_of(waiting.pop())
                waiting += [each for each in found if each not in reached]
                reached.update(found)
            self._closures[path] = frozenset(reached)
        return self._closures[path]

    def _imports_of(self, path: str) -> tuple[str, ...]:
        """Return the files of the suite's own modules that the text of `path` imports."""
        if path not in self._imported:
            directory = os.path.dirname(path)
            base = self._base(directory)
            found = [os.path.join(each, "__init__.py") for each in _between(base, directory)]
            for level, module, names in self._source(path).imports:
                start = directory
                for _ in range(level - 1):
                    start = os.path.dirname(start)
                prefix = f"{module}." if module else ""
                for name in ([module] if module else []) + [prefix + each for each in names]:
                    found += self._modules(name, start) if level else self._absolute(name, base)
            self._imported[path] = tuple(dict.fromkeys(each for each in found if each != path))
        return self._imported[path]

    def _absolute(self, name: str, base: str) -> Iterator[str]:
        """Yield the files of an absolute import: of the suite, neither installed nor the standard library's."""
        if (top := name.partition(".")[0]) in sys.stdlib_module_names or top == OURSELVES:
            return
        for directory in (base, *self._search_path):
            if found := list(self._modules(name, directory)):
                yield from found
                return

    def _modules(self, name: str, directory: str) -> Iterator[str]:
        """Yield the files of the module `name` below `directory`, and of the packages that it is in."""
        parts = name.split(".")
        for number in range(1, len(parts) + 1):
            if found := self._file_of(".".join(parts[:number]), directory):
                yield found

    def _file_of(self, name: str, directory: str) -> str | None:
        if (name, directory) not in self._found:
            module = os.path.join(directory, *name.split("."))
            candidates = (os.path.join(module, "__init__.py"), f"{module}.py")
            found = next(filter(os.path.isfile, candidates), None)
            self._found[name, directory] = found if found and self._is_own(found) else None
        return self._found[name, directory]

    def _is_own(self, path: str) -> bool:
        inside = path.removeprefix(self._rootdir + os.sep)
        return not any(part in INSTALLED for part in inside.split(os.sep))

    def _base(self, directory: str) -> str:
        if directory not in self._bases:
            self._bases[directory] = import_base(directory)
        return self._bases[directory]

    def _fault(self, path: Path) -> str:
        """Return why the import of a file certainly or probably fails, as far as its text shows; empty if it does not.

        A module that is not found, a syntax error, a `timeout` marker that is no literal number.
        """
        try:
            source = read_regular(path, follows_links=True)
            tree = _parsed(source)
        except UNREADABLE as error:
            return f"it cannot be read: {error}"
        if BAD_TIMEOUT.search(source):
            return "it has a timeout marker that is not a number"
        if not SKIPS_ITSELF.search(source):
            for name in _required(tree):
                if not is_found(name, self._base(str(path.parent))):
                    return f"no module {name} is found"
        return ""


def import_base(directory: str) -> str:
    """Return the directory from which pytest imports the files of `directory`: the first that is no package."""
    while os.path.exists(os.path.join(directory, "__init__.py")) and os.path.dirname(directory) != directory:
        directory = os.path.dirname(directory)
    return directory


def is_found(name: str, base: str, find: Callable[[str], object] = find_spec) -> bool:
    """Return whether a top-level module of this name is in `base`, or is found by this interpreter."""
    if name in sys.modules or name in sys.stdlib_module_names:
        return True
    try:
        return PathFinder.find_spec(name, [base]) is not None or find(name) is not None
    except Exception:  # of a finder that somebody has installed: the import shows what it does
        return False


def _between(base: str, directory: str) -> Iterator[str]:
    """Yield `directory` and those above it, below `base`: the packages that importing a file in it imports."""
    while directory != base and len(directory) > len(base):
        yield directory
        directory = os.path.dirname(directory)


def _imports(source: bytes) -> Iterator[Imported]:
    """Yield what the lines of a text import, those within functions too; what looks like one in a string is no harm."""
    for match in IMPORTS.finditer(source.decode("utf-8", "replace")):
        dots, module, listed, plain = match.groups()
        names = COMMENT.sub("", listed if plain is None else plain).replace("\\\n", " ").partition(";")[0]
        each = tuple(words[0] for name in names.strip("() \t\n").split(",") if (words := name.split()))
        if plain is None:
            yield len(dots), module.strip("."), tuple(name for name in each if name != "*")
        else:
            yield from ((0, name, ()) for name in each)


def _required(tree: ast.Module) -> Iterator[str]:
    """Yield the top-level modules that a file certainly imports."""
    for statement in tree.body:
        match statement:
            case ast.Import(names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(str(module), level=0):
                yield module.partition(".")[0]


def _parsed(source: bytes) -> ast.Module:
    with warnings.catch_warnings():  # pytest shows these warnings when it runs the file
        warnings.simplefilter("ignore")
        return ast.parse(source)
