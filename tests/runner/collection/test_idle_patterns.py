"""Patterns of the configuration that match nothing are noted."""

from pathlib import Path

import pytest

from tests.support.suite_runs import QUICK, run, write_suite

CONFIGURATION = """
[tool.rlharness]
together = [["gone.py", "test_a.py"], ["sub/test_b.py", "test_c.py"]]

[tool.rlharness.needs]
"gone/" = 1
"sub/test_b.py" = 0
"""
SAID = {
    "the pattern 'gone/' of the needs table matches no file",
    "the pattern 'gone.py' of together matches no file",
}


@pytest.mark.parametrize("named", [[], pytest.param(["test_a.py"], marks=pytest.mark.full)])
def test_what_does_not_exist_is_noted_whatever_files_were_asked_for(tmp_path: Path, named: list[str]) -> None:
    files = {"pyproject.toml": CONFIGURATION, "test_a.py": QUICK, "sub/test_b.py": QUICK, "test_c.py": QUICK}
    done = run(write_suite(tmp_path, files), "run", "--gpus", "none", *named)
    assert done.code == 0
    notes = [note for note in done.of("collection_finished")[0]["notes"] if not note.startswith("together: ")]
    assert sorted(notes) == sorted(SAID)
