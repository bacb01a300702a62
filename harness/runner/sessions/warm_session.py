"""A pytest plugin for the warm session: one configured pytest from which the process of every test file is forked.

    runner ──"fork"──▶ warm session ──fork──▶ supervisor ──fork──▶ leader: this pytest again, now with one file
           ──"import"▶      └─ plugins, conftest files and what the suite imports are loaded once, and shared

With `--rlharness-serve=FD`, pytest stops before it configures itself and serves forks on that socket. A leader
continues from there with its own arguments, options, files, environment and random state: it configures, collects, runs
and finishes as any pytest does, so plugins and hooks see one session per test file.

After every import, the runner learns what must not be shared (`fork_hazards`).
"""

import gc
import importlib
import json
import os
import socket
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NoReturn

import pluggy
import pytest
from _pytest.config import apply_warning_filters

from harness.process.child_env import VARYING
from harness.process.supervisor import syscalls
from harness.process.supervisor.fork_hazards import THREADS, Watch, num_threads, num_threads_kept
from harness.process.supervisor.fork_server import serve
from harness.process.supervisor.forked_leader import ParentState, end, leave
from harness.process.supervisor.main import supervise
from harness.runner.selections import split_selections
from harness.runner.sessions import own_coverage
from harness.runner.sessions.plugin_facts import KnownFixtures, read_metadata_once
from harness.runner.sessions.plugin_names import FOR_TESTS

