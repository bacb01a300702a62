"""Declarations of a test file (functions, classes, their markers), and which of them pytest collects.

A declaration is certain or not. What might add or take away a test makes it uncertain: a definition under `if`, an
imported test, a base class of another module. Such a base class is taken for one that lets the class's own tests be
collected, and what is inherited from it for uncertain.
"""

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from harness.plugin import NOTHING, NeedJson
from harness.runner.marker_values import UnknownValue

Params = tuple[NeedJson | None, ...]
NO_PARAMS: Params = (None,)


@dataclass(frozen=True, slots=True)
class Patterns:
    """pytest's `python_functions` and `python_classes`: prefixes or globs."""

    functions: tuple[str, ...] = ("test",)
    classes: tuple[str, ...] = ("Test",)


@dataclass(frozen=True, slots=True)
class DeclaredTest:
    """A function, or a name that may be one."""

    own: NeedJson | None = None
    """Its own closest marker."""
    params: Params = NO_PARAMS
    """The marker of each parameter set, which counts where the function has none of its own."""
    certain: bool = True
    is_function: bool = True
    """False for a name that may as well be a class."""
    is_abstract: bool = False


@dataclass(slots=True)
class Namespace:
    """Declarations of a module, or of a class itself."""

    members: dict[str, "DeclaredTest | DeclaredClass | None"] = field(default_factory=dict)
    """Declarations by name; None for a name that is certainly not a test."""
    own: NeedJson | None = None
    """Its own closest marker."""
    may_have_more: bool = False
    """Tests may come from elsewhere, under any name."""


@dataclass(slots=True)
class DeclaredClass(Namespace):
    """A class, with the classes of the same file that it inherits from."""

    bases: tuple["DeclaredClass", ...] = ()
    is_test_case: bool | None = False
    """Whether it is a unittest.TestCase; None where a base class of another module decides that."""
    certain: bool = True
    shape: type = object
    """An empty class with the same bases, to ask Python for the order of inheritance."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A test, and what the marker closest to it asks for."""

    test: str
    """`test_x`, `TestA::test_x`; ends in `::` for tests that may come from elsewhere and have no name here."""
    need: NeedJson
    certain: bool
    """Whether it is certain that pytest collects it."""


def asking(
    space: Namespace, patterns: Patterns, enclosing: NeedJson | None = None, within: str = ""
) -> Iterator[Asking]:
    """Each test in `space`, once for each of its parameter sets.

    `enclosing` is the marker closest around `space`, `within` what stands before the names of its tests. Raises
    UnknownValue where the closest marker is not known.
    """
    lineage = _lineage(space)
    is_class = isinstance(space, DeclaredClass)
    is_test_case = space.is_test_case if isinstance(space, DeclaredClass) else False
    own = _own_of(lineage)
    enclosing = own if own is not None else enclosing
    if space.may_have_more:
        yield Asking(within or "::", enclosing or NOTHING, False)
    seen: set[str] = set()
    for ancestor in lineage:
        certain = ancestor is space or not (is_class and space.may_have_more)
        for name, member in ancestor.members.items():
            if name in seen:
                continue
            seen.add(name)
            if isinstance(member, DeclaredTest):
                for need, sure in _of_test(name, member, enclosing, is_test_case, patterns):
                    yield Asking(within + name, need, sure and certain)
            elif isinstance(member, DeclaredClass) and is_test_case is not True:
                collected = _is_collected(name, member, patterns)
                sure = certain and collected is True and is_test_case is False
                inner = asking(member, patterns, enclosing, f"{within}{name}::") if collected is not False else ()
                for each in inner:
                    yield replace(each, certain=each.certain and sure)


def _of_test(
    name: str, test: DeclaredTest, enclosing: NeedJson | None, is_test_case: bool | None, patterns: Patterns
) -> Iterator[tuple[NeedJson, bool]]:
    verdicts = set()
    if is_test_case is not True:
        verdicts.add(_matches(name, patterns.functions))
    if is_test_case is not False:  # unittest's own rule; and it knows no parameters
        verdicts.add(name.startswith("test"))
        if test.params != NO_PARAMS:
            raise UnknownValue(f"{name}: parameters in a class that may be a TestCase")
    if not test.is_function and _matches(name, patterns.classes):
        verdicts.add(True)
    if True in verdicts:
        sure = test.certain and False not in verdicts
        for param in test.params:
            yield test.own or param or enclosing or NOTHING, sure


def _is_collected(name: str, declared: DeclaredClass, patterns: Patterns) -> bool | None:
    lineage = [each for each in _lineage(declared) if isinstance(each, DeclaredClass)]
    members = [member for each in lineage for member in each.members.values()]
    constructs = any(method in each.members for each in lineage for method in ("__init__", "__new__"))
    verdict: bool | None = _matches(name, patterns.classes) and not constructs
    if declared.is_test_case is not False:
        verdict = verdict or declared.is_test_case
    is_abstract = any(isinstance(member, DeclaredTest) and member.is_abstract for member in members)
    if verdict and (is_abstract or not all(each.certain for each in lineage)):
        return None
    return verdict


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name.startswith(pattern) or fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _lineage(space: Namespace) -> list[Namespace]:
    """`space` and the classes it inherits from, closest first."""
    if not isinstance(space, DeclaredClass):
        return [space]
    by_shape: dict[type, Namespace] = {}
    waiting = [space]
    while waiting:
        declared = waiting.pop()
        by_shape[declared.shape] = declared
        waiting.extend(declared.bases)
    return [by_shape[shape] for shape in space.shape.__mro__ if shape in by_shape]


def _own_of(lineage: list[Namespace]) -> NeedJson | None:
    marked = [each.own for each in lineage if each.own is not None]
    if any(need != marked[0] for need in marked):  # which is closest differs between versions of pytest
        raise UnknownValue("a class and its base class have different needs")
    return marked[0] if marked else None
