"""A feature is one command line and what a user must see of it; many features are seen in one run."""

import json
import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.guards.guard import ROOT
from tests.support.nvml_stub.build import compiler

LIMIT_S = 900.0
"""Longest time of one command, on a busy machine."""
_REMOVED = (
    "RLHARNESS_",
    "GITHUB_",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "NO_COLOR",
    "FORCE_COLOR",
    "PYTEST_",
    "PYTHONHASHSEED",
)
"""Prefixes of variables of this process that would change what a run does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One command line in a fresh directory with these files; the features of a run look at what it leaves."""

    name: str
    command: tuple[str, ...]
    """Arguments of rlharness, each option one word: --timeout=3, -kNAME."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Text of each file, by its path."""
    config: Mapping[str, str] = field(default_factory=dict)
    """[tool.rlharness]: the value of each key as TOML; `gate.size` is a key of the table gate."""
    scenarios: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Contents of scenarios/NAME.yaml, by name."""
    env: Mapping[str, str] = field(default_factory=dict)
    before: tuple[tuple[str, ...], ...] = ()
    """Commands that run first, in the same directory; the first word is a program, `rlharness` or `python`."""
    base: "Run | None" = None
    """Run whose directory, as that run leaves it, is copied first; it is made once for all runs."""
    prepare: Callable[[Path], object] | None = None
    """Makes what text files cannot hold, such as a git repository."""
    program: tuple[str, ...] = (sys.executable, "-m", "harness")
    has_terminal: bool = False
    """Whether standard output is a terminal."""
    is_quick: bool = False
    """Whether `--quick` makes this run."""
    package: str = ""
    """Package that the run needs; without it, its rows are missing."""


class Seen:
    """What a user sees of a run: exit code, both outputs, files."""

    def __init__(self, at: Path, code: int, out: str, err: str) -> None:
        """`at` is the directory of the run."""
        self.at, self.code, self.out, self.err = at, code, out, err

    @cached_property
    def json(self) -> Any:
        """The JSON document on standard output."""
        return json.loads(self.out)

    def read(self, path: str) -> str:
        """Text of the one file that matches this glob."""
        (found,) = self.at.glob(path)
        return found.read_text("utf-8")

    def load(self, path: str) -> Any:
        """JSON document in the one file that matches this glob."""
        return json.loads(self.read(path))

    def lines(self, path: str) -> list[Any]:
        """JSON document on each line of the one file that matches this glob."""
        return [json.loads(line) for line in self.read(path).splitlines()]

    def has(self, path: str) -> bool:
        """Whether a file matches this glob."""
        return any(self.at.glob(path))


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature, and what a user sees if it does something."""

    name: str
    """`run --junit`, `[tool.rlharness] timeout`, `scenario sizes`, `engine model.width`, `variable TMPDIR`, …"""
    run: Run
    sees: str
    """What must be seen, in words."""
    holds: Callable[[Seen], object]
    """Whether it is seen; an error means that it is not."""
    without: Callable[[Run], Run] | None = None
    """The run in which the feature does nothing; by default without its option, key or variable."""

    def problem(self, seen: Seen) -> str:
        """Say what is not seen; empty if all is."""
        try:
            if self.holds(seen):
                return ""
            why = ""
        except Exception as error:  # what is looked for is not there
            why = f" ({type(error).__name__}: {error})"
        last = " / ".join((seen.err + seen.out).strip().splitlines()[-3:])[-300:]
        return f"not seen: {self.sees}{why}; exit code {seen.code}, {last}"

    def stripped(self) -> Run:
        """Return the run in which the feature does nothing."""
        if self.without:
            return self.without(self.run)
        kind, _, name = self.name.partition(" ")
        if kind == "engine":
            return without_words(self.run, f"--set={name}")
        if kind == "variable":
            return replace(self.run, env={k: v for k, v in self.run.env.items() if k != name})
        if kind == "[tool.rlharness]":
            return replace(self.run, config={k: v for k, v in self.run.config.items() if k != name})
        if kind == "scenario":
            return replace(self.run, scenarios={k: _without_key(v, name) for k, v in self.run.scenarios.items()})
        return without_words(self.run, name) if name.startswith("-") else replace(self.run, program=("true",))


def without_words(run: Run, option: str) -> Run:
    """Return the run without an option and its value."""
    is_short = len(option) == 2
    kept = [
        word
        for word in run.command
        if not (word == option or word.startswith(f"{option}=") or (is_short and word.startswith(option)))
    ]
    return replace(run, command=tuple(kept))


