import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.bits.errors import UsageError
from harness.process.invocation import Invocation
from harness.render.junit import junit_text
from harness.render.run_reporters import JsonlReporter, LateReporter, make_reporters
from harness.runner.options import RunOptions
from harness.runner.records.recorded_run import PAGE, RECORD
from harness.runner.reporter import Guarded
from tests.support.fake_clock import FakeClock


def reporters(directory: Path, stream: io.StringIO, say: Callable[[str], None], **options: Any) -> list[Guarded]:
    wanted = RunOptions(Invocation(directory, {}), directory, **options)
    return make_reporters(wanted, directory, FakeClock(), stream, say, on_github=False)


def test_all_of_them_tell_one_run(sample_run: Any, tmp_path: Path) -> None:
    said: list[str] = []
    stream = io.StringIO()
    names = {"events": "b.jsonl", "junit": "junit.xml"}
    files = {f"{name}_file": tmp_path / path for name, path in names.items()}
    sample_run.tell(*reporters(tmp_path, stream, said.append, **files))
    assert said == []
    assert (tmp_path / RECORD).read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert (tmp_path / "junit.xml").exists()
    assert "9 units:" in (tmp_path / PAGE).read_text("utf-8")
    display, _, summary = stream.getvalue().partition("\n\n====")
    assert "terminating" in display
    assert "9 units:" in summary


def test_one_that_fails_takes_no_other_with_it(sample_run: Any, tmp_path: Path) -> None:
    said: list[str] = []
    stream = io.StringIO()
    stream.close()
    sample_run.tell(*reporters(tmp_path, stream, said.append))
    assert ["the display" in line or "the summary" in line for line in said] == [True, True]
    assert json.loads((tmp_path / RECORD).read_text().splitlines()[-1])["event"] == "run_finished"

    def say(line: str) -> None:
        raise BrokenPipeError

    sample_run.tell(*reporters(tmp_path, stream, say))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (JsonlReporter, "events cannot be written"),
        (lambda path: LateReporter(path, "JUnit XML", junit_text), "cannot be written to"),
        (lambda path: LateReporter(path, "the page", lambda state, finished: ""), "the page cannot be written to"),
    ],
)
def test_a_file_that_cannot_be_made_is_refused_before_the_run(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "x"):
        with pytest.raises(UsageError, match=said):
            make(path)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_terminal_is_drawn_on_and_cleared_before_the_summary(sample_run: Any, tmp_path: Path) -> None:
    said: list[str] = []
    stream = io.StringIO()
    sample_run.tell(*reporters(tmp_path, stream, said.append, live=True, colour=True))
    assert said == []
    drawn, _, summary = stream.getvalue().rpartition("\x1b[?25h")
    assert "TIMED OUT" in drawn
    assert "9 units:" in summary
    assert "9 units:" not in drawn


def test_heavy_libraries_wait_until_they_are_asked_for() -> None:
    code = (
        "import sys, harness.render.run_reporters;"
        "print([name for name in ('rich', 'xml', 'jinja2') if name in sys.modules])"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=Path(__file__).parents[2])
    assert out == "[]\n"
