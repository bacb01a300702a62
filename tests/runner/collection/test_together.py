"""Files that are kept together: one process, the group's order, and each test with its outcome."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.runner.collection.collect import Collected
from harness.runner.collection.units import keep_together
from harness.runner.need import Need
from harness.runner.units import NeedSource, Unit
from tests.support.suite_runs import run, write_suite

pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.timeout(120)]

SETS = "import os\ndef test_sets(): os.environ['OF_A'] = str(os.getpid())\n"
READS = "import os\ndef test_reads(): assert os.environ['OF_A'] == str(os.getpid())\n"
NO_NEED = Need()
TOGETHER = '[tool.rlharness]\ntogether = [["test_z.py", "test_b.py"]]\n'
FILES = {"test_a.py": "def test(): pass\n", "test_b.py": READS, "test_z.py": SETS}


@pytest.mark.full
def test_a_file_passes_after_the_one_that_it_leans_on(tmp_path: Path) -> None:
    write_suite(tmp_path, FILES)
    assert run(tmp_path, "run", "--gpus", "none", "--no-check-leaning").outcomes["test_b.py"] == "failed"
    write_suite(tmp_path, {"pyproject.toml": TOGETHER})
    done = run(tmp_path, "run", "--gpus", "none", "--junit", "report.xml")
    done.assert_sound()
    assert done.outcomes == {"test_a.py": "passed", "test_b.py": "passed"}
    assert done.results["test_b.py"]["tests"]["counts"] == {"passed": 2}
    cases = [case.get("name") for case in ET.parse(tmp_path / "report.xml").iter("testcase")]
    assert sorted(map(str, cases)) == ["test", "test_reads", "test_sets"]
    assert "test_z.py and test_b.py run in one process" in done.stdout


@pytest.mark.full
def test_a_retry_runs_all_files_of_the_group_again(tmp_path: Path) -> None:
    once = "import os, pathlib\ndef test_once():\n    made = pathlib.Path('made')\n    was = made.exists()\n"
    once += "    made.touch()\n    assert was and os.environ['OF_A']\n"
    write_suite(tmp_path, {**FILES, "test_b.py": once, "pyproject.toml": TOGETHER})
    done = run(tmp_path, "run", "--gpus", "none", "--retries", "1")
    assert (done.outcomes["test_b.py"], done.code) == ("flaky", 0)


def test_a_value_that_is_no_list_of_lists_is_refused(tmp_path: Path) -> None:
    write_suite(tmp_path, {**FILES, "pyproject.toml": '[tool.rlharness]\ntogether = ["test_b.py"]\n'})
    done = run(tmp_path, "run", "--gpus", "none")
    assert done.code == ExitCode.USAGE_ERROR
    assert "together" in done.stderr


def collected(*units: Unit) -> Collected:
    return Collected(units, Path("/suite"), (), sizes_bytes={unit.path: 10 for unit in units})


def unit(path: str, need: Need = NO_NEED, **more: Any) -> Unit:
    return Unit(path, need, NeedSource.IMPORT, **more)


def test_a_group_needs_what_any_of_its_files_needs() -> None:
    units = [unit("a", Need(gpus=2)), unit("b", timeout_s=5.0), unit("c", Need(gpus=1, memory_gb=3.0)), unit("d")]
    found = keep_together(collected(*units), [["c", "a", "b"]])
    assert [each.path for each in found.units] == ["b", "d"]
    joined = found.units[0]
    assert (joined.need, joined.together, joined.timeout_s) == (Need(gpus=2, memory_gb=3.0), ("c", "a", "b"), 5.0)
    assert found.sizes_bytes["b"] == 30


def test_groups_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="two groups"):
        keep_together(collected(unit("a"), unit("b"), unit("c")), [["a", "b"], ["b", "c"]])
    models = unit("a", Need(gpus=1, model="A")), unit("b", Need(gpus=1, model="B"))
    with pytest.raises(UsageError, match="cannot share"):
        keep_together(collected(*models), [["a", "b"]])


NAMES = st.sampled_from("abcdefgh")


@given(st.lists(st.lists(NAMES, min_size=1, unique=True), max_size=3), st.sets(NAMES))
def test_every_file_is_in_exactly_one_unit(groups: list[list[str]], broken: set[str]) -> None:
    of_one = [name for group in groups for name in group if name not in broken]
    units = [unit(name, collect_error="x" if name in broken else "") for name in "abcdefgh"]
    if len(of_one) != len(set(of_one)):
        with pytest.raises(UsageError):
            keep_together(collected(*units), groups)
        return
    found = keep_together(collected(*units), groups)
    assert sorted(path for each in found.units for path in each.together or (each.path,)) == list("abcdefgh")
    assert {each.together for each in found.units if each.together} == {
        able for group in groups if len(able := tuple(name for name in group if name not in broken)) > 1
    }
