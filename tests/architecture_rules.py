"""The rules of the house: functions from a source file to what in it breaks the rule. The tables stand in the test."""

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property

FIRST_PARTY = frozenset({"harness", "rlcore", "scenarios", "tests"})
MAX_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8
VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "manager"})


@dataclass(frozen=True, slots=True)
class Owned:
    """Names that, within one room, only their owners may use."""

    within: str
    names: tuple[str, ...]
    """Dotted names, each with everything below it; ".kill()" is a method of anything, called without argument."""
    owners: tuple[str, ...]
    """Files, or folders ending in a slash; nobody where empty."""


@dataclass(frozen=True)
class Source:
    """One Python file of the house."""

    path: str
    """Relative to the root, with forward slashes."""
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def package(self) -> tuple[str, ...]:
        return tuple(self.path.split("/")[:-1])

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def imports(source: Source) -> Iterator[tuple[str, str]]:
    """(name bound or "", dotted origin) of every import at any depth; relative and import_module too."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield alias.asname or "", alias.name
                    if not alias.asname:  # `import a.b` binds a
                        yield alias.name.partition(".")[0], alias.name.partition(".")[0]
            case ast.ImportFrom(module=module, names=names, level=level):
                above = source.package[: len(source.package) - level + 1] if level else ()
                base = ".".join((*above, *([module] if module else [])))
                for alias in names:
                    yield alias.asname or alias.name, f"{base}.{alias.name}"
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]
            ) if called in ("import_module", "__import__"):
                yield "", name


@cache
def uses(source: Source) -> set[str]:
    """Every dotted name the file imports or reaches through what it imports, builtins, and ".method()" calls."""
    found = set()
    origins: dict[str, set[str]] = {}
    for local, origin in imports(source):
        found.add(origin)
        origins.setdefault(local, set()).add(origin)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name):
            found |= origins.get(node.id, {f"builtins.{node.id}"})
        elif isinstance(node, ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            found |= {f"{origin}.{rest}" for origin in origins.get(head, ())}
        elif isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Attribute):
            found.add(f".{node.func.attr}()")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "send_signal":
            found.add(".send_signal()")
    return found


def stands_below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def is_among(path: str, places: Iterable[str]) -> bool:
    return any(path == place or (place.endswith("/") and path.startswith(place)) for place in places)


def trespasses(source: Source, rule: Owned) -> list[str]:
    if not source.path.startswith(rule.within) or is_among(source.path, rule.owners):
        return []
    return [
        f"{source.path} uses {name}, which belongs to {', '.join(rule.owners) or 'nobody there'}"
        for name in sorted(uses(source))
        if any(stands_below(name, owned) for owned in rule.names)
    ]


def oversized(source: Source) -> dict[str, str]:
    """Exemption key -> what is too large."""
    found = {}
    num_lines = source.text.count("\n")
    if num_lines > MAX_LINES:
        found[source.path] = f"{num_lines} lines, at most {MAX_LINES}"
    for node in source.functions:
        key = f"{source.path}:{node.name}"
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES:
            found[key] = f"{length} lines, at most {MAX_FUNCTION_LINES}"
        names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        num_parameters = len([name for name in names if name not in ("self", "cls")])
        if num_parameters > MAX_PARAMETERS:
            found[f"{key}()"] = f"{num_parameters} parameters, at most {MAX_PARAMETERS}"
    return found


def unexplained_excepts(source: Source) -> list[str]:
    """Handlers of everything that neither raise it again nor say why in a comment on their line."""
    lines = source.text.splitlines()
    return [
        f"{source.path}:{node.lineno} {lines[node.lineno - 1].strip()}"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ExceptHandler)
        and (
            node.type is None
            or {"Exception", "BaseException"} & {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
        )
        and "#" not in lines[node.lineno - 1]
        and not (isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None)
    ]


def is_vague(path: str) -> bool:
    return not VAGUE_NAMES.isdisjoint(part.removesuffix(".py") for part in path.split("/"))


def is_stub(source: Source) -> bool:
    """Whether a file that is not a package's own holds nothing but a docstring, or any holds an unwritten function."""

    def says_nothing(node: ast.stmt) -> bool:
        return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))

    is_package_file = source.path.endswith("/__init__.py")
    return "builtins.NotImplementedError" in uses(source) or (
        not is_package_file and all(says_nothing(node) for node in source.tree.body)
    )


def empty_packages(paths: Iterable[str]) -> set[str]:
    """Folders with an `__init__.py` and nothing else, out of the paths of all files."""
    files = set(paths)
    packages = {path.rpartition("/")[0] for path in files if path.endswith("/__init__.py")}
    return {room for room in packages if not any(f.startswith(f"{room}/") for f in files - {f"{room}/__init__.py"})}


def third_party(source: Source) -> set[str]:
    """Top-level modules the file imports that are neither the standard library's nor ours."""
    modules = {origin.partition(".")[0] for _, origin in imports(source)}
    return {name for name in modules if name not in sys.stdlib_module_names and name not in FIRST_PARTY}
