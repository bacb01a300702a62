"""The environment of a recorded program: the table, and nothing beside it."""

import re
from pathlib import Path

import pytest

from harness.lab.experiment import preparation
from harness.recording.run_spec import RUN, RUN_VARIABLE, RunSpec, boot_directory
from tests.support.manual import text

BOOT = str(boot_directory())
OFF = RunSpec(("python",))


@pytest.mark.parametrize(
    ("before", "after"), [(None, BOOT), ("", BOOT), ("/a", f"{BOOT}:/a"), ("/a:/b", f"{BOOT}:/a:/b")]
)
def test_the_directory_that_starts_a_recording_comes_first(tmp_path: Path, before: str | None, after: str) -> None:
    parent = {"OTHER": "1"} if before is None else {"OTHER": "1", "PYTHONPATH": before}
    env = preparation.prepare(OFF, tmp_path / "t", parent)[1]
    assert env == {"OTHER": "1", RUN_VARIABLE: str(tmp_path / "t" / RUN), "PYTHONPATH": after}


def test_the_manual_has_the_table(tmp_path: Path) -> None:
    (table,) = re.findall(r"^\| variable \| in a recorded program \|\n(?:\|.*\n)+", text(), re.MULTILINE)
    told, documented = (re.findall(r"`([A-Z_]+)`", text) for text in (table, preparation.__doc__ or ""))
    env = preparation.prepare(OFF, tmp_path / "t", {}, "m")[1]
    assert set(told) == set(documented) == env.keys()
