"""What a person attaches to a bug report, or what CI keeps: no secret of theirs is in it.

Each test types a command with secrets, and looks into everything that it has printed and written.
"""

import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import harness.cli.main as main_module
from harness.bits.errors import UsageError
from harness.bits.redaction import REDACTED
from harness.doctor.environment import check_ray
from harness.lab.experiment.preparation import notes_on
from harness.process.supervisor import process_tree
from harness.render.findings import findings_json, findings_text
from harness.trace import Fingerprint, Manifest
from tests.bits.redaction.secret_shapes import ALL, ALNUM, PLAIN, Typed
from tests.support.cli_commands import type_command
from tests.support.finding_checks import as_findings, found_by
from tests.support.suite_runs import run, write_suite
from tests.support.traces import steps_of, write

pytestmark = pytest.mark.usefixtures("own_cache")  # for the histories of runs
MIN_SECRET = 6
"""Characters: shorter parts of secrets are in any binary file by chance, as numbers are."""
LAST = "--this-is-the-last-word"
OUTPUT = "output.log"
"""What a program prints itself is not looked at."""
TRAINS = """
import os, sys
import torch
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(3):
    loss = layer(torch.full((1, 2), float(os.getpid() % 997))).sum()
    loss.backward()
    if step == 2 and sys.argv[1] == "dies":
        raise ValueError(f"refused: {os.environ['OF_MESSAGE']}")
    optimizer.step()
    optimizer.zero_grad()
"""


def leaks(texts: Iterable[tuple[str, str]], typed: Iterable[Typed] = ALL) -> list[tuple[str, str]]:
    """(where, whose) of each secret that a text holds, as it is or as JSON spells it."""
    secrets = {secret: each.name for each in typed for secret in (each.secret, *each.others)}
    words = {word: name for secret, name in secrets.items() for word in (secret, json.dumps(secret)[1:-1])}
    words = {word: name for word, name in words.items() if len(word) >= MIN_SECRET and not word.isdigit()}
    return [(where, name) for where, text in texts for word, name in words.items() if word in text]


def files_below(directory: Path) -> list[tuple[str, str]]:
    found = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != OUTPUT]
    return [(path.name, path.read_bytes().decode("utf-8", "replace")) for path in found]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "train.py"
    path.write_text(TRAINS, "utf-8")
    return path


@pytest.mark.full
def test_a_recorded_command_and_the_command_that_looks_closer_hold_no_secret(program: Path) -> None:
    words = [word for each in ALL for word in ("--", *each.argv)]
    argv = (sys.executable, "train.py", "runs", *words, LAST)
    done = type_command(program.parent, "replay", "--out", "r", "--", *argv)
    assert done.code == 10, done.stderr
    (offered,) = done.stdout.split("look closer: ")[1:]  # of several lines, as some words are
    assert REDACTED in offered
    typed_again = [*shlex.split(offered.partition(LAST)[0]), LAST]
    assert len(typed_again) == len(["rlharness", "replay", "--step", "0", "--trace-ops", "--", *argv])
    page = type_command(program.parent, "report", "r", "--out", "report.html")
    assert page.code == 0, page.stderr
    told = [("stdout", done.stdout), ("stderr", done.stderr), ("report", page.stdout + page.stderr)]
    left = [*told, *files_below(program.parent / "r"), ("page", (program.parent / "report.html").read_text("utf-8"))]
    assert {name for name, _ in left} > {"manifest.json", "run.json", "recording.json"}
    assert leaks(left) == []


@pytest.mark.full
def test_a_command_that_dies_in_a_step_holds_none(program: Path) -> None:
    words = ("--api-key=LOOKSECRET12345", "--db_pwd", PLAIN)
    typed = ("trace", "--out", "t", "--", sys.executable, "train.py", "dies", *words)
    done = type_command(program.parent, *typed, OF_MESSAGE=f"api_key={ALNUM}")
    assert f"look closer: rlharness replay --step 2 --trace-ops -- {sys.executable} train.py dies" in done.stderr
    assert f"'--api-key={REDACTED}' --db_pwd '{REDACTED}'" in done.stderr
    files = files_below(program.parent / "t")
    left = [("stdout", done.stdout), ("stderr", done.stderr), *files]
    assert any(name == "recording.json" for name, _ in left)
    assert [name for name, text in left if "LOOKSECRET12345" in text or PLAIN in text] == []
    assert ALNUM in done.stderr, "what a program prints is its own"
    assert [name for name, text in files if ALNUM in text] == [], "its message and its environment are in no file"


