"""Needs read from source, against hand-written cases and against what pytest collects from random modules."""

import ast
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from harness.plugin import NOTHING
from harness.runner.declarations import Patterns
from harness.runner.static_needs import StaticNeeds

ROOT = Path(__file__).parents[2]


def static(tmp_path: Path, source: str, patterns: Patterns | None = None) -> Any:
    path = tmp_path / "test_it.py"
    path.write_text(textwrap.dedent(source))
    return StaticNeeds(patterns or Patterns(), [str(tmp_path)]).of_file(path)


BROKEN = {
    "syntax error": "def test_a(:",
    "null byte": "def test_a(): pass\x00",
    "too deep": "X = " + "-" * 20_000 + "1",
}


@pytest.mark.parametrize("source", BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_python_cannot_parse_is_imported(tmp_path: Path, source: str) -> None:
    answer = static(tmp_path, source)
    assert answer.need is None
    assert answer.why_import.startswith("it cannot be read: ")


def test_a_file_that_is_not_there_is_imported(tmp_path: Path) -> None:
    answer = StaticNeeds(Patterns(), []).of_file(tmp_path / "test_gone.py")
    assert answer.need is None
    assert "it cannot be read: " in answer.why_import


def test_the_reason_names_the_line(tmp_path: Path) -> None:
    source = """
        import pytest
        from sizes import SIZE
        @pytest.mark.gpus(SIZE)
        def test_a(): pass
    """
    assert static(tmp_path, source).why_import == "line 4: the gpus marker's argument SIZE is not literal"


def test_an_invalid_escape_gives_no_warning(tmp_path: Path) -> None:
    assert static(tmp_path, r"def test_a(): assert '\d' " "# gpus").need == NOTHING


@pytest.mark.parametrize(
    "line",
    [
        "from marks import big",
        "from marks import *",
        "import marks",
        "from deep.down import marks",
        "from deep.down.marks import big",
        "from .marks import big",
        "from . import marks",
    ],
)
def test_a_file_that_imports_a_module_with_the_marker_is_imported(tmp_path: Path, line: str) -> None:
    for directory in (tmp_path, tmp_path / "deep" / "down"):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "marks.py").write_text("import pytest\nbig = pytest.mark.gpus(8)")
    answer = static(tmp_path, f"{line}\ndef test_a(): pass")
    assert answer.need is None
    assert "line 1: it imports marks.py" in answer.why_import
    inside = f"def test_a():\n    {line}" if "*" not in line else "def test_a(): pass"
    assert static(tmp_path, inside).need == NOTHING


def test_a_shared_module_without_the_marker_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("num_gpus = 8\nclass Pool:\n    gpus = 1\nraise SystemExit('imported')")
    assert static(tmp_path, "from shared import num_gpus, Pool\ndef test_a(): assert Pool.gpus").need == NOTHING


# Random modules: the source is put together from these pieces, and pytest itself is asked what it collects.

needs_text = st.sampled_from(["1", "2", "4", "N", "N + 1", "0", "2, memory_gb=40", "1, min_capability=9.0"])
marker = st.one_of(
    needs_text.map(lambda need: f"pytest.mark.gpus({need})"),
    st.sampled_from(["two", "pytest.mark.slow", "gpu(3)", "mark.gpus(2)"]),
)
mark_list = st.lists(marker, max_size=2).map(lambda marks: f"[{', '.join(marks)}]")
parametrize = st.lists(
    st.one_of(st.just("1"), st.one_of(marker, mark_list).map(lambda marks: f"pytest.param(1, marks={marks})")),
    min_size=1,
    max_size=3,
).map(lambda sets: f"pytest.mark.parametrize('n', [{', '.join(sets)}])")
foreign = st.sampled_from(["keeping", "dropping", "pytest.mark.slow", "unittest.skip('x')"])
decorators = st.lists(st.one_of(marker, marker, marker, foreign), max_size=2)
names = st.sampled_from(["a", "b", "c"])
indent = "    ".__add__


def indented(blocks: list[list[str]]) -> list[str]:
    return [indent(line) for block in blocks for line in block]


@st.composite
def functions(draw: st.DrawFn, is_method: bool) -> list[str]:
    prefix = draw(st.sampled_from(["test_", "test_", "test_", "helper_"]))
    marks = draw(decorators)
    with_params = draw(st.integers(0, 3)) == 0
    if with_params:
        marks.insert(draw(st.integers(0, len(marks))), draw(parametrize))
    arguments = ", ".join(["self"] * is_method + ["n"] * with_params)
    return [*(f"@{mark}" for mark in marks), f"def {prefix}{draw(names)}({arguments}): pass"]


@st.composite
def classes(draw: st.DrawFn, depth: int) -> list[str]:
    name = draw(st.sampled_from(["TestA", "TestB", "Base", "Mixin"]))
    bases = draw(st.sampled_from(["", "", "", "(Root)", "(unittest.TestCase)", "(Root, Other)", "(Foreign)"]))
    body: list[list[str]] = []
    if draw(st.booleans()):
        body.append([f"pytestmark = {draw(st.one_of(marker, mark_list))}"])
    if draw(st.integers(0, 5)) == 0:
        body.append(["def __init__(self, *args): super().__init__(*args)"])
    body += draw(st.lists(functions(is_method=True), max_size=3))
    if depth and draw(st.booleans()):
        body.append(draw(classes(depth=depth - 1)))
    marks = draw(decorators) if draw(st.booleans()) else []
    marks = [mark for mark in marks if mark not in ("keeping", "dropping")]
    return [*(f"@{mark}" for mark in marks), f"class {name}{bases}:", *indented([*body, ["pass"]])]


