"""No package grows above its budget."""

import json

from tests.size import TABLE, code_lines, package_of, sizes

SOURCE = '''"""A module.

Of two paragraphs.
"""

# why
WIDTH = (
    1,  # a reason
)
"""Of what."""
'''


def test_no_package_is_larger_than_the_table_allows() -> None:
    table = json.loads(TABLE.read_text("utf-8"))
    assert {name: num for name, num in sizes().items() if num > table.get(name, {"most": 0})["most"]} == {}


def test_a_code_line_is_neither_comment_nor_docstring() -> None:
    assert code_lines(SOURCE) == 3


def test_a_file_counts_for_its_package() -> None:
    paths = ("harness/plugin.py", "harness/lab/gate/golden.py", "rlcore/config.py", "tests/trace/test_diff.py")
    assert [package_of(path) for path in paths] == ["harness", "harness/lab", "rlcore", "tests"]