REPORTS = ("--junit", "junit.xml", "--events", "all.jsonl")
WAITS = """
import json, subprocess, sys, time
from pathlib import Path
def start():
    words = json.loads((Path(__file__).parent / "words.json").read_text())
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", *words], start_new_session=True)
def test_it():
"""


@pytest.mark.full
def test_a_timeout_and_processes_left_behind_show_none(tmp_path: Path) -> None:
    words = ["--api-key=STACKSECRET12345", *(word for each in ALL for word in ("--", *each.argv))]
    assert sum(len(word.encode()) + 1 for word in words) < process_tree.MAX_COMMAND_BYTES - 1000, "none is cut off"
    files = {
        "test_hangs.py": f"{WAITS}    start(); time.sleep(600)\n",
        "test_leaves.py": f"{WAITS}    start()\n",
        "words.json": json.dumps(words),
    }
    write_suite(tmp_path, files)
    done = run(tmp_path, "run", "--gpus", "none", "--timeout", "8", "--grace", "1", *REPORTS, "--json")
    assert done.outcomes == {"test_hangs.py": "timed_out", "test_leaves.py": "passed"}
    (line,) = done.results["test_leaves.py"]["left_behind"]
    assert f"--api-key={REDACTED} -- env PGPASSWORD={REDACTED} psql" in line
    left = [("stdout", done.stdout), ("stderr", done.stderr), *files_below(done.record.resolve())]
    left += [(name, (tmp_path / name).read_text("utf-8")) for name in ("junit.xml", "all.jsonl")]
    assert {name for name, _ in left} > {"stacks.txt", "events.jsonl"}
    stacks = next(text for name, text in left if name == "stacks.txt")
    assert f"--api-key={REDACTED}" in stacks and "== process" in stacks
    left = [(name, text) for name, text in left if name != "words.json"]
    assert [name for name, text in left if "STACKSECRET12345" in text] == []
    assert leaks(left) == []


def test_a_command_line_that_is_cut_shows_no_half_of_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["prog", "--token", "x" * 700, f"hf_{ALNUM}"]
    monkeypatch.setattr(process_tree, "MAX_COMMAND_BYTES", len("\0".join(argv)) - 20)
    real = open
    (tmp_path / "cmdline").write_bytes("\0".join(argv).encode() + b"\0")
    monkeypatch.setattr("builtins.open", lambda *args, **options: real(tmp_path / "cmdline", *args[1:], **options))
    assert process_tree.command_line(1) == f"prog --token {REDACTED} …"
    monkeypatch.setattr(process_tree, "MAX_COMMAND_BYTES", 1 << 16)
    for each in ALL:
        (tmp_path / "cmdline").write_bytes("\0".join(("prog", *each.argv)).encode() + b"\0")
        assert leaks([("cmdline", process_tree.command_line(1, limit=1 << 16))], [each]) == []


RAY = {
    "RAY_ADDRESS": f"ray://bob:{PLAIN}@head.example:10001",
    "RAY_REDIS_PASSWORD": PLAIN,
    "RAY_AUTH_TOKEN": PLAIN,
    "RAY_RUNTIME_ENV": json.dumps({"env_vars": {"HF_TOKEN": PLAIN}}),
    "RAY_AUTH_MODE": "disabled",
}


@pytest.mark.full
def test_the_doctor_shows_none(tmp_path: Path) -> None:
    done = type_command(tmp_path, "doctor", "--json", **{**RAY, "RAY_ADDRESS": f"ray://bob:{PLAIN}@127.0.0.1:1"})
    measured = {each["check"]: each["measured"] for each in json.loads(done.stdout)["findings"]}
    assert f"RAY_ADDRESS=ray://{REDACTED}@127.0.0.1:1" in measured["RAY_ADDRESS"]
    for variable in ("RAY_AUTH_MODE=disabled", f"RAY_AUTH_TOKEN={REDACTED}", f"RAY_REDIS_PASSWORD={REDACTED}"):
        assert variable in measured["Ray"]
    assert PLAIN not in done.stdout + done.stderr


