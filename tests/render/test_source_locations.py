"""Files and lines of failed tests, from the text of a failure."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.process.invocation import Invocation
from harness.render.run_github import locate

NODEID = "tests/test_a.py::TestA::test_x"
FILE = "sub/tests/test_a.py"


@pytest.fixture
def job(tmp_path: Path) -> Invocation:
    """A suite in a directory of a repository, and a file outside of the repository."""
    root = tmp_path / "repository"
    (root / "sub" / "tests").mkdir(parents=True)
    (root / "sub" / "tests" / "test_a.py").touch()
    (tmp_path / "library.py").touch()
    return Invocation(root / "sub", {"GITHUB_WORKSPACE": str(root)})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("    def test_x():\n>   fail()\n\ntests/test_a.py:6: \n_ _ _\n\nhelper.py:2: ValueError", 6),
        ("tests/test_a.py:2: in f\n    g()\ntests/test_a.py:6: in g\nE   ValueError", 6),
        ('Traceback:\n  File "/r/sub/tests/test_a.py", line 7, in test_x\n    helper.fail()', 7),
        ("file /r/sub/tests/test_a.py, line 3\nE  fixture 'gone' not found", 3),
    ],
)
def test_the_last_line_of_the_file_itself_is_that_of_the_failure(job: Invocation, text: str, line: int) -> None:
    assert locate(job, NODEID, text) == {"file": FILE, "line": str(line)}


@pytest.mark.parametrize("name", [NODEID, "tests/test_a.py", "tests/test_a.py [2/8]"])
def test_without_a_line_in_the_text_the_file_counts(job: Invocation, name: str) -> None:
    assert locate(job, name, "library.py:1: error\ngone.py:3: error") == {"file": FILE}


def test_a_file_outside_of_the_repository_has_no_place(job: Invocation) -> None:
    assert not any(locate(job, name) for name in ("a command", "../../library.py::test_x", "gone.py", ""))


@given(st.text(max_size=20), st.text(max_size=20))
def test_no_text_raises(text: str, name: str) -> None:
    locate(Invocation(Path(__file__).parent, {}), name, text)
