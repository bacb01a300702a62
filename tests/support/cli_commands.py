"""Commands of the lab as a user types them: what they printed, and their exit code."""

import contextlib
import io
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from harness.cli.main import main
from tests.support.suite_runs import HARNESS, environment

PRETENDER = (sys.executable, str(Path(__file__).with_name("pretender.py")))

PATIENCE_S = 800.0
"""For a command that starts several runs on a busy machine, each of which imports torch."""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str


def type_command(directory: Path, *words: str, **env: str) -> Done:
    """Run rlharness in a directory, without a terminal; TimeoutExpired where it takes longer than PATIENCE_S."""
    done = subprocess.run(
        [*HARNESS, *words],
        cwd=directory,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def type_here(directory: Path, *words: str) -> Done:
    """Run rlharness in a directory without a process of its own: for what is refused before anything starts."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.dict(os.environ, environment(), clear=True),
        contextlib.chdir(directory),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(words)
    return Done(code, out.getvalue(), err.getvalue())


def shown(command: str, directory: Path, called: str = "") -> str:
    """What a terminal shows of a command line typed in `directory`: standard output and error, as they come.

    Paths below the directory stand there as paths below `called`, "demo/" say, wherever it lies.
    """
    program, *words = shlex.split(command)
    argv = [*HARNESS, *words] if program == "rlharness" else [program, *words]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        argv,
        cwd=directory,
        env=environment(PATH=path, PYTHONWARNINGS="ignore"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout.replace(f"{directory.resolve()}/", called).replace(f"{directory}/", called)
