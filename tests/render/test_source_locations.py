"""Files and lines of failed tests, from the text of a failure."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.render.run_github import SourceTree

NODEID = "tests/test_a.py::TestA::test_x"
FILE = "sub/tests/test_a.py"


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    """A suite in a directory of a repository, and a file outside of the repository."""
    root = tmp_path / "repository"
    (root / "sub" / "tests").mkdir(parents=True)
    for name in ("tests/test_a.py", "tests/conftest.py", "helper.py"):
        (root / "sub" / name).write_text("", "utf-8")
    (tmp_path / "library.py").write_text("", "utf-8")
    return SourceTree(root, root / "sub")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("    def test_x():\n>   fail()\n\ntests/test_a.py:6: \n_ _ _\n\nhelper.py:2: ValueError", 6),
        ("tests/test_a.py:2: in f\n    g()\ntests/test_a.py:6: in g\nE   ValueError", 6),
        ('Traceback:\n  File "{root}/sub/tests/test_a.py", line 7, in test_x\n    helper.fail()', 7),
        ('E     File "{root}/sub/tests/test_a.py", line 8\nE   SyntaxError', 8),
        ("file {root}/sub/tests/test_a.py, line 3\nE  fixture 'gone' not found\n\n{root}/sub/tests/test_a.py:3", 3),
    ],
)
def test_the_last_line_of_the_file_itself_is_that_of_the_failure(tree: SourceTree, text: str, line: int) -> None:
    assert tree.locate(NODEID, text.replace("{root}", str(tree.root))) == {"file": FILE, "line": str(line)}


@pytest.mark.parametrize("name", [NODEID, "tests/test_a.py", "tests/test_a.py [2/8]"])
def test_without_a_line_in_the_text_the_file_counts(tree: SourceTree, name: str) -> None:
    text = "library.py:1: error\ngone.py:3: error\n E tests/test_a.py:1: quoted"
    assert tree.locate(name, text) == {"file": FILE}


def test_the_root_directory_of_pytest_may_be_above_the_working_directory(tree: SourceTree) -> None:
    inner = SourceTree(tree.root, tree.cwd / "tests")
    assert inner.locate(NODEID) == {"file": FILE}
    assert inner.locate(NODEID, "test_a.py:6: ValueError") == {"file": FILE, "line": "6"}


def test_what_is_no_file_of_the_repository_has_no_place(tree: SourceTree) -> None:
    assert not tree.locate("a command")
    assert not tree.locate("library.py::test_x")
    assert not SourceTree(tree.root, tree.root.parent).locate("library.py::test_x")
    assert not tree.locate("")


@given(st.text(st.sampled_from('ab/.:1 "\n\0E,'), max_size=60) | st.text(max_size=20), st.text(max_size=20))
def test_no_text_raises(text: str, name: str) -> None:
    here = Path(__file__).parent
    found = SourceTree(here, here).locate(name, text)
    assert not found or (here / found["file"]).is_file()
