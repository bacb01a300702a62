"""The versions that a project's files ask for, and those that are asked for twice and not alike. Nothing is run.

Read are pyproject.toml (project.dependencies, optional-dependencies, dependency-groups), requirements*.txt and
constraints*.txt with what they include, setup.cfg, and of setup.py what stands there as literal lists.
"""

import ast
import configparser
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
MAX_FILE_BYTES = 2_000_000


@dataclass(frozen=True, slots=True)
class Declared:
    """One requirement with a range, for this environment."""

    name: str
    """Canonical, as packaging spells it."""
    range: SpecifierSet
    where: str
    """"pyproject.toml [vllm]", "requirements.txt:3"."""
    is_constraint: bool = False
    """It narrows what others ask for, and asks for nothing."""


@dataclass(frozen=True, slots=True)
class Clash:
    """Ranges of one dependency that are not alike."""

    name: str
    declared: tuple[Declared, ...]
    is_impossible: bool
    """No version could satisfy two of them."""


def project_root(start: Path) -> Path | None:
    """The nearest directory, from `start` up, that has a file a project declares its dependencies in."""
    for directory in (start, *start.parents):
        if any((directory / name).is_file() for name in PROJECT_FILES):
            return directory
    return None


def read_declared(root: Path) -> list[Declared]:
    """Every requirement with a range in the files of `root`; a file that cannot be read declares nothing."""
    found: list[Declared] = []
    texts = {path.name: _text(path) for name in PROJECT_FILES[:3] if (path := root / name).is_file()}
    found += _of_pyproject(texts.get("pyproject.toml", ""))
    found += _of_setup_cfg(texts.get("setup.cfg", ""))
    found += _of_setup_py(texts.get("setup.py", ""))
    seen: set[Path] = set()
    for pattern, is_constraint in (("requirements*.txt", False), ("constraints*.txt", True)):
        for path in sorted(root.glob(pattern)):
            found += _of_requirements(path, root, is_constraint, seen)
    return found


def clashes(declared: Iterable[Declared]) -> list[Clash]:
    """What is asked for with different ranges.

    A constraint differs from what it narrows by design: it counts only where it excludes what is asked for.
    """
    by_name: dict[str, list[Declared]] = {}
    for each in declared:
        by_name.setdefault(each.name, []).append(each)
    found = []
    for name, places in sorted(by_name.items()):
        is_impossible = not all(_can_meet(a.range, b.range) for a, b in combinations(places, 2))
        ranges = {each.range for each in places if not each.is_constraint}
        if is_impossible or len(ranges) > 1:
            found.append(Clash(name, tuple(_one_of_each(places, with_constraints=is_impossible)), is_impossible))
    return found


def _can_meet(a: SpecifierSet, b: SpecifierSet) -> bool:
    """Whether a version, released or not, could satisfy both.

    Ranges are intervals with holes at single versions: where two of them meet, they do so at a bound of one of them,
    right above it, or at the very bottom.
    """
    named = [spec.version.removesuffix(".*").partition("+")[0] for spec in (*a, *b)]
    tried = ["0", "0.0.0.0.1", *named, *(f"{version}.0.0.0.1" for version in named if version[-1:].isdigit())]
    both = a & b
    return any(both.contains(version, prereleases=True) for version in tried if _is_version(version))


def _is_version(text: str) -> bool:
    """Whether packaging reads it as one."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _one_of_each(places: Iterable[Declared], *, with_constraints: bool) -> Iterator[Declared]:
    seen: set[SpecifierSet] = set()
    for each in places:
        if each.range not in seen and (with_constraints or not each.is_constraint):
            seen.add(each.range)
            yield each


def _requirement(text: str, where: str, is_constraint: bool = False) -> Iterator[Declared]:
    """The requirement in `text`, if it is one, has a range, and is meant for this environment."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:  # a path, an option, a URL
        return
    if requirement.specifier and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
        yield Declared(canonicalize_name(requirement.name), requirement.specifier, where, is_constraint)


def _of_pyproject(text: str) -> Iterator[Declared]:
    try:
        content = tomllib.loads(text)
    except ValueError:
        return
    project = _table(content, "project")
    groups = {"": project.get("dependencies", [])}
    groups |= {f" [{extra}]": texts for extra, texts in _table(project, "optional-dependencies").items()}
    groups |= {f" group {group}": texts for group, texts in _table(content, "dependency-groups").items()}
    for group, texts in groups.items():
        for each in texts if isinstance(texts, list) else []:
            if isinstance(each, str):
                yield from _requirement(each, f"pyproject.toml{group}")


def _table(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def _of_setup_cfg(text: str) -> Iterator[Declared]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return
    lines = {"": parser.get("options", "install_requires", fallback="")}
    if parser.has_section("options.extras_require"):
        lines |= {f" [{extra}]": value for extra, value in parser.items("options.extras_require")}
    for extra, value in lines.items():
        for line in value.splitlines():
            yield from _requirement(line.strip(), f"setup.cfg{extra}")


def _of_setup_py(text: str) -> Iterator[Declared]:
    """Lists of texts that are assigned to a name or given to a keyword: what a setup.py calls its requirements."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.List() as texts):
                yield from _of_list(texts, f"setup.py {name}")
            case ast.keyword(arg=str(name), value=ast.List() as texts):
                yield from _of_list(texts, f"setup.py {name}")
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(value, ast.List):
                        yield from _of_list(value, f"setup.py [{key.value!s}]")


def _of_list(node: ast.List, where: str) -> Iterator[Declared]:
    for element in node.elts:
        if isinstance(element, ast.Constant) and isinstance(element.value, str):
            yield from _requirement(element.value, where)


def _of_requirements(path: Path, root: Path, is_constraint: bool, seen: set[Path]) -> Iterator[Declared]:
    """A requirements file and those it includes with -r and -c."""
    path = path.resolve()
    if path in seen or not path.is_file():
        return
    seen.add(path)
    name = path.relative_to(root.resolve()).as_posix() if path.is_relative_to(root.resolve()) else str(path)
    for number, line in enumerate(_text(path).splitlines(), 1):
        text = line.partition(" #")[0].split(" --")[0].strip().rstrip("\\").strip()
        option, _, value = text.partition(" ")
        if option in ("-r", "--requirement", "-c", "--constraint") and value.strip():
            constrains = is_constraint or option in ("-c", "--constraint")
            yield from _of_requirements(path.parent / value.strip(), root, constrains, seen)
        elif text and not text.startswith(("-", "#")):
            yield from _requirement(text, f"{name}:{number}", is_constraint)


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError:
        return ""
