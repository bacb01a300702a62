"""Patterns of the configuration that match nothing are noted."""

from pathlib import Path

from tests.support.suite_runs import QUICK, run, write_suite

CONFIGURATION = """
[tool.rlharness.needs]
"gone/" = 1
"sub/test_b.py" = 0
"""
SAID = {
    "the pattern 'gone/' of the needs table matches no file",
}


def test_patterns_that_match_nothing_are_noted_where_all_files_were_asked_for(tmp_path: Path) -> None:
    files = {"pyproject.toml": CONFIGURATION, "test_a.py": QUICK, "sub/test_b.py": QUICK, "test_c.py": QUICK}
    suite = write_suite(tmp_path, files)
    for named, said in (((), SAID), (("test_a.py",), set())):
        done = run(suite, "run", "--gpus", "none", *named)
        assert done.code == 0
        assert set(done.of("collection_finished")[0]["notes"]) == said
