"""Commands that only read, typed in a directory whose modules have the names of those that rlharness imports."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from tests.support.suite_runs import environment
from tests.support.traces import steps_of, write

TYPED = "import sys; from harness.__main__ import run; sys.argv[0] = 'rlharness'; run()"
"""As the installed script: without the working directory in the import path."""
COMMANDS = ("diff a b", "scenarios --check", "report a b --out page.html", "history", "reproduce a", "doctor")


def checkout_of(tmp_path: Path) -> tuple[Path, Path]:
    """A checkout whose modules leave a word in a file that begins to exist when one is imported; that file."""
    checkout, imported = tmp_path / "checkout", tmp_path / "imported"
    checkout.mkdir()
    names = {*sys.stdlib_module_names, *metadata.packages_distributions(), "sitecustomize", "usercustomize", "harness"}
    for name in names:
        (checkout / f"{name}.py").write_text(f"open({str(imported)!r}, 'a').write(__name__ + ' ')\n")
    for trace in ("a", "b"):
        write(checkout / trace, steps_of(2))
    return checkout, imported


@pytest.mark.full
@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_of_the_directory_is_imported(command: str, tmp_path: Path) -> None:
    checkout, imported = checkout_of(tmp_path)
    argv = [sys.executable, "-P", "-c", TYPED, *command.split()]
    done = subprocess.run(
        argv, cwd=checkout, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != ExitCode.INTERNAL_ERROR, done.stderr
    assert not imported.exists(), imported.read_text()


def test_an_import_would_be_seen(tmp_path: Path) -> None:
    checkout, imported = checkout_of(tmp_path)
    argv = [sys.executable, "-m", "harness", "--help"]
    subprocess.run(argv, cwd=checkout, env=environment(), capture_output=True, timeout=120, check=False)
    assert imported.read_text()
