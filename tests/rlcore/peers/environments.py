"""Makes the environments of the libraries that ours is compared with, and runs the tests that compare.

    python tests/rlcore/peers/environments.py                   all, then the tests
    python tests/rlcore/peers/environments.py --only verl       one of them
    python tests/rlcore/peers/environments.py --no-tests        prints VARIABLE=interpreter for each, and that is all

Each library wants versions that another, or ours, cannot have: verl 0.9.1 an older transformers and tensordict, vLLM an
older numpy. They stay under --into, by default below XDG_CACHE_HOME, and are made anew where what they are made from
has changed. Exit status 1 where one could not be made (its line is missing then, and its tests say that they did not
run), else that of the tests. Needs a package registry, and Python below 3.13 for verl.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input")
DONE = "made"
Run = Callable[[Sequence[str]], None]
"""Carries out a command; raises InstallError."""


class InstallError(Exception):
    """pip has not installed something; its last line."""


@dataclass(frozen=True)
class Environment:
    """One library's."""

    name: str
    variable: str
    """What its tests read the interpreter's path from."""
    requirements: Path
    """Everything it needs but torch, which is ours: each with its version, so that pip resolves nothing."""

    def directory(self, into: Path) -> Path:
        """Where it stands: a place for each content of what it is made from."""
        made_from = [sys.version, self.requirements.read_text("utf-8"), CONSTRAINTS.read_text("utf-8")]
        digest = hashlib.sha256("\0".join(made_from).encode()).hexdigest()
        return into / f"{self.name}-{digest[:12]}"

    def make(self, into: Path, run: Run) -> Path:
        """Its interpreter, made first where it is not there; raises InstallError."""
        directory = self.directory(into)
        python = directory / "bin" / "python"
        if (directory / DONE).exists():
            return python
        shutil.rmtree(directory, ignore_errors=True)  # half of one that was interrupted
        run([sys.executable, "-m", "venv", str(directory)])
        run([str(python), *PIP, "-c", str(CONSTRAINTS), "torch"])
        run([str(python), *PIP, "--no-deps", "-r", str(self.requirements)])
        (directory / DONE).touch()
        return python


ENVIRONMENTS = (
    Environment("verl", "RLHARNESS_VERL_PYTHON", HERE / "verl.txt"),
    Environment("trl", "RLHARNESS_PEERS_PYTHON", ROOT / "tests" / "recording" / "peers.txt"),
    Environment("vllm", "RLHARNESS_VLLM_PYTHON", ROOT / "constraints-vllm.txt"),
)


def install(command: Sequence[str]) -> None:
    """Run a command of pip or venv; raises InstallError with the last line it printed."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        lines = done.stdout.strip().splitlines() or ["it said nothing"]
        raise InstallError(f"{lines[-1]} ({' '.join(command)})")


def make_all(environments: Sequence[Environment], into: Path, run: Run) -> dict[str, str]:
    """VARIABLE -> interpreter of those that could be made, side by side; says of the others why not."""

    def make(environment: Environment) -> str:
        try:
            return str(environment.make(into, run))
        except InstallError as error:
            print(f"the environment of {environment.name} could not be made: {error}", file=sys.stderr)
            return ""

    with ThreadPoolExecutor(len(environments)) as pool:
        made = zip(environments, pool.map(make, environments), strict=True)
        return {environment.variable: python for environment, python in made if python}


def arguments_of(words: Sequence[str]) -> argparse.Namespace:
    """The command line's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=[each.name for each in ENVIRONMENTS])
    parser.add_argument("--into", type=Path, help="where they stand; by default a cache directory")
    parser.add_argument("--no-tests", action="store_true", help="print where the interpreters are, and run no test")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Carry out a command line; the exit status."""
    arguments = arguments_of(words)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    into = (arguments.into or cache / "rlharness" / "peers").absolute()
    wanted = [each for each in ENVIRONMENTS if arguments.only in (None, each.name)]
    made = make_all(wanted, into, install)
    for variable, python in made.items():
        print(f"{variable}={python}", flush=True)
    if arguments.no_tests:
        return int(len(made) < len(wanted))
    command = [sys.executable, "-m", "pytest", "-m", "", "tests/rlcore/peers"]
    code = subprocess.run(command, cwd=ROOT, env=os.environ | made, check=False).returncode
    return code or int(len(made) < len(wanted))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
