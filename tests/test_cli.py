"""The command line: what it refuses and how, where it prints, and that a broken pipe or a bug of ours is told apart."""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from harness import __version__
from harness.bits.exit_codes import ExitCode
from harness.cli.main import main
from tests.support.suite_runs import HARNESS, QUICK, environment, run, write_suite

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.usefixtures("own_cache")  # for the histories of runs


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with one passing file, which is the working directory."""
    write_suite(tmp_path, {"test_a.py": QUICK})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a refused command line is told; nothing was started, nothing is on standard output."""
    assert main(words) == ExitCode.USAGE_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


# ------------------------------------------------------------------------------------------------------ what it says


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["run", "--help"], ["run", "-h"], ["plan", "--help"]])
def test_help(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(words) == ExitCode.OK
    out, err = capsys.readouterr()
    assert out.startswith("Usage: rlharness")
    assert err == ""
    assert max(len(line) for line in out.splitlines()) <= 110


def test_the_help_of_run_begins_with_what_is_used_most(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--help"])
    out = capsys.readouterr().out
    sections = [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert sections == ["Used most:", "Which tests:", "GPUs:", "Limits:", "Processes:", "Results:", "Others:"]
    assert out.index("--gpus") < out.index("-k EXPR") < out.index("--junit") < out.index("Which tests:")
    assert out.partition("Others:\n")[2].split()[0] == "-h,", "every other option has a section"


def test_a_command_parsed_without_the_group_still_knows_its_help() -> None:
    """In an interpreter of its own: click keeps the help option that a command was first parsed with."""
    code = "from harness.cli.main import cli, main; cli.commands['plan'].make_context('plan', []); main(['plan', '-h'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: rlharness plan")
    assert done.stderr == ""


def test_help_is_quick_to_come_by_and_imports_nothing_heavy() -> None:
    code = "import sys; from harness.cli.main import main; main(['--help']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1]
    for heavy in ("pydantic", "rich", "pytest", "asyncio", "psutil", "sqlite3", "torch", "harness.runner.run"):
        assert f"'{heavy}'" not in modules


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == ExitCode.OK
    assert capsys.readouterr().out == f"rlharness, version {__version__}\n"


def test_no_command_at_all_is_answered_with_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Commands:" in refused(capsys)


# ------------------------------------------------------------------------------------------------------ what it refuses


@pytest.mark.parametrize("words", [["run"], ["plan"]])
@pytest.mark.parametrize("gpus", ["sim:x", "some", "-1", "1,1"])
def test_a_wrong_text_of_gpus_names_the_legal_forms(
    suite: Path, capsys: pytest.CaptureFixture[str], words: list[str], gpus: str
) -> None:
    err = refused(capsys, *words, "--gpus", gpus)
    assert err.startswith("error: ")
    assert gpus.removeprefix("sim:") in err.splitlines()[0]
    assert "  legal:  " in err
    assert "  remedy: " in err
    assert not (suite / ".rlharness").exists(), "nothing was begun"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.rlharness]\ntimeuot = 3\n", "did you mean 'timeout'?"),
        ("[tool.rlharness]\ntimeout = -3\n", "seconds, above 0"),
        ("[tool.rlharness]\nneeds = 3\n", "a table of patterns"),
        ("[tool.rlharness.needs]\n'*.py' = { gpu = 1 }\n", "did you mean 'gpus'?"),
        ("[tool.rlharness\n", "is not valid TOML"),
    ],
)
def test_a_wrong_configuration_names_the_nearest_key_or_what_is_legal(
    suite: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (suite / "pyproject.toml").write_text(text)
    err = refused(capsys, "run", "--gpus", "none")
    assert err.startswith(f"error: {suite}/pyproject.toml")
    assert said in err


def test_a_needs_file_that_is_not_there_is_named(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere.toml: No such file or directory" in refused(capsys, "run", "--needs", "nowhere.toml")


@pytest.mark.full
@pytest.mark.parametrize("option", ["--events", "--junit"])
def test_a_report_that_cannot_be_written_is_said_before_anything_runs(
    suite: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    err = refused(capsys, "run", "--gpus", "none", option, "test_a.py/report")
    assert "test_a.py/report: " in err
    assert "  legal:  a file" in err


@pytest.mark.full
def test_a_path_that_is_not_there_is_named(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--gpus", "none", "test_nowhere.py"]) == ExitCode.USAGE_ERROR
    err = capsys.readouterr().err
    assert err.startswith("error: file or directory not found: test_nowhere.py\n")
    assert "  remedy: " in err


@pytest.mark.parametrize("options", [(), pytest.param(("--isolate", "interpreter"), marks=pytest.mark.full)])
def test_a_project_with_a_package_of_our_name_runs_its_own(suite: Path, options: tuple[str, ...]) -> None:
    theirs = "import harness.plugin\ndef test_theirs(): assert harness.plugin.MINE == 1\n"
    write_suite(suite, {"harness/__init__.py": "", "harness/plugin.py": "MINE = 1\n", "test_theirs.py": theirs})
    code = (
        "from harness.cli.main import main; import sys; sys.exit(main())"  # as the entry point, which has a safe path
    )
    command = [sys.executable, "-P", "-c", code, "run", "--gpus", "none", *options, "test_theirs.py"]
    done = subprocess.run(command, cwd=suite, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")
    assert "1 unit: 1 passed" in done.stdout


@pytest.mark.parametrize(
    ("option", "place"),
    [
        ("--setup-plan", "addopts"),
        ("--pdb", "--"),
        *(
            pytest.param(option, "addopts", marks=pytest.mark.full)
            for option in ("--setup-only", "--co", "--markers", "--fixtures", "--version")
        ),
        *(pytest.param(option, "--", marks=pytest.mark.full) for option in ("--co", "-h", "--trace", "--cache-show")),
    ],
)
def test_options_of_pytest_under_which_no_test_runs_are_refused(
    suite: Path, capsys: pytest.CaptureFixture[str], option: str, place: str
) -> None:
    if place == "addopts":
        (suite / "pytest.ini").write_text(f"[pytest]\naddopts = {option}\n")
    assert main(["run", "--gpus", "none", *([place, option] if place == "--" else [])]) == ExitCode.USAGE_ERROR
    said = capsys.readouterr().err
    assert "pytest runs no tests, or waits for input" in said
    assert "  remedy: " in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "some"], "--gpus 'some'"),
        (["--timeout", "0"], "'--timeout': 0.0 is not in the range"),
        (["nowhere"], "nowhere"),
    ],
)
def test_a_refusal_is_json_where_json_was_asked_for(
    suite: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["run", "--gpus", "none", "--json", *words]) == ExitCode.USAGE_ERROR
    answer = json.loads(capsys.readouterr().out)  # one value, also where the run had begun
    assert answer["exit_code"] == ExitCode.USAGE_ERROR
    assert said in answer["error"]


@pytest.mark.full
def test_a_node_id_without_a_test_is_named(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--gpus", "none", "--json", "test_a.py::test_quikc"]) == ExitCode.USAGE_ERROR
    (unit,) = json.loads(capsys.readouterr().out)["units"]
    assert unit["outcome"] == "usage_error"
    assert unit["reason"].startswith("not found: ")
    assert unit["reason"].endswith("test_a.py::test_quikc")


def test_ctrl_c_before_anything_is_imported_is_an_interruption(suite: Path) -> None:
    (suite / "click.py").write_text("raise KeyboardInterrupt")  # what the import of the command line comes to first
    env = environment() | {"PYTHONPATH": f"{suite}:{ROOT}"}
    done = subprocess.run([*HARNESS, "run"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (ExitCode.INTERRUPTED, "")


LATE_SIGNAL = """
import os, signal, sys
import harness.cli.main
from harness.__main__ import run
class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
late = Late()  # collected when the interpreter takes its modules apart
harness.cli.main.main = lambda: 2
run()
"""


@pytest.mark.full
def test_ctrl_c_while_the_interpreter_ends_leaves_the_exit_code() -> None:
    command = [sys.executable, "-c", LATE_SIGNAL]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (ExitCode.INTERRUPTED, "")


# ------------------------------------------------------------------------------------------------ what it hands over


CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--mine")
    parser.addoption("--json", action="store_true")
def pytest_configure(config):
    with open("given.txt", "a") as file:
        print(config.getoption("mine"), config.getoption("json"), config.getoption("keyword"), file=file)
"""


@pytest.mark.full
def test_what_follows_two_dashes_goes_to_every_pytest(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_suite(suite, {"conftest.py": CONFTEST, "test_b.py": "def test_slow(): assert False\n"})
    words = ["run", "--gpus", "none", "--", "--mine=a -- b", "--json", "-k", "quick"]
    assert main(words) == ExitCode.OK
    given = (suite / "given.txt").read_text().splitlines()
    assert len(given) == 1, "the session of all files"
    assert set(given) == {"a -- b True quick"}
    out = capsys.readouterr().out
    assert "2 units: 1 passed, 1 no tests" in out


# ---------------------------------------------------------------------------------------------------- where it prints


FAILS = "def test_fails(): assert 'left' == 'right'\n"


@pytest.mark.parametrize(
    ("option", "env", "is_coloured"),
    [
        ((), {}, False),
        ((), {"FORCE_COLOR": "1"}, True),
        pytest.param((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, marks=pytest.mark.full),
        pytest.param(("--color", "always"), {"NO_COLOR": "1"}, True, marks=pytest.mark.full),
        pytest.param(("--color", "never"), {"FORCE_COLOR": "1"}, False, marks=pytest.mark.full),
    ],
)
def test_colours(tmp_path: Path, option: tuple[str, ...], env: dict[str, str], is_coloured: bool) -> None:
    done = run(write_suite(tmp_path, {"test_a.py": FAILS}), "run", "--gpus", "none", *option, env=env)
    assert done.code == ExitCode.TESTS_FAILED
    assert ("\x1b[31m" in done.stdout) is is_coloured
    assert ("\x1b[" in done.stdout) is is_coloured


def test_with_json_stdout_is_one_value_and_the_display_is_on_stderr(
    suite: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--gpus", "none", "--json"]) == ExitCode.OK
    out, err = capfd.readouterr()
    assert json.loads(out)["outcomes"] == {"passed": 1}
    assert "1 unit: 1 passed" in err


@pytest.mark.full
@pytest.mark.parametrize(
    "command",
    ["run --gpus none", pytest.param("run --gpus none --json", marks=pytest.mark.full), "plan --gpus none"],
)
def test_a_reader_that_goes_away_changes_nothing(suite: Path, command: str) -> None:
    env = environment()
    with subprocess.Popen(
        [*HARNESS, *command.split()], cwd=suite, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read().decode()
        assert process.wait(60) == ExitCode.OK
    assert "Traceback" not in err
    assert "BrokenPipeError: [Errno 32]" not in err.replace(
        "(BrokenPipeError: [Errno 32] Broken pipe); the run continues", ""
    )
    if command == "run --gpus none":
        assert "the display is off for the rest of this run" in err
        assert '"exit_code": 0' in (suite / ".rlharness/runs/latest/events.jsonl").read_text()


@pytest.mark.full
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("run", 0),
        pytest.param("run --json", 4, marks=pytest.mark.full),
        pytest.param("plan", 4, marks=pytest.mark.full),
        ("plan --json", 4),
    ],
)
def test_a_standard_output_that_takes_nothing(suite: Path, command: str, code: int) -> None:
    with open("/dev/full", "wb") as full:
        words = [*HARNESS, *command.split(), "--gpus", "none"]
        done = subprocess.run(words, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == code
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_closed_standard_files_are_no_trouble(suite: Path) -> None:
    words = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *HARNESS, "run", "--gpus", "none"]
    assert subprocess.run(words, env=environment(), check=False).returncode == ExitCode.OK
    events = (suite / ".rlharness/runs/latest/events.jsonl").read_text()
    assert '"outcome": "passed"' in events
    assert [path.name for path in (suite / ".rlharness/runs/latest/units/0000").iterdir() if path.suffix == ".log"] == [
        "output.log"
    ], "no supervisor complained"


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    words = ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh", *HARNESS, "run"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.USAGE_ERROR
    assert done.stderr.startswith("error: the working directory no longer exists\n  remedy: ")


@pytest.mark.full
def test_without_a_terminal_the_display_is_lines(suite: Path) -> None:
    done = run(suite, "run", "--gpus", "none")
    assert "[1/1] test_a.py, " in done.stdout
    assert "\x1b" not in done.stdout


# ----------------------------------------------------------------------------------------------------- bugs of ours


def test_a_bug_of_ours_shows_its_traceback(
    suite: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(num_bytes: int) -> str:
        raise RuntimeError("no entropy today")

    monkeypatch.setattr(secrets, "token_hex", broken)  # what a run's id is made of
    assert main(["run", "--gpus", "none"]) == ExitCode.INTERNAL_ERROR
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "RuntimeError: no entropy today" in err
    assert err.endswith("error: this is a bug in rlharness; please report it with the traceback above\n")


def test_a_bug_of_ours_in_the_middle_of_a_run_is_in_its_record(
    suite: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: str, start: str = "") -> str:
        raise RuntimeError("no way from here")

    monkeypatch.setattr(os.path, "relpath", broken)  # how a unit's file is spelt for its pytest
    assert main(["run", "--gpus", "none"]) == ExitCode.INTERNAL_ERROR
    out, err = capsys.readouterr()
    assert "RuntimeError: no way from here" in err
    assert "SUPERVISOR LOST" in out
    events = [json.loads(line) for line in (suite / ".rlharness/runs/latest/events.jsonl").read_text().splitlines()]
    assert (events[-1]["event"], events[-1]["exit_code"]) == ("run_finished", ExitCode.INTERNAL_ERROR)
    assert events[-1]["error"] == "RuntimeError: no way from here"
    assert sum(event["event"] == "unit_finished" for event in events) == 1