def test_what_the_doctor_prints_shows_none() -> None:
    address = f"http://bob:{PLAIN}@127.0.0.1:1"
    found = list(found_by(check_ray, {**RAY, "RAY_ADDRESS": address}).values())
    found += found_by(check_ray, {"RAY_ADDRESS": f"http://bob:{PLAIN}@"}).values()
    assert PLAIN not in repr(found)
    logged = f"raylet --redis-password={PLAIN} --port 1"
    printed = {"check": "Ray", "severity": "broken", "measured": "it ended", "breaks": "", "remedy": ""}
    found += as_findings([{**printed, "details": (logged,)}])
    text = findings_text(found, took_s=1.0, colour=False)
    assert PLAIN not in text + json.dumps(findings_json(found, exit_code=0, took_s=1.0))
    assert f"http://{REDACTED}@127.0.0.1:1" in text
    assert notes_on(RAY)[0].startswith(f"RAY_ADDRESS=ray://{REDACTED}@head.example:10001: ")


@pytest.mark.full
def test_an_error_that_quotes_a_command_line_shows_none(tmp_path: Path) -> None:
    for words in (
        ("diff", "a", "b", f"--api-key={PLAIN}"),
        ("train", "grpo_sorting", "--out", "o", "--set", f"judge.api_key=[{PLAIN}"),
        ("replay", f"https://bob:{PLAIN}@host/run"),
        ("trace", "--out", "t", "--metric", f"hf_{ALNUM}", "--", "python"),
    ):
        done = type_command(tmp_path, *words)
        quotes_it = words[0] != "diff"  # of an unknown option the name alone is quoted
        assert (done.code, REDACTED in done.stderr) == (4, quotes_it), done.stderr
        assert PLAIN not in done.stdout + done.stderr and ALNUM not in done.stderr
    error = UsageError(f"cannot start ['x', '--token', '{PLAIN}']", legal=f"hf_{ALNUM}", remedy=f"x --password {PLAIN}")
    assert PLAIN not in repr(error) + str(error) + repr(error.args) and ALNUM not in str(error)


@pytest.mark.full
@pytest.mark.parametrize("typed", ALL, ids=lambda typed: typed.name)
def test_an_error_and_a_finding_that_quote_any_of_them_show_none(typed: Typed) -> None:
    line = shlex.join(typed.argv)
    error = UsageError(f"cannot start {list(typed.argv)!r}: not found", legal=line, remedy=line)
    said = dict.fromkeys(("measured", "breaks", "remedy"), line)
    (finding,) = as_findings([{"check": "Ray", "severity": "broken", **said, "details": (line,)}])
    printed = findings_text([finding], took_s=1.0, colour=False).replace("\n", " ")
    told = json.dumps(findings_json([finding], exit_code=1, took_s=1.0))
    assert leaks([("error", str(error)), ("printed", printed), ("told", told)], [typed]) == []


def test_a_bug_shows_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The traceback of an error that is ours may quote a value of a file or of a command line."""

    def fail(*_: object, **__: object) -> None:
        raise LookupError(f"api_key={PLAIN}")

    monkeypatch.setattr(main_module.cli, "main", fail)
    assert main_module.main(["scenarios"]) == 3
    printed = capsys.readouterr().err
    assert "Traceback" in printed and f"api_key={REDACTED}" in printed and PLAIN not in printed


def test_what_to_say_again_is_still_said() -> None:
    """A placeholder is no secret."""
    assert UsageError("no secrets", remedy="say it again: --set judge.api_key=VALUE").remedy.endswith("=VALUE")


@pytest.mark.full
def test_a_trace_that_somebody_else_wrote_is_compared_without_showing_its_secrets(tmp_path: Path) -> None:
    for name, secret in (("a", PLAIN), ("b", PLAIN[::-1])):
        identity = {"--wandb-key": secret, "judge.url": f"https://bob:{secret}@host", "seed": "7"}
        write(tmp_path / name, steps_of(2), Manifest(Fingerprint(identity=identity), ("x", "--db_pwd", secret)))
    commands: list[tuple[str, ...]] = [("diff", "a", "b"), ("diff", "a", "b", "--json"), ("report", "a", "b")]
    for words in commands:
        done = type_command(tmp_path, *words)
        page = (tmp_path / "report.html").read_text("utf-8") if words[0] == "report" else ""
        assert "--wandb-key" in done.stdout + page
        for secret in (PLAIN, PLAIN[::-1]):
            assert secret not in done.stdout + done.stderr + page
