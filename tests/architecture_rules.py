"""The rules of the house: functions from a source file to what in it breaks the rule. The tables stand beside them."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOMS = ("harness", "rlcore", "scenarios", "tests")


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