USAGE_ERROR = 4
MAX_IMPORTED = 4000
KEY = pytest.StashKey["WarmSession"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    group = parser.getgroup("rlharness")
    group.addoption("--rlharness-serve", metavar="FD", type=int, default=-1, help="Serve forks on this socket.")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Take over the socket, and watch what conftest files do, before the first of them is imported."""
    if early_config.known_args_namespace.rlharness_serve >= 0:
        early_config.stash[KEY] = WarmSession(early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Serve forks in place of a session; a leader continues with pytest's own."""
    session = config.stash.get(KEY, None)
    if session is None or session.is_leader:
        return None
    session.serve()


@pytest.hookimpl(tryfirst=True)
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over the neighbours of a leader's files: pytest makes collectors for whole directories."""
    session = config.stash.get(KEY, None)
    if session is None or not session.wanted or collection_path.name == "__init__.py":
        return None
    is_neighbour = collection_path.parent in session.wanted and collection_path not in session.wanted
    return True if is_neighbour else None


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Report which modules a leader had to import itself: after the summary, for which plugins import some too."""
    warm = config.stash.get(KEY, None)
    if warm is None:
        return
    if reporter := config.pluginmanager.get_plugin("rlharness-reporter"):
        reporter.write("imported", modules=warm.imported())
    elif finder := config.pluginmanager.get_plugin("rlharness-finder"):
        finder.note("modules", modules=warm.imported())


class WarmSession:
    """The warm session, and what its forks need of it."""

    def __init__(self, config: pytest.Config) -> None:
        syscalls.die_with_parent()
        self.config = config
        self.is_leader = False
        self._socket = socket.socket(fileno=config.known_args_namespace.rlharness_serve)
        self._socket.set_inheritable(False)
        self._watch = Watch(VARYING)
        self._parent_state = ParentState(self._watch)
        self._before: set[str] = set()
        self._known = KnownFixtures()
        self.wanted: set[Path] = set()
        """The files of a leader and the directories above them; empty where it collects from directories."""

    def serve(self) -> NoReturn:
        """Answer the runner until it goes: first with what is known after the conftest files."""
        if capture := self.config.pluginmanager.get_plugin("capturemanager"):
            capture.stop_global_capturing()  # its files would be shared; each leader starts its own
        with suppress(ConnectionError):
            self._socket.send(self._state({}))
            self._prepare()
            self._parent_state.take([self._socket.fileno()])
            serve(self._socket, lambda: supervise(self.lead), self._answer)
        leave()

    def _prepare(self) -> None:
        """Do what every leader would do alike."""
        manager = self.config.pluginmanager
        read_metadata_once(manager)
        vars(pluggy).update(__version__=pluggy.__version__)  # else read from metadata whenever pytest prints it
        for name in FOR_TESTS:
            manager.rewrite_hook.mark_rewrite(name)
            importlib.import_module(name)
        self._known.learn(manager.get_plugins())
        self._known.use()

    def _answer(self, request: bytes) -> bytes:
        """Import the modules that a request names, and say what must not be shared since."""
        refused = {}
        names: list[str] = json.loads(request)["import"]
        own = [name for name in names if name.startswith("harness.") and name not in sys.modules]
        self.config.pluginmanager.rewrite_hook.mark_rewrite(*own)  # as of plugins, which leaders load some of them as
        with self._imports_as_pytest_does():
            for name in names:
                if own_coverage.is_measured(name):
                    continue
                self._watch.importing = name.partition(".")[0]
                before = max(1, num_threads())
                try:
                    importlib.import_module(name)
                except BaseException as error:  # whoever needs it will see this for themselves
                    refused[name] = type(error).__name__
                if num_threads() > before and num_threads_kept() > 1:
                    refused[name] = THREADS
        self._watch.importing = ""
        self._known.learn(self.config.pluginmanager.get_plugins())
        gc.collect()
        gc.freeze()
        self._parent_state.take([self._socket.fileno()])
        return self._state(refused)

    @contextmanager
    def _imports_as_pytest_does(self) -> Iterator[None]:
        """The suite's filters: an import that warns fails here too where the suite has it fail."""
        of_command_line = self.config.known_args_namespace.pythonwarnings or []
        with warnings.catch_warnings():
            apply_warning_filters(self.config.getini("filterwarnings"), of_command_line)
            yield

    def _state(self, refused: dict[str, str]) -> bytes:
        """What the runner must know before it asks for a fork."""
        hazards = list(self._watch.hazards())
        return json.dumps({"hazards": hazards, "reads": self._watch.reads, "refused": refused}).encode()

    def lead(self, order: dict[str, Any]) -> NoReturn:
        """Be the leader of an attempt to its end, as an interpreter of its own would."""
        code = 1
        try:
            self.is_leader = True
            self._parent_state.give(order["env"])
            own_coverage.measure_afresh(self.config, is_run=not order["session"]["options"].get("collectonly"))
            self._configure(order["session"], order["argv"][order["argv"].index("pytest") + 1 :])
            code = _run(self.config)
        except BaseException:  # our own bug, which must show as one and not as an attempt that never ends
            traceback.print_exc()
        finally:
            end(code)

    def _configure(self, session: dict[str, Any], given: list[str]) -> None:
        """Set what an interpreter started with the arguments `given` would have parsed."""
        config = self.config
        sys.argv = [sys.argv[0], *given]
        self._before = set(sys.modules)
        if session["args"]:  # else those of the suite, as pytest has found them
            config.args = list(session["args"])
            config.args_source = config.ArgsSource.ARGS
            self.want(config.args)
        params = config.invocation_params
        config.invocation_params = config.InvocationParams(args=given, plugins=params.plugins, dir=params.dir)
        for name, value in session["options"].items():
            setattr(config.option, name, value)
        for name in session["plugins"]:
            config.pluginmanager.import_plugin(name)
        if capture := config.pluginmanager.get_plugin("capturemanager"):
            capture.start_global_capturing()
            capture.suspend_global_capture()

    def want(self, args: Sequence[str]) -> None:
        """Have the neighbours of the files that `args` name passed over."""
        cwd = self.config.invocation_params.dir
        files = [cwd / each.path for each in split_selections(args, cwd)]
        are_files = all(file.is_file() for file in files)
        self.wanted = {path for file in files for path in (file, *file.parents)} if are_files else set()

    def imported(self) -> list[str]:
        """Modules that this leader has imported itself, in order, without test files and conftest files."""
        patterns = ("conftest.py", *self.config.getini("python_files"))
        found = []
        for name in [name for name in list(sys.modules) if name not in self._before]:
            try:
                file = str(getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None) or "")
            except Exception:  # whatever the suite has put there: it is not worth an outcome
                continue
            if not any(fnmatch(os.path.basename(file), each) for each in patterns):
                found.append(name)
        return found[:MAX_IMPORTED]


def _run(config: pytest.Config) -> int:
    """What `pytest.main` does once it has its configuration."""
    try:
        try:
            return int(config.hook.pytest_cmdline_main(config=config))
        finally:
            config._ensure_unconfigure()
    except pytest.UsageError as error:
        for text in error.args:
            sys.stderr.write(f"ERROR: {text}\n")
        return USAGE_ERROR
