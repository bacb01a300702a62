"""The rules of the house: functions from a source file to what in it breaks the rule. The tables stand beside them."""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FIRST_PARTY = frozenset({"harness", "rlcore", "scenarios", "tests"})
ROOMS = ("harness", "rlcore", "scenarios", "tests")
VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "manager"})


WITH_ARGUMENTS = ("send_signal", "read_text", "read_bytes", "write_text", "write_bytes")
"""Methods that `Owned` names as ".method()" and that are called with arguments too."""


@dataclass(frozen=True, slots=True)
class Owned:
    """Names that, within one room, only their owners may use."""

    within: str
    names: tuple[str, ...]
    """Dotted names, each with everything below it; ".kill()" is a method of anything, called without argument.

    Those of `WITH_ARGUMENTS` count with arguments too.
    """
    owners: tuple[str, ...]
    """Files, or folders ending in a slash; nobody where empty."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rules ask of a file."""

    imports: tuple[tuple[str, str], ...]
    """(name bound or "", dotted origin) of every import at any depth; relative and import_module too."""
    uses: frozenset[str]
    """Every dotted name it imports or reaches through what it imports, builtins, and ".method()" calls."""
    swallowing: tuple[int, ...]
    """Lines of the handlers that catch everything, and do not raise it again."""
    is_silent: bool
    """Whether it holds nothing but a docstring."""


@dataclass(frozen=True)
class Source:
    """One Python file of the house."""

    path: str
    """Relative to the root, with forward slashes."""
    text: str

    @cached_property
    def facts(self) -> Facts:
        """Read once; the trees of all files together would slow down whatever runs after them in this process."""
        tree = ast.parse(self.text, self.path)
        nodes = list(ast.walk(tree))
        imported = tuple(_imports(nodes, tuple(self.path.split("/")[:-1])))
        return Facts(
            imports=imported,
            uses=frozenset(_uses(nodes, imported)),
            swallowing=tuple(n.lineno for n in nodes if isinstance(n, ast.ExceptHandler) and _swallows(n)),
            is_silent=all(_says_nothing(statement) for statement in tree.body),
        )


def _imports(nodes: Iterable[ast.AST], package: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield alias.asname or "", alias.name
                    if not alias.asname:  # `import a.b` binds a
                        yield alias.name.partition(".")[0], alias.name.partition(".")[0]
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package[: len(package) - level + 1] if level else ()
                base = ".".join((*above, *([module] if module else [])))
                for alias in names:
                    yield alias.asname or alias.name, f"{base}.{alias.name}"
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]
            ) if called in ("import_module", "__import__"):
                yield "", name


def _uses(nodes: Iterable[ast.AST], imported: Iterable[tuple[str, str]]) -> set[str]:
    found = set()
    origins: dict[str, set[str]] = {}
    for local, origin in imported:
        found.add(origin)
        origins.setdefault(local, set()).add(origin)
    for node in nodes:
        if isinstance(node, ast.Name):
            found |= origins.get(node.id, {f"builtins.{node.id}"})
        elif isinstance(node, ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            found |= {f"{origin}.{rest}" for origin in origins.get(head, ())}
        elif isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Attribute):
            found.add(f".{node.func.attr}()")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WITH_ARGUMENTS:
            found.add(f".{node.func.attr}()")
    return found


