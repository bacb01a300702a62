"""Paths and node ids of a command line, split."""

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.runner.selections import Selection, selected, split_selections


@given(st.lists(st.sampled_from(["a.py", "a.py::t", "a.py::T::t[x::y]", "d", "d/b.py::t", "d/b.py"]), max_size=6))
def test_a_whole_file_beats_a_part_of_it(paths: Sequence[str]) -> None:
    cwd = Path("/suite")
    selections = split_selections(paths, cwd)
    for file, global_values_ in (("a.py", {"a.py"}), ("d/b.py", {"d", "d/b.py"})):
        asked = {path for path in paths if path.startswith(f"{file}::")}
        wanted = set() if global_values_ & set(paths) else asked
        assert set(selected(selections, cwd / file, file)) == wanted


def test_a_bracket_without_a_node_id_is_part_of_the_path() -> None:
    assert split_selections(["odd[1]/test_a.py"], Path("/s")) == [
        Selection("odd[1]/test_a.py", Path("/s/odd[1]/test_a.py"), "")
    ]