def edited(old: str, new: str) -> Callable[[Run], Run]:
    """Return a function that replaces a text in the files, variables and words of a run."""

    def edit(run: Run) -> Run:
        return replace(
            run,
            command=tuple(word.replace(old, new) for word in run.command),
            files={path: text.replace(old, new) for path, text in run.files.items()},
            config={key: text.replace(old, new) for key, text in run.config.items()},
            env={key: text.replace(old, new) for key, text in run.env.items()},
        )

    return edit


def with_env(**variables: str) -> Callable[[Run], Run]:
    """Return a function that sets variables of a run."""
    return lambda run: replace(run, env={**run.env, **variables})


def plain_pytest(*arguments: str) -> Callable[[Run], Run]:
    """Return a function that starts pytest without the plugin of rlharness instead."""
    return lambda run: replace(
        run, program=(sys.executable, "-m", "pytest"), command=("-p", "no:harness.plugin", *arguments)
    )


def _without_key(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    first, _, rest = key.partition(".")
    kept = {name: each for name, each in document.items() if name != first or rest}
    if rest and first in kept:
        kept[first] = _without_key(kept[first], rest)
    return kept


class Runs:
    """Carries out each run once."""

    def __init__(self, work: Path) -> None:
        """`work` takes a directory for each run."""
        self._work, self._lock = work, threading.Lock()
        self._seen: dict[str, Future[Seen]] = {}

    def seen(self, run: Run) -> Seen:
        """Return what is seen of a run, which is carried out unless it was."""
        with self._lock:
            is_new = run.name not in self._seen
            future = self._seen.setdefault(run.name, Future())
        if is_new:
            try:
                future.set_result(self._carried_out(run, self._work / run.name))
            except Exception as error:  # each feature of the run gets it
                future.set_exception(error)
        return future.result()

    def _carried_out(self, run: Run, at: Path) -> Seen:
        if run.base:
            shutil.copytree(self.seen(run.base).at, at, symlinks=True)
        return carried_out(run, at)


def carried_out(run: Run, at: Path) -> Seen:
    """Make the files of a run, and carry it out in this directory."""
    at.mkdir(parents=True, exist_ok=True)
    toml: dict[str, list[str]] = {"": []}
    for key, value in run.config.items():
        table, _, name = key.rpartition(".") if key.startswith("gate.") else ("", "", key)
        toml.setdefault(table, []).append(f"{name} = {value}\n")
    text = "".join(f"[tool.rlharness{'.' * bool(table)}{table}]\n{''.join(keys)}" for table, keys in toml.items())
    documents = {f"scenarios/{name}.yaml": json.dumps(each, indent=1) for name, each in run.scenarios.items()}
    texts = {"pyproject.toml": text} if run.config or not run.base else {}
    for path, contents in {**texts, **documents, **run.files}.items():
        at.joinpath(path).parent.mkdir(parents=True, exist_ok=True)
        at.joinpath(path).write_text(contents, "utf-8")
    if run.prepare:
        run.prepare(at)
    env = {name: value for name, value in os.environ.items() if not name.startswith(_REMOVED)}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    env |= {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(at / ".cache"), "COLUMNS": "200"}
    env |= {name: value.replace("{at}", str(at)) for name, value in run.env.items()}
    for number, words in enumerate(run.before):
        program = {"rlharness": (sys.executable, "-m", "harness"), "python": (sys.executable,)}.get(words[0], words[:1])
        done = _started((*program, *words[1:]), at, env)
        at.joinpath(f"before-{number}.txt").write_text(f"{done.code}\n{done.out}\n{done.err}", "utf-8")
    start = _in_terminal if run.has_terminal else _started
    return start((*run.program, *(word.replace("{at}", str(at)) for word in run.command)), at, env)


def _started(command: tuple[str, ...], at: Path, env: Mapping[str, str]) -> Seen:
    done = subprocess.run(
        command, cwd=at, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return Seen(at, done.returncode, done.stdout, done.stderr)


def _in_terminal(command: tuple[str, ...], at: Path, env: Mapping[str, str]) -> Seen:
    """Run a command whose outputs are one terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, cwd=at, env={**env, "TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    timer = threading.Timer(LIMIT_S, process.kill)
    timer.start()
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:  # the last writer has closed the terminal
        pass
    code = process.wait()
    timer.cancel()
    os.close(ours)
    return Seen(at, code, b"".join(parts).decode(errors="replace"), "")


def absent(run: Run) -> str:
    """Return what is not installed that this run needs; empty if nothing."""
    if run.base and (missing := absent(run.base)):
        return missing
    if run.package == "cc":
        return "" if compiler() else "a C compiler"
    return run.package if run.package and find_spec(run.package) is None else ""