def _swallows(node: ast.ExceptHandler) -> bool:
    caught = {"BaseException"} if node.type is None else {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
    last = node.body[-1]
    return not caught.isdisjoint(("Exception", "BaseException")) and not (isinstance(last, ast.Raise) and not last.exc)


def _says_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


EXAMPLE = "harness/lab/demo/project/"
"""Holds the example project that `rlharness demo` copies: data of the package, and faults on purpose."""


def house(root: Path) -> list[Source]:
    """Read every Python file of the repository in `root` that the rules hold for."""
    files = [root / "conftest.py", *(path for room in ROOMS for path in sorted((root / room).rglob("*.py")))]
    sources = [Source(path.relative_to(root).as_posix(), path.read_text("utf-8")) for path in files]
    return [source for source in sources if not source.path.startswith(EXAMPLE)]


def stands_below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def is_among(path: str, places: Iterable[str]) -> bool:
    return any(path == place or (place.endswith("/") and path.startswith(place)) for place in places)


def absent(places: Iterable[str], paths: Iterable[str]) -> set[str]:
    """Files and folders of a table that none of the `paths` is, or lies in."""
    known = list(paths)
    return {place for place in places if not any(is_among(path, (place,)) for path in known)}


def trespasses(source: Source, rule: Owned) -> list[str]:
    if not source.path.startswith(rule.within) or is_among(source.path, rule.owners):
        return []
    return [
        f"{source.path} uses {name}, which belongs to {', '.join(rule.owners) or 'nobody there'}"
        for name in sorted(source.facts.uses)
        if any(stands_below(name, owned) for owned in rule.names)
    ]


def unexplained_excepts(source: Source) -> list[str]:
    """Handlers of everything that neither raise it again nor say why in a comment on their line."""
    lines = source.text.splitlines()
    found = [(number, lines[number - 1].strip()) for number in source.facts.swallowing]
    return [f"{source.path}:{number} {line}" for number, line in found if "#" not in line]


def is_vague(path: str) -> bool:
    return not VAGUE_NAMES.isdisjoint(part.removesuffix(".py") for part in path.split("/"))


def is_stub(source: Source) -> bool:
    """Whether a file that is not a package's own holds nothing but a docstring, or any holds an unwritten function."""
    is_package_file = source.path.endswith("/__init__.py")
    return "builtins.NotImplementedError" in source.facts.uses or (not is_package_file and source.facts.is_silent)


def empty_packages(paths: Iterable[str]) -> set[str]:
    """Folders with an `__init__.py` and nothing else, out of the paths of all files."""
    files = set(paths)
    packages = {path.rpartition("/")[0] for path in files if path.endswith("/__init__.py")}
    return {room for room in packages if not any(f.startswith(f"{room}/") for f in files - {f"{room}/__init__.py"})}


def third_party(source: Source) -> set[str]:
    """Top-level modules the file imports that are neither the standard library's nor ours."""
    modules = {origin.partition(".")[0] for _, origin in source.facts.imports}
    return {name for name in modules if name not in sys.stdlib_module_names and name not in FIRST_PARTY}


Layers = Sequence[Sequence[str]]
"""Rows of packages, dotted, from the top down."""


def module_name(path: str) -> str:
    """Return the dotted name of the module in a file: harness.trace for harness/trace/__init__.py."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def layer_of(module: str, layers: Layers) -> tuple[int, str]:
    """Return (row, package) of the longest package that holds a module; (-1, "") where only the root package does."""
    found = [(row, name) for row, names in enumerate(layers) for name in names if _is_within(module, name)]
    exact = [(row, name) for row, name in found if name == module or "." in name]
    return max(exact, key=lambda each: len(each[1]), default=(-1, ""))


def upward_imports(source: Source, layers: Layers) -> list[str]:
    """Return a line for each import of a package that is not below the file's own, or of no package of the table."""
    own_row, own = layer_of(module_name(source.path), layers)
    if not own:
        return [f"{source.path}: its package is not in the table of layers"]
    root = own.partition(".")[0]
    found = []
    for _, origin in source.facts.imports:
        if not _is_within(origin, root):
            continue
        row, package = layer_of(origin, layers)
        if package != own and row <= own_row and not (package == "" and "." not in origin.removeprefix(f"{root}.")):
            found.append(f"{source.path}: imports {origin}, which is not below {own}")
    return found


def import_cycles(sources: Iterable[Source]) -> list[tuple[str, ...]]:
    """Return the groups of files that import each other, at any depth, each sorted by name."""
    by_name = {module_name(source.path): source for source in sources}
    graph = {name: {_module_of(origin, by_name) for _, origin in each.facts.imports} for name, each in by_name.items()}
    sorter = {name: sorted(targets & by_name.keys() - {name}) for name, targets in graph.items()}
    reach = {name: _reachable(name, sorter) for name in sorter}
    groups = {tuple(sorted(o for o in reach[name] if name in reach[o])) for name in sorter if name in reach[name]}
    return sorted(groups)


def _reachable(start: str, graph: Mapping[str, Sequence[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def _module_of(origin: str, known: Mapping[str, Source]) -> str:
    """Return the module that an origin names, itself or by one of its names; empty where it is none of `known`."""
    return next((name for name in (origin, origin.rpartition(".")[0]) if name in known), "")


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
