"""What a recording is judged by that needs no program: command lines, ends, reports that are cut."""

from pathlib import Path

import pytest

from harness.lab.experiment import recording_result
from harness.lab.experiment.recording_result import await_recorders, read_reports
from harness.recording.run_spec import PROCESSES, Report, RunSpec
from tests.support.fake_clock import FakeClock
from tests.support.file_limits import largest_file


def test_reports_that_are_cut_are_left_out(tmp_path: Path) -> None:
    directory = tmp_path / PROCESSES
    directory.mkdir()
    whole = [Report(pid, ("a.py",), "python", rank=pid) for pid in (30, 4)]
    for report in whole:
        (directory / f"{report.pid}.json").write_text(report.to_text(), encoding="utf-8")
    (directory / "5.json").write_text(whole[0].to_text()[:40], encoding="utf-8")
    (directory / "6.json").write_text("[]", encoding="utf-8")
    assert read_reports(tmp_path) == (whole[1], whole[0])


def test_recorders_that_do_not_end_are_waited_for_no_longer_than_the_limit(tmp_path: Path) -> None:
    (tmp_path / PROCESSES).mkdir()
    living = Report(1, ("init",), "python", rank=0)
    (tmp_path / PROCESSES / "1.json").write_text(living.to_text(), encoding="utf-8")
    assert await_recorders(tmp_path, FakeClock(), limit_s=0.0) == (1,)


def test_a_program_that_failed_on_a_full_disk_is_told_with_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(lack: str) -> str:
        monkeypatch.setattr(recording_result, "shortage_at", lambda path: lack)
        return recording_result.finish(tmp_path, RunSpec(("python",)), 127).problems[0].what

    assert said("") == "the program ended with exit code 127"
    assert said("the disk is full") == "the program ended with exit code 127; the disk is full"
    whole = (tmp_path / recording_result.RESULT).read_bytes()
    with largest_file(10):
        said("")
    assert (tmp_path / recording_result.RESULT).read_bytes() == whole, "the earlier one, and no half of another"
