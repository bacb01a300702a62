"""Evaluate expressions of a test file's source for `gpus` markers, without running them.

`Evaluator.value` turns an expression into one of a few values: a `gpus` marker with its need, a list of markers, a
parameter set, a number, or "something else". It remembers every mention of the marker that it understood, so that
the reader of a file can check at the end whether any mention remains.
"""

import ast
import operator
from collections import ChainMap
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from harness.plugin import MarkError, NeedJson, need_of_mark

MARKING_CALLS = ("add_marker", "applymarker")
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


class UnknownValue(Exception):
    """The source does not say what a file needs: why, and on which line where it is one line."""

    def __init__(self, reason: str, node: ast.AST | None = None) -> None:
        line = getattr(node, "lineno", None)
        super().__init__(f"line {line}: {reason}" if line else reason)


class Kind(Enum):
    """Values that are known by their name alone."""

    PYTEST = auto()
    UNITTEST = auto()
    TEST_CASE = auto()
    MARK = auto()
    GPUS = auto()  # pytest.mark.gpus, not called yet
    PARAMETRIZE = auto()
    PARAM = auto()
    FIXTURE = auto()
    OTHER_MARK = auto()
    REST = auto()  # any number of elements that carry no marker
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, a text, True, False or None."""

    value: Any


@dataclass(frozen=True, slots=True)
class GpusMark:
    """`pytest.mark.gpus(…)` with readable arguments."""

    need: NeedJson


@dataclass(frozen=True, slots=True)
class Items:
    """A list or a tuple."""

    values: tuple["Value", ...]
    is_list: bool


@dataclass(frozen=True, slots=True)
class Param:
    """`pytest.param(…)`; its closest marker, None without one."""

    need: NeedJson | None


@dataclass(frozen=True, slots=True)
class Parametrized:
    """`pytest.mark.parametrize(…)` of which some parameter sets carry the marker; None for the others."""

    needs: tuple[NeedJson | None, ...]


Value = Kind | Literal | GpusMark | Items | Param | Parametrized
Scope = ChainMap[str, Value]

ATTRIBUTES: dict[tuple[Value, str], Value] = {
    (Kind.PYTEST, "mark"): Kind.MARK,
    (Kind.PYTEST, "param"): Kind.PARAM,
    (Kind.PYTEST, "fixture"): Kind.FIXTURE,
    (Kind.MARK, "gpus"): Kind.GPUS,
    (Kind.MARK, "parametrize"): Kind.PARAMETRIZE,
    (Kind.UNITTEST, "TestCase"): Kind.TEST_CASE,
    (Kind.UNITTEST, "IsolatedAsyncioTestCase"): Kind.TEST_CASE,
}
MODULES = {"pytest": Kind.PYTEST, "unittest": Kind.UNITTEST}


def carries_marker(value: Value) -> bool:
    """Whether using `value` may mark something with `gpus`."""
    match value:
        case GpusMark() | Parametrized() | Kind.GPUS:
            return True
        case Items(values):
            return any(carries_marker(element) for element in values)
        case Param(need):
            return need is not None
    return False


def closest(value: Value, node: ast.AST) -> NeedJson | None:
    """The need of the first `gpus` marker in `value`, a marker or a list of markers; None where there is none.

    Raises UnknownValue for one without arguments, which the plugin refuses, and for parameters of other tests.
    """
    match value:
        case Kind.GPUS:
            raise UnknownValue("a gpus marker without a number", node)
        case Parametrized() | Param():
            raise UnknownValue("parameter sets that are not those of one test function", node)
        case GpusMark(need):
            return need
        case Items(values):
            needs = [closest(element, node) for element in values]
            return next((need for need in needs if need is not None), None)
    return None


@dataclass(slots=True)
class Evaluator:
    """Reads expressions of one file."""

    understood: set[int] = field(default_factory=set)
    """`id` of every node that mentions the marker and was made sense of."""
    aliases: set[str] = field(default_factory=set)
    """Names that have been bound to something that carries the marker."""
    class_aliases: set[str] = field(default_factory=set)
    """Those of them that were bound in a class, and so can be reached as attributes."""

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """Return the value of `node`; raises UnknownValue for a marker whose arguments cannot be read."""
        match node:
            case ast.Constant(value):
                return Literal(value)
            case ast.Name(name):
                return self._used(node, scope.get(name, Kind.OTHER))
            case ast.Attribute(base, name):
                return self._attribute(node, self.value(base, scope), name)
            case ast.List(elements) | ast.Tuple(elements):
                return Items(tuple(self._elements(elements, scope)), isinstance(node, ast.List))
            case ast.BinOp(left, op, right):
                return self._operation(self.value(left, scope), op, self.value(right, scope))
            case ast.UnaryOp(ast.USub(), operand):
                return self._operation(Literal(0), ast.Sub(), self.value(operand, scope))
            case ast.Call():
                return self._call(node, scope)
        return Kind.OTHER

    def _used(self, node: ast.expr, value: Value) -> Value:
        if carries_marker(value):
            self.understood.add(id(node))
        return value

    def _attribute(self, node: ast.expr, base: Value, name: str) -> Value:
        if base is Kind.MARK and name not in ("gpus", "parametrize"):
            return Kind.OTHER_MARK
        return self._used(node, ATTRIBUTES.get((base, name), Kind.OTHER) if isinstance(base, Kind) else Kind.OTHER)

    def _elements(self, nodes: list[ast.expr], scope: Scope) -> Iterator[Value]:
        for node in nodes:
            if not isinstance(node, ast.Starred):
                yield self.value(node, scope)
                continue
            inner = self.value(node.value, scope)
            if isinstance(inner, Items):
                yield from inner.values
            else:
                yield Kind.REST

    def _operation(self, left: Value, op: ast.operator, right: Value) -> Value:
        if isinstance(op, ast.Add) and (isinstance(left, Items) or isinstance(right, Items)):
            return added(left, right)
        match left, right:
            case Literal(int() | float() as a), Literal(int() | float() as b) if type(op) in OPERATORS:
                return Literal(OPERATORS[type(op)](a, b)) if b or not isinstance(op, ast.FloorDiv) else Kind.OTHER
        return Kind.OTHER

    def _call(self, node: ast.Call, scope: Scope) -> Value:
        function = self.value(node.func, scope)
        match function:
            case Kind.GPUS:
                return GpusMark(self._need(node, scope))
            case GpusMark():
                raise UnknownValue("a gpus marker that is called again", node)
            case Kind.PARAM:
                marks = next((word.value for word in node.keywords if word.arg == "marks"), None)
                return Param(closest(self.value(marks, scope), node) if marks is not None else None)
            case Kind.PARAMETRIZE:
                return self._parametrize(node, scope)
            case Kind.FIXTURE | Kind.OTHER_MARK:
                return function
        return Kind.OTHER

    def _need(self, node: ast.Call, scope: Scope) -> NeedJson:
        args = [self._plain(argument, scope) for argument in node.args]
        kwargs = {word.arg or "**": self._plain(word.value, scope) for word in node.keywords}
        try:
            return need_of_mark(args, kwargs)
        except MarkError as error:
            raise UnknownValue(f"gpus marker: {error}", node) from None

    def _plain(self, node: ast.expr, scope: Scope) -> Any:
        match self.value(node, scope):
            case Literal(plain):
                return plain
            case Items(values) if all(isinstance(element, Literal) for element in values):
                return [element.value for element in values if isinstance(element, Literal)]
        raise UnknownValue(f"the gpus marker's argument {ast.unparse(node)} is not literal", node)

    def _parametrize(self, node: ast.Call, scope: Scope) -> Value:
        values = node.args[1] if len(node.args) > 1 else None
        for word in node.keywords:
            values = word.value if word.arg == "argvalues" else values
        sets = self.value(values, scope) if values is not None else Kind.OTHER
        if not isinstance(sets, Items) or not carries_marker(sets):
            return Kind.OTHER_MARK
        if Kind.REST in sets.values:
            raise UnknownValue("parameter sets of which some cannot be read and some carry a gpus marker", node)
        return Parametrized(tuple(each.need if isinstance(each, Param) else None for each in sets.values))


def added(left: Value, right: Value) -> Items:
    """`left + right` of two lists, one of which may be unknown."""
    sides = [side.values if isinstance(side, Items) else (Kind.REST,) for side in (left, right)]
    return Items((*sides[0], *sides[1]), is_list=True)


def mark_names(tree: ast.AST) -> frozenset[str]:
    """Names that stand for `pytest.mark` anywhere in a file."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom("pytest", imported):
                names.update(alias.asname or alias.name for alias in imported if alias.name == "mark")
            case ast.Assign(targets, ast.Attribute(attr="mark")):
                names.update(target.id for target in targets if isinstance(target, ast.Name))
    return frozenset(names)


def mentions(tree: ast.AST, names: Set[str] = frozenset(), attributes: Set[str] = frozenset()) -> Iterator[ast.AST]:
    """Every node that uses the `gpus` marker or may fetch it by a computed name; also every use of these aliases."""
    marks = mark_names(tree)

    def is_mark(node: ast.AST) -> bool:
        return (isinstance(node, ast.Attribute) and node.attr == "mark") or (
            isinstance(node, ast.Name) and (node.id == "mark" or node.id in marks)
        )

    for node in ast.walk(tree):
        match node:
            case ast.Attribute(base, "gpus") if is_mark(base):
                yield node
            case ast.Name(name, ast.Load()) if name in names:
                yield node
            case ast.Attribute(attr=name) if name in attributes:
                yield node
            case ast.Call(ast.Name("getattr"), [first, name, *_]) if is_mark(first):
                if not isinstance(name, ast.Constant) or name.value == "gpus":
                    yield node
            case ast.Call(ast.Attribute(attr=called), args, keywords) if called in MARKING_CALLS:
                given = [*args, *(word.value for word in keywords)]
                if any(isinstance(argument, ast.Constant) and argument.value == "gpus" for argument in given):
                    yield node
