"""`rlharness demo`: what it shows, what it writes and refuses, and how it ends without torch or by a signal."""

import json
import re
import shutil
import sys
import tomllib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.cli.main import main
from harness.lab.demo.findings import (
    PLANTED_OUTCOMES,
    DemoResult,
    DivergenceFinding,
    FileFinding,
)
from harness.lab.demo.project import FILES, suite_files, write_project
from harness.render.demo import demo_json, demo_text
from harness.runner.units import Outcome
from tests.demo_example import shortened
from tests.support.manual import README
from tests.support.suite_runs import ROOT, Done, interrupted, started

pytestmark = pytest.mark.usefixtures("own_cache")  # for the histories of runs
OUTCOMES = {path: PLANTED_OUTCOMES.get(path, Outcome.PASSED) for path in suite_files()}
PATIENCE_S = 270.0
"""For a whole demo, which takes some 25 seconds of processor time."""
FOUND = DemoResult(
    Path("/tmp/a demo"),
    tuple(FileFinding(path, outcome, outcome) for path, outcome in OUTCOMES.items()),
    DivergenceFinding(3, "rollout", "batch.0"),
)
MISSED = [
    replace(FOUND, divergence=DivergenceFinding()),
    replace(FOUND, divergence=DivergenceFinding(2, "rollout", "batch.0")),
    replace(FOUND, files=(*FOUND.files[:-1], replace(FOUND.files[-1], outcome=Outcome.FAILED))),
    replace(FOUND, files=(replace(FOUND.files[0], outcome=None), *FOUND.files[1:])),
]


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
    assert suite.outcomes == {path: outcome.value for path, outcome in OUTCOMES.items()}
    assert "DIVERGED  step 3, rollout batch.0" in shown.stdout
    assert shown.stdout.count("  ok  ") == len(PLANTED_OUTCOMES) + 2
    assert "NOT FOUND" not in shown.stdout
    assert "\x1b" not in shown.stdout


@pytest.mark.full
def test_it_shows_the_commands_to_type(shown: Done) -> None:
    typed = [line.split()[1:3] for line in shown.stdout.splitlines() if line.startswith("$ ")]
    assert typed == [
        ["cd", "rlharness-demo"],
        *(["rlharness", command] for command in ("run", "replay", "plan", "replay")),
    ]


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
    monkeypatch.setattr("harness.cli.commands.demo.find_spec", lambda name: None)
    assert main(["demo", "--json", "--out", "deep/er"]) == ExitCode.OK
    out, err = capfd.readouterr()
    answer = json.loads(out)
    assert answer["exit_code"] == ExitCode.OK
    assert answer["directory"] == str(tmp_path / "deep" / "er")
    assert {each["path"]: each["outcome"] for each in answer["suite"]} == OUTCOMES
    assert answer["replay"] is None
    assert "8 units: 5 passed, 1 timed out, 1 crashed, 1 not run" in err


# ------------------------------------------------------------------------------------------------------- what it finds


def test_what_was_not_found_is_marked() -> None:
    assert "NOT FOUND" not in demo_text(FOUND, colour=False)
    assert [demo_text(each, colour=False).count("NOT FOUND") for each in MISSED] == [1] * len(MISSED)
    assert [demo_json(each)["exit_code"] for each in MISSED] == [3] * len(MISSED)


# ------------------------------------------------------------------------------------------------------ what it writes


def test_the_project_is_written_whole_and_anew(tmp_path: Path) -> None:
    write_project(tmp_path)
    wanted = {path.relative_to(FILES) for path in FILES.rglob("*") if path.suffix in (".py", ".toml")}
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()} == wanted
    tomllib.loads((tmp_path / "pyproject.toml").read_text("utf-8"))
    (tmp_path / "train.py").write_text("raise SystemExit('mended')\n")
    (tmp_path / "kept.txt").write_text("mine\n")
    write_project(tmp_path)
    assert (tmp_path / "train.py").read_bytes() == (FILES / "train.py").read_bytes()
    assert (tmp_path / "kept.txt").read_text() == "mine\n"


@pytest.mark.parametrize("kind", ["a file", "another project", "something", "below a file"])
def test_a_directory_that_is_not_its_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    out = Path("there")
    if kind in ("a file", "below a file"):
        out.write_text("mine\n")
    else:
        out.mkdir()
        (out / ("pyproject.toml" if kind == "another project" else "train.py")).write_text("[project]\nname = 'mine'\n")
    words = out / "below" if kind == "below a file" else out
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(["demo", "--out", str(words)]) == ExitCode.USAGE_ERROR
    out_text, err = capsys.readouterr()
    assert out_text == ""
    assert err.startswith("error: ")
    assert str(words) in err.splitlines()[0]
    assert "  remedy: name another one: rlharness demo --out DIR" in err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("kind", ["conftest.py", "tests/conftest.py", "pytest.ini", "torch", "a link", "linked tests"])
def test_a_demo_that_a_checkout_brings_is_refused(tmp_path: Path, kind: str) -> None:
    precious, own = tmp_path / "precious", tmp_path / "rlharness-demo"
    precious.mkdir()
    (precious / "test_loss.py").write_text("mine\n")
    write_project(own)
    write_project(own)
    if kind == "a link":
        (own / "train.py").unlink()
        (own / "train.py").symlink_to(precious / "test_loss.py")
    elif kind == "linked tests":
        shutil.rmtree(own / "tests")
        (own / "tests").symlink_to(precious)
    elif kind == "torch":
        (own / kind).mkdir()
    else:
        (own / kind).write_text("raise SystemExit('run')\n")
    with pytest.raises(UsageError, match="did not write it, or not all of it"):
        write_project(own)
    assert [path.read_text() for path in precious.iterdir()] == ["mine\n"]
