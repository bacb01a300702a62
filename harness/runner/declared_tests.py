"""Which tests a file's source declares, and the `gpus` marker closest to each, as pytest would see them.

Reads a module from top to bottom as Python would run it, following only what it can be certain of. What might add or
take away a test (a definition under `if`, an imported test, a base class of another module) makes that test uncertain;
a file's need is told only where it is the same with and without the uncertain ones. A class of another module is taken
for one that lets its tests be collected, and its inherited tests as uncertain.
"""

import ast
import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.plugin import MarkError, NeedJson, merge_needs
from harness.runner.marker_values import (
    ATTRIBUTES,
    MODULES,
    CannotTell,
    Evaluator,
    GpusMark,
    Items,
    Kind,
    Literal,
    Parametrized,
    Scope,
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

Function = ast.FunctionDef | ast.AsyncFunctionDef


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
    params: tuple[NeedJson | None, ...] = (None,)
    """One per parameter set, where it has no marker of its own."""
    certain: bool = True
    is_function: bool = True
    """False for a name that may as well be a class."""
    is_abstract: bool = False


@dataclass(slots=True)
class Namespace:
    """What a module or a class declares itself."""

    members: dict[str, "DeclaredTest | DeclaredClass | None"] = field(default_factory=dict)
    """By name; None for what is surely no test."""
    own: NeedJson | None = None
    may_have_more: bool = False
    """Tests may come from elsewhere, under any name."""
    pytestmark: ast.expr | None = None


@dataclass(slots=True)
class DeclaredClass(Namespace):
    """A class, with the classes of the same file that it inherits from."""

    bases: tuple["DeclaredClass", ...] = ()
    is_test_case: bool | None = False
    """Whether it is a unittest.TestCase; None where a base class of another module decides that."""
    certain: bool = True
    shape: type = object
    """An empty class with the same bases, to ask Python for the order of inheritance."""


def declared_need(tree: ast.Module, patterns: Patterns) -> NeedJson:
    """The need of the tests in `tree`, as the plugin would collect it.

    Raises CannotTell where the source alone does not say.
    """
    reader = _Reader(Evaluator(), patterns)
    module = Namespace(may_have_more=_reaches_namespaces(tree))
    reader.read(tree.body, module, Scope())
    reader.check_leftovers(tree)
    needs = list(reader.needs(module, None))
    try:
        certain, possible = (merge_needs(need for need, sure in needs if sure or not only) for only in (True, False))
    except MarkError as error:
        raise CannotTell(str(error), tree) from None
    if certain != possible:
        raise CannotTell("it cannot be told which of its tests pytest will collect", tree)
    return certain


@dataclass(slots=True)
class _Reader:
    evaluator: Evaluator
    patterns: Patterns
    marked: set[str] = field(default_factory=set)
    """Names of functions and classes that carry the marker."""
    modules: dict[str, str] = field(default_factory=dict)
    """The top-level module each imported name comes from."""

    def read(self, body: list[ast.stmt], into: Namespace, scope: Scope) -> None:
        """Declare in `into` what `body` declares, statement by statement."""
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
                case ast.If(test) if ast.unparse(test) in NEVER_UNDER_PYTEST and not statement.orelse:
                    pass
                case _:
                    self._maybe(statement, into)
            for name in rebound & scope.keys():
                scope[name] = Kind.OTHER
        if marked := rebound & (self.marked | self.evaluator.aliases | {"pytestmark"}):
            raise CannotTell(f"{min(marked)} is bound more than once, or under a condition", body[0])

    def _import(self, statement: ast.Import | ast.ImportFrom, into: Namespace, scope: Scope) -> None:
        module = statement.module or "" if isinstance(statement, ast.ImportFrom) else ""
        for alias in statement.names:
            if alias.name == "*":
                into.may_have_more = True
                continue
            name = alias.asname or alias.name.partition(".")[0]
            self.modules[name] = (module or alias.name).partition(".")[0]
            if isinstance(statement, ast.Import):
                scope[name] = MODULES.get(self.modules[name] if alias.asname is None else alias.name, Kind.OTHER)
            else:
                origin = MODULES.get(module) if statement.level == 0 else None
                scope[name] = ATTRIBUTES.get((origin, alias.name), Kind.OTHER) if origin else Kind.OTHER
                into.members[name] = DeclaredTest(certain=False, is_function=False)

    def _assign(self, target: ast.expr, node: ast.expr, into: Namespace, scope: Scope) -> None:
        if isinstance(target, ast.Attribute) and target.attr in ("__test__", "pytestmark"):
            raise CannotTell(f"{target.attr} set from outside", target)
        if not isinstance(target, ast.Name):
            return  # its names are among the rebound ones
        name = target.id
        if name == "__test__":
            raise CannotTell("__test__ is set", target)
        value = self.evaluator.value(node, scope)
        if name == "pytestmark":
            into.own, into.pytestmark = self._pytestmark(value, node), node
        self._bind(name, value, into, scope)
        if isinstance(node, ast.Name) and node.id in into.members:
            into.members[name] = into.members[node.id]
            self.evaluator.understood.add(id(node))
            if node.id in self.marked:
                self.marked.add(name)
        else:
            is_test = not isinstance(value, (Literal, Items))
            into.members[name] = DeclaredTest(certain=False, is_function=False) if is_test else None

    def _bind(self, name: str, value: Value, into: Namespace, scope: Scope) -> None:
        scope[name] = value
        if carries_marker(value):
            self.evaluator.aliases.add(name)
            if isinstance(into, DeclaredClass):
                self.evaluator.class_aliases.add(name)

    def _pytestmark(self, value: Value, node: ast.expr) -> NeedJson | None:
        if isinstance(value, Items) and not value.is_list:
            raise CannotTell("pytestmark is a tuple, which pytest refuses", node)
        return closest(value, node)

    def _augment(self, statement: ast.AugAssign, into: Namespace, scope: Scope) -> None:
        if not isinstance(statement.target, ast.Name):
            return
        name = statement.target.id
        more = self.evaluator.value(statement.value, scope)
        old = scope.get(name, Kind.OTHER)
        if not carries_marker(more) and not carries_marker(old):
            scope[name] = Kind.OTHER
        elif name == "pytestmark" and isinstance(into.pytestmark, ast.List) and isinstance(statement.op, ast.Add):
            value = added(old, more)
            into.own = self._pytestmark(value, statement)
            self._bind(name, value, into, scope)
        else:
            raise CannotTell(f"{name} is changed in place", statement)

    def _function(self, node: Function, scope: Scope) -> DeclaredTest | None:
        own: NeedJson | None = None
        params: tuple[NeedJson | None, ...] = (None,)
        certain = True
        for decorator in reversed(node.decorator_list):
            value = self.evaluator.value(decorator, scope)
            marked = own is not None or params != (None,)
            match value:
                case Kind.FIXTURE if not marked:
                    return None
                case GpusMark() | Kind.GPUS:
                    own = own if own is not None else closest(value, decorator)
                case Parametrized(needs):
                    if params != (None,):
                        raise CannotTell("two parametrize decorators, both with gpus markers", decorator)
                    params = needs
                case Kind.OTHER:
                    certain = certain and not _root(decorator)[1].endswith("fixture")
                    self._check_keeps(decorator, marked)
                case Kind.OTHER_MARK:
                    pass
                case _:
                    raise CannotTell(f"decorator {ast.unparse(decorator)}", decorator)
        if own is not None or params != (None,):
            self.marked.add(node.name)
        is_abstract = any(_root(decorator)[1].startswith("abstract") for decorator in node.decorator_list)
        return DeclaredTest(own, params, certain, is_abstract=is_abstract)

    def _check_keeps(self, decorator: ast.expr, marked: bool) -> None:
        root = _root(decorator)[0]
        if marked and self.modules.get(root, root) not in KEEPS_MARKERS:
            raise CannotTell(f"decorator {ast.unparse(decorator)} may drop the gpus marker below it", decorator)

    def _class(self, node: ast.ClassDef, around: Namespace, scope: Scope) -> DeclaredClass:
        declared = DeclaredClass(certain=not node.keywords)
        before = len(self.marked)
        self._inherit(declared, node, around, scope)
        self.read(node.body, declared, scope.new_child())
        for decorator in reversed(node.decorator_list):
            value = self.evaluator.value(decorator, scope)
            if isinstance(value, GpusMark) or value is Kind.GPUS:
                declared.own = declared.own if declared.own is not None else closest(value, decorator)
            elif value is Kind.OTHER:
                self._check_keeps(decorator, declared.own is not None)
                root = _root(decorator)[0]
                declared.certain = declared.certain and self.modules.get(root, root) in KEEPS_MARKERS
        if declared.own is not None or len(self.marked) > before or any(base.own for base in declared.bases):
            self.marked.add(node.name)
        return declared

    def _inherit(self, declared: DeclaredClass, node: ast.ClassDef, around: Namespace, scope: Scope) -> None:
        bases: list[DeclaredClass] = []
        for expression in node.bases:
            base = expression.value if isinstance(expression, ast.Subscript) else expression
            known = around.members.get(base.id) if isinstance(base, ast.Name) else None
            if isinstance(known, DeclaredClass):
                bases.append(known)
                self.evaluator.understood.add(id(base))
                declared.may_have_more |= known.may_have_more
                if declared.is_test_case is not True:
                    declared.is_test_case = declared.is_test_case or known.is_test_case
            elif self.evaluator.value(base, scope) is Kind.TEST_CASE:
                declared.is_test_case = True
            elif ast.unparse(base) != "object":
                declared.may_have_more = True
                declared.is_test_case = declared.is_test_case or None
        declared.bases = tuple(bases)
        try:
            declared.shape = type(node.name, tuple(base.shape for base in bases), {})
        except TypeError:
            raise CannotTell(f"the bases of {node.name} cannot be ordered", node) from None

    def _maybe(self, statement: ast.stmt, into: Namespace) -> None:
        for name in _bound(statement, into_functions=False):
            into.members[name] = DeclaredTest(certain=False, is_function=False)
            into.may_have_more |= name == "*"

    def check_leftovers(self, tree: ast.Module) -> None:
        """Raise CannotTell for a use of the marker, of an alias, or of a marked test that has not been understood."""
        evaluator = self.evaluator
        for node in mentions(tree, evaluator.aliases, evaluator.class_aliases):
            if id(node) not in evaluator.understood:
                raise CannotTell(f"{ast.unparse(node)} is used in a way that only running it would show", node)
        for node in _outside_functions(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in self.marked:
                if id(node) not in evaluator.understood:
                    raise CannotTell(f"{node.id} carries a gpus marker and is used again", node)

    def needs(self, space: Namespace, enclosing: NeedJson | None) -> Iterator[tuple[NeedJson, bool]]:
        """The need of each test in `space` whose surroundings ask for `enclosing`, and whether it is certain."""
        lineage = _lineage(space)
        foreign = isinstance(space, DeclaredClass) and space.may_have_more
        is_test_case = space.is_test_case if isinstance(space, DeclaredClass) else False
        own = _own_of(lineage)
        enclosing = own if own is not None else enclosing
        if space.may_have_more:
            yield from _given(enclosing, False)
        seen: set[str] = set()
        for ancestor in lineage:
            for name, member in ancestor.members.items():
                if name in seen:
                    continue
                seen.add(name)
                certain = ancestor is space or not foreign
                if isinstance(member, DeclaredTest):
                    yield from self._of_test(name, member, enclosing, is_test_case, certain)
                elif isinstance(member, DeclaredClass) and is_test_case is not True:
                    collected = self._is_collected(name, member)
                    for need, sure in self.needs(member, enclosing) if collected is not False else ():
                        yield need, sure and certain and collected is True and is_test_case is False

    def _of_test(
        self, name: str, test: DeclaredTest, enclosing: NeedJson | None, is_test_case: bool | None, certain: bool
    ) -> Iterator[tuple[NeedJson, bool]]:
        verdicts = set()
        if is_test_case is not True:
            verdicts.add(_matches(name, self.patterns.functions))
        if is_test_case is not False:
            verdicts.add(name.startswith("test"))
            if test.params != (None,):
                raise CannotTell(f"{name}: parameters in a class that may be a TestCase", ast.Module())
        if not test.is_function and _matches(name, self.patterns.classes):
            verdicts.add(True)
        if True in verdicts:
            sure = certain and test.certain and False not in verdicts
            for param in (None,) if test.own is not None else test.params:
                yield from _given(test.own or param or enclosing, sure)

    def _is_collected(self, name: str, declared: DeclaredClass) -> bool | None:
        lineage = _lineage(declared)
        constructs = any(method in each.members for each in lineage for method in ("__init__", "__new__"))
        is_abstract = any(
            isinstance(member, DeclaredTest) and member.is_abstract
            for each in lineage
            for member in each.members.values()
        )
        if declared.is_test_case is None:
            verdict = True if _matches(name, self.patterns.classes) and not constructs else None
        else:
            verdict = declared.is_test_case or (_matches(name, self.patterns.classes) and not constructs)
        sure = not is_abstract and all(each.certain for each in lineage if isinstance(each, DeclaredClass))
        return verdict if sure or verdict is False else None


def _given(need: NeedJson | None, certain: bool) -> Iterator[tuple[NeedJson, bool]]:
    if need is not None:
        yield need, certain


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
    """The marker of a class and its bases; which of several is closest differs between versions of pytest."""
    marked = [each.own for each in lineage if each.own is not None]
    if any(need != marked[0] for need in marked):
        raise CannotTell("a class and its base class ask for different needs", ast.Module())
    return marked[0] if marked else None


def _root(decorator: ast.expr) -> tuple[str, str]:
    """The first and the last name of a decorator: `torch` and `no_grad` for `@torch.no_grad()`."""
    node = decorator
    last = ""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            last, node = last or node.attr, node.value
        elif isinstance(node, ast.Call):
            node = node.func
        else:
            return "", last
    return node.id, last or node.id


def _outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs when the file is imported."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting.extend([*node.decorator_list, node.args])
        elif not isinstance(node, ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def _bound(tree: ast.AST, into_functions: bool) -> Iterator[str]:
    """Names that `tree` binds, `*` for a star import."""
    for node in ast.walk(tree) if into_functions else _outside_functions(tree):
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
            names.update(_bound(statement, into_functions=False))
        for node in ast.walk(statement):
            match node:
                case ast.Global(declared) | ast.Nonlocal(declared):
                    names.update(declared)
                case ast.NamedExpr(ast.Name(name)):
                    names.add(name)
                case ast.Assign(targets) if node is statement:
                    names.update(
                        name
                        for target in targets
                        if isinstance(target, (ast.Tuple, ast.List, ast.Starred))
                        for name in _bound(target, into_functions=False)
                    )
    return names


def _reaches_namespaces(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Name) and node.id in REACHES_NAMESPACES for node in ast.walk(tree))