conditionals = st.tuples(st.sampled_from(["if COUNT:", "if not COUNT:", "with NOTHING:"]), functions(is_method=False))
statements = st.one_of(
    functions(is_method=False),
    functions(is_method=False),
    classes(depth=1),
    classes(depth=1),
    st.one_of(marker, mark_list).map(lambda marks: [f"pytestmark = {marks}"]),
    conditionals.map(lambda parts: [parts[0], *indented([parts[1]])]),
    st.sampled_from(
        [["N = 3"], ["two = pytest.mark.gpus(2)"], ["test_a = test_b = helper = print"], ["test_c = helper_a = None"]]
    ),
    st.integers(0, 20).map(lambda n: ["@pytest.mark.gpus(COUNT)", "def test_count(): pass"] if n == 0 else ["pass"]),
)
modules = st.lists(statements, min_size=1, max_size=6).map(
    lambda blocks: "\n".join([PREAMBLE, *(line for block in blocks for line in block)]) + "\n"
)

PREAMBLE = """
import contextlib
import functools
import unittest
import pytest
from pytest import mark
from shared import COUNT, Foreign, dropping
N = 2
NOTHING = contextlib.nullcontext()
gpu = pytest.mark.gpus
two = gpu(2)
keeping = functools.lru_cache
class Root:
    @pytest.mark.gpus(5)
    def test_root(self): pass
    def test_a(self): pass
class Other:
    pytestmark = pytest.mark.gpus(6)
    def test_b(self): pass
"""

SHARED = """
COUNT = 7
class Foreign:
    def test_foreign(self): pass
def dropping(test):
    def wrapper(*args): pass
    return wrapper
"""

ASK_PYTEST = """
import json, pytest
from harness.plugin import need_of_items

errors = set()

def pytest_collectreport(report):
    if report.failed:
        errors.add(report.nodeid.partition("::")[0])

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    files = {}
    for item in items:
        files.setdefault(item.path.name, []).append(item)
    with open("needs.json", "w") as file:
        json.dump({"errors": sorted(errors), "needs": {name: need_of_items(of) for name, of in files.items()}}, file)
"""


def collected_by_pytest(directory: Path, sources: list[str]) -> tuple[set[str], dict[str, Any]]:
    (directory / "shared.py").write_text(SHARED)
    (directory / "conftest.py").write_text(ASK_PYTEST)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpus\n    slow\n")
    for number, source in enumerate(sources):
        (directory / f"test_{number}.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "--import-mode=importlib"]
    subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{directory}"},
        check=False,
        capture_output=True,
        timeout=120,
    )
    answer = json.loads((directory / "needs.json").read_text())
    return set(answer["errors"]), answer["needs"]


@settings(
    max_examples=6,
    phases=(Phase.explicit, Phase.generate),  # a module that fails is printed; to shrink the other 59 takes minutes
)
@given(st.lists(modules, min_size=60, max_size=60, unique=True))
def test_the_source_and_pytest_agree_or_the_source_says_it_cannot_tell(
    tmp_path_factory: pytest.TempPathFactory, sources: list[str]
) -> None:
    directory = tmp_path_factory.mktemp("modules")
    errors, needs = collected_by_pytest(directory, sources)
    reader = StaticNeeds(Patterns(), [str(directory)])
    num_told = 0
    for number, source in enumerate(sources):
        name = f"test_{number}.py"
        answer = reader.of_file(directory / name)
        if answer.need is None or name in errors:
            continue
        num_told += 1
        assert answer.need == needs.get(name, NOTHING), source
    assert num_told > 10  # an answer of "cannot tell" to everything would prove nothing


@given(modules)
@settings(max_examples=50)
def test_whitespace_and_comments_change_nothing(tmp_path_factory: pytest.TempPathFactory, source: str) -> None:
    directory = tmp_path_factory.getbasetemp()
    first = static(directory, source)
    again = static(directory, ast.unparse(ast.parse(source)))
    assert first.need == again.need


FAULTS = {
    "import no_such_module": "line 1: no module no_such_module is found",
    "from no_such_module.sub import a": "line 1: no module no_such_module is found",
    "import beside, os, pytest, click.nothing": None,
    "from . import no_such_module": None,
    "try:\n    import no_such_module\nexcept ImportError: pass": None,
    "import pytest\npytest.importorskip('x')\nimport no_such_module": None,
    "def test_a(): import no_such_module": None,
    "import pytest\n@pytest.mark.timeout('soon')\ndef test_a(): pass": "line 2: timeout marker: 'soon'",
    "from pytest import mark\n@mark.timeout(timeout='x')\ndef test_a(): pass": "line 2: timeout marker: 'x'",
    "import pytest\n@pytest.mark.timeout('2.5')\ndef test_a(): pass": None,
    "import pytest\n@pytest.mark.timeout(0)\ndef test_a(): pass": None,
    "import pytest\n@pytest.mark.timeout(LIMIT)\ndef test_a(): pass": None,
}


@pytest.mark.parametrize(("source", "why"), FAULTS.items(), ids=map(str, range(len(FAULTS))))
def test_a_file_that_cannot_be_imported_has_to_be(tmp_path: Path, source: str, why: str | None) -> None:
    (tmp_path / "beside.py").touch()
    path = tmp_path / "test_it.py"
    path.write_text(source)
    answer = StaticNeeds(Patterns(), []).of_file(path, finds_faults=True)
    assert (answer.need, answer.why_import) == ((NOTHING, "") if why is None else (None, why))
    assert StaticNeeds(Patterns(), []).of_file(path).need == NOTHING
