"""`rlharness plan` of files that a run could not collect."""

import json
from pathlib import Path

from harness.bits.exit_codes import ExitCode
from tests.support.suite_runs import QUICK, run, write_suite

FAULTS = {
    "test_b.py": ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
    "test_c.py": ("import pytest\npytestmark = pytest.mark.timeout('soon')\n", "timeout marker: 'soon'; legal: "),
}


def test_plan_names_files_that_a_run_could_not_collect(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": QUICK, **{path: source + QUICK for path, (source, _) in FAULTS.items()}})
    done = run(tmp_path, "plan", "--gpus", "none", "--json")
    assert (done.code, done.stderr) == (ExitCode.TESTS_FAILED, "")
    found = json.loads(done.stdout)
    assert [unit["path"] for unit in found["units"]] == ["test_a.py"]
    reasons = {each["path"]: each["reason"] for each in found["never"]}
    assert reasons.keys() == FAULTS.keys()
    for path, (_, said) in FAULTS.items():
        assert reasons[path].startswith("cannot be collected: ")
        assert said in reasons[path]
