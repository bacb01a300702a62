"""--no-redact: an option of every command, which leaves secrets in what it and its processes print and write."""

import json
import os
import sys
from pathlib import Path

import pytest

from harness.bits.redaction import NO_REDACT, REDACTED
from harness.cli.main import cli, main, no_redact_option
from tests.support.cli_commands import type_command
from tests.support.suite_runs import run, write_suite

SECRET = "Tr0ub4dor.Battery7Staple"
TRAINS = """
import torch
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
layer(torch.ones(1, 2)).sum().backward()
optimizer.step()
"""
WORDS = ("--db-password", SECRET)


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_has_it_and_says_what_it_means(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert no_redact_option in cli.commands[name].params
    assert main([name, "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "--no-redact Leave passwords and keys in everything that this command prints and writes" in told
    assert "must then stay private" in told


def test_it_holds_for_one_command_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NO_REDACT, raising=False)
    typed = ("diff", f"a?token={SECRET}", "b")
    for options, is_shown in (((), False), (("--no-redact",), True), ((), False)):
        assert main([*typed, *options]) == 4
        printed = capsys.readouterr().err
        assert (SECRET in printed, REDACTED in printed) == (is_shown, not is_shown)
        assert ("rlharness: --no-redact: " in printed) == is_shown, "a note says so"
        assert NO_REDACT not in os.environ


@pytest.mark.full
def test_the_doctor_shows_the_variables_as_they_are(tmp_path: Path) -> None:
    done = type_command(tmp_path, "doctor", "--json", "--no-redact", RAY_REDIS_PASSWORD=SECRET)
    assert f"RAY_REDIS_PASSWORD={SECRET}" in done.stdout
    json.loads(done.stdout)


@pytest.mark.full
def test_a_recorded_program_writes_them(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAINS, "utf-8")
    typed = ("trace", "--out", "t", "--no-redact", "--", sys.executable, "train.py", *WORDS)
    type_command(tmp_path, *typed)
    texts = {path.name: path.read_text("utf-8", "replace") for path in (tmp_path / "t").rglob("*") if path.is_file()}
    assert {"run.json", "manifest.json"} <= {name for name, text in texts.items() if SECRET in text}


@pytest.mark.full
@pytest.mark.usefixtures("own_cache")
def test_a_supervisor_writes_them(tmp_path: Path) -> None:
    started = "import subprocess, sys\ndef test_it():\n"
    words = ", ".join(map(repr, ("-c", "import time; time.sleep(600)", *WORDS)))
    started += f"    subprocess.Popen([sys.executable, {words}], start_new_session=True)\n"
    write_suite(tmp_path, {"test_leaves.py": started})
    done = run(tmp_path, "run", "--gpus", "none", "--grace", "1", "--no-redact")
    assert done.outcomes == {"test_leaves.py": "passed"}
    (line,) = done.results["test_leaves.py"]["left_behind"]
    assert SECRET in line
