"""Find the tests that the source of a test file declares, and the `gpus` marker closest to each.

The module is followed from top to bottom as Python would run it, as far as that is certain. A file has a known need
only if the need is the same with and without the tests that are not certain.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.plugin import NOTHING, MarkError, NeedJson, merge_needs
from harness.runner.declarations import NO_PARAMS, DeclaredClass, DeclaredTest, Namespace, Params, Patterns, asking
from harness.runner.marker_values import (
    ATTRIBUTES,
    MODULES,
    Evaluator,
    GpusMark,
    Items,
    Kind,
    Literal,
    Parametrized,
    Scope,
    UnknownValue,
    Value,
    added,
    carries_marker,
    closest,
    mentions,
)

COMPOUND = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.Match)
NEVER_UNDER_PYTEST = ("__name__ == '__main__'", "TYPE_CHECKING", "typing.TYPE_CHECKING")
KEEPS_MARKERS = frozenset(
    ("classmethod", "contextlib", "functools", "hypothesis", "mock", "pytest", "staticmethod", "torch", "unittest")
)
"""Where decorators come from that hand on what they decorate with its markers."""
REACHES_NAMESPACES = frozenset(("globals", "locals", "vars", "setattr", "exec", "eval"))


def declared_needs(tree: ast.Module, patterns: Patterns) -> tuple[NeedJson, dict[str, NeedJson]]:
    """The need of the tests in `tree` together, as the plugin would collect it, and that of each by its name.

    Raises UnknownValue where the source alone does not say.
    """
    module = Namespace()
    module.may_have_more = any(isinstance(node, ast.Name) and node.id in REACHES_NAMESPACES for node in ast.walk(tree))
    reader = _Reader(module)
    reader.read(tree.body, module, Scope())
    reader.check_leftovers(tree)
    found = list(asking(module, patterns))
    try:
        possible = merge_needs(each.need for each in found)
        certain = merge_needs(each.need for each in found if each.certain)
    except MarkError as error:
        raise UnknownValue(f"the file {error}") from None
    if certain != possible:
        raise UnknownValue("only importing it shows which of its tests there are")
    by_test: dict[str, NeedJson] = {}
    for each in found:
        if not each.test.endswith("::"):
            by_test[each.test] = merge_needs([by_test.get(each.test, NOTHING), each.need])
    return certain, by_test


@dataclass(slots=True)
class _Reader:
    module: Namespace
    evaluator: Evaluator = field(default_factory=Evaluator)
    marked: set[str] = field(default_factory=set)
    """Names of functions and classes that carry the marker."""
    modules: dict[str, str] = field(default_factory=dict)
    """The top-level module each imported name comes from."""

    def read(self, body: list[ast.stmt], into: Namespace, scope: Scope) -> None:
        """Declare in `into` what `body` declares, statement by statement; names go into `scope`."""
        body = [statement for statement in body if not _never_runs(statement)]
        rebound = _rebound(body)
        for statement in body:
            match statement:
                case ast.Import() | ast.ImportFrom():
                    self._import(statement, into, scope)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    into.members[statement.name] = self._function(statement, scope)
                    scope[statement.name] = Kind.OTHER
                case ast.ClassDef():
                    into.members[statement.name] = self._class(statement, into, scope)
                    scope[statement.name] = Kind.OTHER
                case ast.Assign(targets, value):
                    for target in targets:
                        self._assign(target, value, into, scope)
                case ast.AnnAssign(target, value=ast.expr() as value):
                    self._assign(target, value, into, scope)
                case ast.AugAssign():
                    self._augment(statement, into, scope)
                case _:
                    for name in _bound(statement):
                        into.members[name] = DeclaredTest(certain=False, is_function=False)
                        into.may_have_more |= name == "*"
            for name in rebound & scope.keys():
                scope[name] = Kind.OTHER
        if marked := rebound & (self.marked | self.evaluator.aliases | {"pytestmark"}):
            raise UnknownValue(f"{min(marked)} is bound more than once, or under a condition", body[0])

    def _import(self, statement: ast.Import | ast.ImportFrom, into: Namespace, scope: Scope) -> None:
        for alias in statement.names:
            if alias.name == "*":
                into.may_have_more = True
                continue
            name = alias.asname or alias.name.partition(".")[0]
            if isinstance(statement, ast.Import):
                self.modules[name] = alias.name.partition(".")[0]
                scope[name] = MODULES.get(alias.name if alias.asname else name, Kind.OTHER)
            else:
                module = "" if statement.level else statement.module or ""
                self.modules[name] = module.partition(".")[0]
                scope[name] = ATTRIBUTES.get((MODULES.get(module, Kind.OTHER), alias.name), Kind.OTHER)
                into.members[name] = DeclaredTest(certain=False, is_function=False)

    def _assign(self, target: ast.expr, node: ast.expr, into: Namespace, scope: Scope) -> None:
        if isinstance(target, ast.Attribute) and target.attr in ("__test__", "pytestmark"):
            raise UnknownValue(f"{target.attr} is set from outside", target)
        if not isinstance(target, ast.Name):
            into.members.update(dict.fromkeys(_bound(target), DeclaredTest(certain=False, is_function=False)))
            return
        name = target.id
        if name == "__test__":
            raise UnknownValue("__test__ is set", target)
        value = self.evaluator.value(node, scope)
        if name == "pytestmark":
            into.own = _of_pytestmark(value, node)
        self._bind(name, value, into, scope)
        if isinstance(node, ast.Name) and node.id in into.members:
            into.members[name] = into.members[node.id]
            self.evaluator.understood.add(id(node))
            self.marked.update({name} if node.id in self.marked else ())
        else:
            is_none = isinstance(value, (Literal, Items))
            into.members[name] = None if is_none else DeclaredTest(certain=False, is_function=False)

    def _bind(self, name: str, value: Value, into: Namespace, scope: Scope) -> None:
        scope[name] = value
        if carries_marker(value):
            self.evaluator.aliases.add(name)
            if into is not self.module:
                self.evaluator.class_aliases.add(name)

    def _augment(self, statement: ast.AugAssign, into: Namespace, scope: Scope) -> None:
        if not isinstance(statement.target, ast.Name):
            return
        name = statement.target.id
        more = self.evaluator.value(statement.value, scope)
        old = scope.maps[0].get(name, Kind.OTHER)
        if not carries_marker(more) and not carries_marker(scope.get(name, Kind.OTHER)):
            scope[name] = Kind.OTHER
        elif name == "pytestmark" and isinstance(old, Items) and isinstance(statement.op, ast.Add):
            value = added(old, more)
            into.own = _of_pytestmark(value, statement)
            self._bind(name, value, into, scope)
        else:
            raise UnknownValue(f"{name} is changed in place", statement)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> DeclaredTest | None:
        own: NeedJson | None = None
        params: Params = NO_PARAMS
        may_be_fixture = is_abstract = False
        for decorator in reversed(node.decorator_list):
            value = self.evaluator.value(decorator, scope)
            match value:
                case Kind.FIXTURE:
                    return None  # a marker above it is left over, and pytest refuses it
                case GpusMark() | Kind.GPUS:
                    own = own if own is not None else closest(value, decorator)
                case Parametrized(sets):
                    if params != NO_PARAMS:
                        raise UnknownValue("two parametrize decorators, both with gpus markers", decorator)
                    params = sets
                case Kind.OTHER:
                    last = _names(decorator)[-1]
                    may_be_fixture |= last.endswith("fixture")
                    is_abstract |= last.startswith("abstract")
                    self._check_keeps(decorator, own is not None or params != NO_PARAMS)
                case Kind.OTHER_MARK:
                    pass
                case _:
                    raise UnknownValue(f"the decorator {ast.unparse(decorator)}", decorator)
        if own is not None or params != NO_PARAMS:
            self.marked.add(node.name)
        return DeclaredTest(own, params, certain=not may_be_fixture, is_abstract=is_abstract)

    def _keeps(self, decorator: ast.expr) -> bool:
        first = _names(decorator)[0]
        return self.modules.get(first, first) in KEEPS_MARKERS

    def _check_keeps(self, decorator: ast.expr, marked: bool) -> None:
        if marked and not self._keeps(decorator):
            raise UnknownValue(f"{ast.unparse(decorator)} may drop the gpus marker below it", decorator)

    def _class(self, node: ast.ClassDef, around: Namespace, scope: Scope) -> DeclaredClass:
        declared = DeclaredClass(certain=not node.keywords)
        num_marked = len(self.marked)
        self._inherit(declared, node, around, scope)
        self.read(node.body, declared, Scope({}, scope.maps[-1]))  # a class does not see the names of one around it
        for decorator in reversed(node.decorator_list):
            value = self.evaluator.value(decorator, scope)
            match value:
                case GpusMark() | Kind.GPUS:
                    declared.own = declared.own if declared.own is not None else closest(value, decorator)
                case Kind.OTHER:
                    self._check_keeps(decorator, declared.own is not None)
                    declared.certain &= self._keeps(decorator)
                case Kind.OTHER_MARK:
                    pass
                case _:
                    raise UnknownValue(f"the decorator {ast.unparse(decorator)} of a class", decorator)
        if declared.own is not None or len(self.marked) > num_marked:
            self.marked.add(node.name)
        return declared

    def _inherit(self, declared: DeclaredClass, node: ast.ClassDef, around: Namespace, scope: Scope) -> None:
        kinds: list[bool | None] = []
        for expression in node.bases:
            base = expression.value if isinstance(expression, ast.Subscript) else expression
            name = base.id if isinstance(base, ast.Name) else ""
            known = around.members.get(name, self.module.members.get(name))
            if isinstance(known, DeclaredClass):
                declared.bases += (known,)
                declared.may_have_more |= known.may_have_more
                kinds.append(known.is_test_case)
                self.evaluator.understood.add(id(base))
                self.marked.update({node.name} if name in self.marked else ())
            elif self.evaluator.value(base, scope) is Kind.TEST_CASE:
                kinds.append(True)
            elif name != "object":
                kinds.append(None)
                declared.may_have_more = True
        declared.is_test_case = True if True in kinds else None if None in kinds else False
        try:
            declared.shape = type(node.name, tuple(base.shape for base in declared.bases), {})
        except TypeError:
            raise UnknownValue(f"the bases of {node.name} cannot be ordered", node) from None

    def check_leftovers(self, tree: ast.Module) -> None:
        """Raise UnknownValue for a use of the marker, of an alias, or of a marked test that has not been understood."""
        evaluator = self.evaluator
        for node in mentions(tree, evaluator.aliases, evaluator.class_aliases):
            if id(node) not in evaluator.understood:
                raise UnknownValue(f"only running {ast.unparse(node)} would show what it marks", node)
        for node in when_imported(tree):
            match node:
                case ast.Name(name, ast.Load()) if name in self.marked and id(node) not in evaluator.understood:
                    raise UnknownValue(f"{name} carries a gpus marker and is used again", node)


def _of_pytestmark(value: Value, node: ast.AST) -> NeedJson | None:
    if isinstance(value, Items) and not value.is_list:
        raise UnknownValue("pytestmark is a tuple, which pytest refuses", node)
    return closest(value, node)


def _names(decorator: ast.expr) -> list[str]:
    """The dotted name of a decorator, called or not: `["torch", "no_grad"]` for `@torch.no_grad()`."""
    match decorator:
        case ast.Name(name):
            return [name]
        case ast.Attribute(base, name):
            return [*_names(base), name]
        case ast.Call(function):
            return _names(function)
    return [""]


def _never_runs(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and not statement.orelse and ast.unparse(statement.test) in NEVER_UNDER_PYTEST


def when_imported(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node of `tree` that runs when the file is imported: all but the bodies of functions."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting.extend([*node.decorator_list, node.args])
        elif not isinstance(node, ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def _bound(tree: ast.AST) -> Iterator[str]:
    """Names that `tree` binds when it runs, `*` for a star import."""
    for node in when_imported(tree):
        match node:
            case ast.Name(name, ast.Store() | ast.Del()) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                yield name
            case ast.ClassDef(name) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name
            case ast.alias(name, asname):
                yield asname or name.partition(".")[0]


def _rebound(body: list[ast.stmt]) -> set[str]:
    """Names bound otherwise than by one plain statement after the other: what they hold is not followed."""
    names: set[str] = set()
    for statement in body:
        if isinstance(statement, (*COMPOUND, ast.Delete)):
            names.update(_bound(statement))
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if not isinstance(target, ast.Name):
                    names.update(_bound(target))
        for node in ast.walk(statement):
            match node:
                case ast.Global(declared) | ast.Nonlocal(declared):
                    names.update(declared)
                case ast.NamedExpr(ast.Name(name)):
                    names.add(name)
    return names
