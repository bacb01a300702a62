"""What counts as a code line, and for which package; `.ci/run` compares the packages with the table."""

from tests.size import code_lines, package_of

SOURCE = '''"""A module.

Of two paragraphs.
"""

# why
WIDTH = (
    1,  # a reason
)
"""Of what."""
'''


def test_a_code_line_is_neither_comment_nor_docstring() -> None:
    assert code_lines(SOURCE) == 3


def test_a_file_counts_for_its_package() -> None:
    paths = ("harness/plugin.py", "harness/lab/gate/golden.py", "rlcore/config.py", "tests/trace/test_diff.py")
    assert [package_of(path) for path in paths] == ["harness", "harness/lab", "rlcore", "tests"]
