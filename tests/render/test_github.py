"""Formats of GitHub Actions: workflow commands that stay one line, Markdown that shows text as it is."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.render.github import MAX_BYTES, SUMMARY_VARIABLE, append_to_summary, command, fenced
from tests.support.github_commands import read_back


@settings(derandomize=True)
@given(st.text(), st.text())
def test_whatever_stands_in_a_command_is_read_back(message: str, title: str) -> None:
    characters = {"\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"}  # which end no line for GitHub
    message, title = ("".join(each for each in text if each not in characters) for text in (message, title))
    line = command("error", message, title=title)
    assert "\n" not in line and "\r" not in line
    assert read_back(line) == ("error", {"title": title}, message)


@settings(derandomize=True)
@given(st.lists(st.text("`~ a", max_size=8) | st.integers(0, 8).map("`".__mul__), max_size=5))
def test_no_line_ends_the_block_that_it_is_in(lines: list[str]) -> None:
    opening, *inside, closing = fenced(lines)
    assert inside == lines
    assert opening == f"{closing}text" and set(closing) == {"`"} and len(closing) >= 3
    assert not any(re.fullmatch(f" {{0,3}}`{{{len(closing)},}} *", line) for line in inside)


@pytest.mark.parametrize(
    ("num_before", "wanted"), [(0, "long"), (MAX_BYTES - 4, "long"), (MAX_BYTES - 3, "s"), (MAX_BYTES, "")]
)
def test_what_a_step_wrote_before_counts_against_the_limit(num_before: int, wanted: str, tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_bytes(b"x" * num_before)
    append_to_summary("long", {SUMMARY_VARIABLE: str(path)}, short="s")
    assert path.read_bytes()[num_before:] == wanted.encode()
