"""`rlharness demo`: what it shows, what it writes and refuses, and how it ends without torch or by a signal."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.bits.exit_codes import ExitCode
from harness.cli.demo import PLANTED, PROJECT
from harness.cli.main import main
from tests.demo_example import shortened
from tests.support.manual import README
from tests.support.suite_runs import ROOT, Done, interrupted, started

pytestmark = pytest.mark.usefixtures("own_cache")  # for the histories of runs
OUTCOMES = {f"tests/{path.name}": "passed" for path in PROJECT.glob("tests/test_*.py")} | PLANTED
PATIENCE_S = 270.0
"""For a whole demo, which takes some 25 seconds of processor time."""


# ---------------------------------------------------------------------------------------------------- from end to end


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, own_cache: Path) -> Done:
    """A whole demo, in its default directory."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    directory = tmp_path_factory.mktemp("first_contact")
    with started(directory, "demo") as process:
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    return Done(directory, process.returncode, stdout, stderr)


@pytest.mark.full
def test_it_finds_what_is_planted(shown: Done) -> None:
    assert shown.code == ExitCode.OK, shown.stdout + shown.stderr
    suite = Done(shown.directory / "rlharness-demo", ExitCode.TESTS_FAILED, "", "")
    suite.assert_sound()
    assert suite.outcomes == OUTCOMES
    assert "DIVERGED  step 3: part 0 of the batch differs" in shown.stdout
    assert shown.stdout.count("  ok  ") == len(PLANTED) + 1
    assert "NOT FOUND" not in shown.stdout
    assert "\x1b" not in shown.stdout


@pytest.mark.full
def test_the_readme_shows_such_a_demo(shown: Done) -> None:
    (block,) = re.findall(r"^```console\n\$ rlharness demo\n(.*?)^```$", README.read_text("utf-8"), re.M | re.S)
    assert headlines(block) == headlines(shortened(shown.stdout))
    assert len(headlines(block)) > 10


def headlines(output: str) -> list[str]:
    """Lines that are the same for every demo: titles, commands, verdicts, findings and cuts."""
    named = output.replace(f" {sys.executable} ", " python ")  # a demo says so where `python` is another one
    lines = [re.sub(r"\d+ lines", "N lines", line) for line in named.splitlines()]
    return [line for line in lines if line.startswith(("# ", "$ ", "DIVERGED", "  ok", "[... "))]


@pytest.mark.full
def test_ctrl_c_ends_it_in_the_middle_of_the_suite(tmp_path: Path) -> None:
    events = tmp_path / "rlharness-demo" / ".rlharness" / "runs" / "latest" / "events.jsonl"
    done = interrupted(tmp_path, "demo", ready=lambda: events.exists() and "attempt_started" in events.read_text())
    assert done.code == ExitCode.INTERRUPTED
    assert "rlharness replay" not in done.stdout
    assert "run_finished" in events.read_text()


@pytest.mark.full
def test_without_torch_it_shows_the_suite_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["demo", "--out", "deep/er"]) == ExitCode.OK
    out, _ = capfd.readouterr()
    assert "The example project is in deep/er.\n" in out
    assert "8 units: 5 passed, 1 timed out, 1 crashed, 1 not run" in out
    assert "install torch to see `rlharness replay`" in out


# ------------------------------------------------------------------------------------- what it finds, writes, refuses


def test_what_was_not_found_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both commands are replaced by ones that find nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.process.supervisor.foreground.run_in_foreground", lambda *words, **settings: 0)
    monkeypatch.setattr(
        "harness.runner.records.recorded_run.read_recorded_run", lambda path: SimpleNamespace(results={})
    )
    assert main(["demo"]) == ExitCode.INTERNAL_ERROR
    assert capsys.readouterr().out.count("NOT FOUND") == len(PLANTED) + (find_spec("torch") is not None)
    written = {path.relative_to(tmp_path / "rlharness-demo") for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {path.relative_to(PROJECT) for path in PROJECT.rglob("*") if path.suffix in (".py", ".toml")}


def test_a_directory_that_is_not_empty_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rlharness-demo").mkdir()
    (tmp_path / "rlharness-demo" / "train.py").write_text("mine\n")
    assert main(["demo"]) == ExitCode.USAGE_ERROR
    assert "  remedy: choose another one with --out" in capsys.readouterr().err
    assert [path.read_text() for path in (tmp_path / "rlharness-demo").iterdir()] == ["mine\n"]
