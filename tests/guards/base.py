"""The base: the commit whose recorded bits the head keeps, with its own harness, in a worktree of its own."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from tests.guards.guard import ROOT

COMMIT = "8a476ada"
MOVED = Path(__file__).with_name("moved")
"""A patch of the base for each change that had to move recorded bits: the least that moves just these. It says why."""
_lock = threading.Lock()


def cache() -> Path:
    """Where what the base made is kept: a directory for each commit, processor and environment."""
    info = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    processor = sorted({line for line in info if line.startswith(("model name", "flags"))})
    packages = [f"{name} {version(name)}" for name in ("torch", "numpy", "safetensors", "tokenizers", "ray")]
    made_from = [COMMIT, platform.platform(), sys.version, *processor, *packages]
    digest = hashlib.sha256("\n".join(made_from).encode()).hexdigest()
    top = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return top / "rlharness-guards" / digest[:16]


def worktree(patch: str = "") -> Path:
    """Return a checkout of the base, with one of `MOVED` if it is named, made first where there is none."""
    path = cache() / f"base{patch}"
    with _lock:
        if not (path / ".made").exists():
            shutil.rmtree(path, ignore_errors=True)
            git = ["git", "-C", str(ROOT)]
            path.mkdir(parents=True)
            archive = subprocess.run([*git, "archive", COMMIT], capture_output=True, check=True)
            subprocess.run(["tar", "-x", "-C", str(path)], input=archive.stdout, check=True)
            if patch:
                no_repository = {**os.environ, "GIT_CEILING_DIRECTORIES": str(path.parent)}
                subprocess.run(["git", "apply", str(MOVED / patch)], cwd=path, env=no_repository, check=True)
            (path / ".made").touch()
    return path


def environment(checkout: Path) -> dict[str, str]:
    """Variables under which the interpreter imports this checkout's packages, whatever is installed."""
    return {**os.environ, "PYTHONPATH": str(checkout), "PYTHONHASHSEED": "random"}


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """Return a directory of the base's cache, made first by `make` where it is not there."""
    path = cache() / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="part-", dir=path.parent) as part:
            make(Path(part, "made"))
            with suppress(OSError):  # another process has made it meanwhile
                Path(part, "made").rename(path)
    return path
