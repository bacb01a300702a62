"""Paths and node ids of a command line, split."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.exit_codes import ExitCode
from harness.runner.selections import Selection, selected, split_selections
from tests.support.suite_runs import QUICK, run, write_suite


@given(st.lists(st.sampled_from(["a.py", "a.py::t", "a.py::T::t[x::y]", "d", "d/b.py::t", "d/b.py"]), max_size=6))
def test_a_whole_file_beats_a_part_of_it(paths: Sequence[str]) -> None:
    cwd = Path("/suite")
    selections = split_selections(paths, cwd)
    for file, global_values_ in (("a.py", {"a.py"}), ("d/b.py", {"d", "d/b.py"})):
        asked = {path for path in paths if path.startswith(f"{file}::")}
        wanted = set() if global_values_ & set(paths) else asked
        assert set(selected(selections, cwd / file, file)) == wanted


def test_a_bracket_without_a_node_id_is_part_of_the_path() -> None:
    assert split_selections(["odd[1]/test_a.py"], Path("/s")) == [Selection(Path("/s/odd[1]/test_a.py"), "")]


@pytest.mark.full
def test_a_node_id_of_no_test_is_refused_whatever_the_file_needs(tmp_path: Path) -> None:
    marks = "import pytest\n@pytest.mark.gpus({})\n"
    wide = marks.format(16) + QUICK + marks.format(8).partition("\n")[2] + "def test_fits(): pass\n"
    suite = write_suite(tmp_path, {"test_wide.py": wide})
    for named in (["test_wide.py::nope"], ["test_wide.py::test_fits", "test_wide.py::test_gone"]):
        done = run(suite, "run", "--gpus", "sim:8", *named)
        done.assert_sound()
        assert (done.code, done.outcomes) == (ExitCode.USAGE_ERROR, {"test_wide.py": "usage_error"})
        assert done.results["test_wide.py"]["reason"] == f"not found: {suite / named[-1]}"
    assert run(suite, "run", "--gpus", "sim:8", "test_wide.py::test_quick").code == ExitCode.UNITS_NOT_RUN
    assert run(suite, "run", "--gpus", "sim:8", "test_wide.py::test_fits").code == ExitCode.OK
