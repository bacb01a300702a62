"""`rlharness report` as it is typed: where the page goes, what it replaces, what it refuses."""

import json
import os
import re
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.cli import report
from harness.cli.main import main
from harness.render.report_page import GENERATOR
from tests.support.traces import flip_bit, steps_of, write


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with traces, and a replay of three runs, which is the working directory."""
    write(tmp_path / "a", steps_of(3))
    write(tmp_path / "b", steps_of(3, flip_bit(1, "backward", "layers.0.weight")))
    for number in (1, 2, 10):
        write(tmp_path / "replay" / f"run-{number}", steps_of(2))
    for name in ("run-1-op", "run-3-op"):  # of what has ended before the run itself
        write(tmp_path / "replay" / name, steps_of(2))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("traces")
def test_a_page_is_written_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "a", "b"]) == ExitCode.OK
    out, err = capsys.readouterr()
    first, last = out.splitlines()
    assert first == "B: b  DIVERGED  step 1: the gradient of layers.0.weight differs"
    assert re.fullmatch(r"report.html: \d+ kB, opens in any browser", last) and err == ""
    assert Path("report.html").read_text("utf-8").startswith("<!doctype html>")


def test_as_json_with_each_verdict(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "a", "b", "a", "--out", "x.html", "--json"]) == ExitCode.OK
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["exit_code"], told["page"], err) == (0, str(traces / "x.html"), "")
    assert told["size_bytes"] == (traces / "x.html").stat().st_size
    assert told["runs"] == [{"letter": x, "name": name, "gaps": []} for x, name in zip("ABC", "aba", strict=True)]
    assert [(each["a"], each["b"], each["verdict"], each["exit_code"]) for each in told["comparisons"]] == [
        ("A", "B", "diverged", 10),
        ("A", "C", "equal", 0),
    ]


@pytest.mark.usefixtures("traces")
def test_what_is_missing_of_a_run_is_said_and_the_page_is_made_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    Path("b", "manifest.json").write_text("{", "utf-8")
    assert main(["report", "a", "b"]) == ExitCode.OK, "it is the page that was asked for"
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "B: b  NOT COMPARABLE  first difference: step 1: the gradient of layers.0.weight differs",
        "  B is incomplete: manifest.json is missing or cut",
    ]
    assert main(["report", "b", "--json"]) == ExitCode.OK
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["gaps"] == ["manifest.json is missing or cut"]


@pytest.mark.usefixtures("traces")
def test_a_replay_stands_for_its_runs_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "replay/run-1/../../replay", "a", "--json"]) == ExitCode.OK
    names = [run["name"] for run in json.loads(capsys.readouterr().out)["runs"]]
    assert names == ["replay/run-1", "replay/run-2", "replay/run-10", "a"]


@pytest.mark.usefixtures("traces")
def test_an_earlier_report_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "a"]) == ExitCode.OK
    before = Path("report.html").read_bytes()
    assert GENERATOR.encode() in before[: report.MARK_BYTES]
    assert main(["report", "a", "b"]) == ExitCode.OK
    assert Path("report.html").read_bytes() != before
    assert main(["report", "a", "nowhere"]) == ExitCode.USAGE_ERROR
    assert capsys.readouterr().err.startswith("error: no trace in")


def test_a_full_disk_leaves_nothing_and_is_said(
    traces: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(beside: str, path: Path) -> None:
        assert Path(beside).stat().st_size > 0
        raise OSError(28, "No space left on device")

    before = sorted(traces.iterdir())
    monkeypatch.setattr(os, "replace", full)
    assert main(["report", "a"]) == ExitCode.USAGE_ERROR
    assert "the report cannot be written" in capsys.readouterr().err
    assert sorted(traces.iterdir()) == before


def test_what_of_a_run_is_damaged_is_said(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (traces / "b" / "curve.jsonl").write_text("garbage\n")
    assert main(["report", "a", "b"]) == ExitCode.OK
    assert "  note: B: curve.jsonl is damaged: it was read up to line 1\n" in capsys.readouterr().out
