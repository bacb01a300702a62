"""Run specs: orders that are written, what a program is given, directories that are refused."""

import shutil
from pathlib import Path

import pytest

from harness.core.errors import HarnessError, UsageError
from harness.lab.experiments.run_spec import RunSpec, prepare
from harness.recording.recording_config import RecordingConfig
from tests.support.file_limits import largest_file

ARGV = ("/venv/bin/python", "train.py", "--lr", "1e-3")


def test_a_recording_is_prepared(tmp_path: Path) -> None:
    run_spec = RunSpec(ARGV, {"seed": "7"}, metrics=("loss=(x)",), keep=(3,), op_step=4)
    prepared = prepare(run_spec, tmp_path / "new" / "out", {"HOME": "/h", "PYTHONPATH": "/lib"})
    path = tmp_path / "new" / "out" / "orders.json"
    assert RecordingConfig.parse(path.read_text("utf-8")) == RecordingConfig(
        str(path.parent), ARGV, {"seed": "7"}, ("loss=(x)",), (3,), 4, "off", {}
    )
    assert prepared.env["RLHARNESS_TRACE"] == str(path)
    boot, _, rest = prepared.env["PYTHONPATH"].partition(":")
    assert (Path(boot, "sitecustomize.py").is_file(), rest, prepared.env["HOME"]) == (True, "/lib", "/h")


def test_a_directory_that_holds_something_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="is not empty") as refused:
        prepare(RunSpec(ARGV), tmp_path, {})
    assert "--out" in refused.value.remedy
    assert [path.read_text("utf-8") for path in tmp_path.iterdir()] == ["mine"]
    with pytest.raises(UsageError, match=r"nothing can be written to .*/a: "):
        prepare(RunSpec(ARGV), tmp_path / "a", {})
    shutil.rmtree(tmp_path)
    prepare(RunSpec(ARGV), tmp_path, {})


def test_a_directory_that_takes_no_file_is_left_to_the_next_command(tmp_path: Path) -> None:
    with largest_file(0), pytest.raises(HarnessError, match=r"orders.json cannot be written: File too large") as caught:
        prepare(RunSpec(ARGV), tmp_path / "new", {})
    assert "--out" in caught.value.remedy
    assert not (tmp_path / "new").exists()
    prepare(RunSpec(ARGV), tmp_path / "new", {})
