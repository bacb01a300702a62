"""A pytest plugin for `--isolate worker`: one session that takes one test file after the other.

    runner ──a file: its arguments, report, output.log──▶ collect, run ──its exit code──▶ runner, again and again
           ──end of the connection──▶ session-scoped fixtures end, pytest finishes

Between two files everything is as in one plain pytest: module- and package-scoped fixtures have ended, session-scoped
ones live on. The supervisor learns the limits of each file from the report of the worker itself.
"""

import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from _pytest.main import wrap_session

from harness.bits.files import open_for_writing
from harness.plugin import Reporter
from harness.process.supervisor import process_tree
from harness.runner.sessions import own_coverage
from harness.runner.sessions.plugin_names import WORKER_ERROR
from harness.runner.sessions.warm_session import KEY

DIRECTORIES = pytest.StashKey[dict[tuple[Path, pytest.Collector], pytest.Collector]]()
OK, FAILED, INTERRUPTED, INTERNAL_ERROR, USAGE_ERROR, NO_TESTS = range(6)
PYTESTS_OWN = ("PYTEST_CURRENT_TEST", "PYTEST_VERSION")
"""Variables that pytest itself changes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    group = parser.getgroup("rlharness")
    group.addoption("--rlharness-worker", metavar="SOCKET", default=None, help="Take test files from this socket.")
    limits = "Append when tests begin and end to FILE."
    group.addoption("--rlharness-worker-report", metavar="FILE", default=None, help=limits)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Serve files in place of a session over the arguments."""
    address = config.getoption("rlharness_worker", None)
    if not address:
        return None
    return int(wrap_session(config, lambda config, session: _Worker(config, session, address).serve()))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests as pytest's own loop does, and end no session-scoped fixture after the last."""
    if not session.config.getoption("rlharness_worker", None):
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} errors during collection")
    if session.config.option.collectonly or not session.items:
        return True
    following = [*session.items[1:], _Next.from_parent(session, name="rlharness: the next file")]
    for item, nextitem in zip(session.items, following, strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collect_directory(
    path: Path, parent: pytest.Collector
) -> Generator[None, pytest.Collector | None, pytest.Collector | None]:
    """Keep the collectors of directories, since pytest binds the fixtures of a conftest to the first collector."""
    found = yield
    if found is None or not parent.config.getoption("rlharness_worker", None):
        return found
    return parent.config.stash.setdefault(DIRECTORIES, {}).setdefault((path, parent), found)


class _Next(pytest.Item):
    """Whatever runs after a file: all that the tests to come share with the last one is the session."""

    def runtest(self) -> None:
        """Never called."""


class _Limits:
    """Tells the supervisor when tests begin and end."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.of_file = reporter
        """The reporter of the file, which knows the limits of its tests."""

    def write(self, kind: str, **fields: object) -> None:
        """Write a line to the report of the worker."""
        self._reporter.write(kind, **fields)

    def pytest_collection_finish(self) -> None:
        """The import of the file is over."""
        self.write("collected", need={}, nodeids=[])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self.write("start", id=nodeid, timeout_s=self.of_file._timeouts_s.get(nodeid))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test has ended."""
        self.write("end", id=nodeid)


class _State:
    """What a file may change and not restore."""

    def __init__(self) -> None:
        self.environ = {name: value for name, value in os.environ.items() if name not in PYTESTS_OWN}
        self.cwd = os.getcwd()
        self.threads = {each for each in threading.enumerate() if not each.daemon}
        self.pids = {process.pid for process in process_tree.descendants(os.getpid())}

    def changes_since(self, before: "_State") -> Iterator[tuple[str, str]]:
        """(code, detail) of each change since `before`."""
        names = sorted(
            name
            for name in self.environ.keys() | before.environ.keys()
            if self.environ.get(name) != before.environ.get(name)
        )
        if names:
            yield "environment", ", ".join(names)
        if self.cwd != before.cwd:
            yield "cwd", self.cwd
        for pid in sorted(self.pids - before.pids):
            if (process := process_tree.read_process(pid)) is not None and not process.is_zombie:
                yield "process", process_tree.describe(process)
        for thread in sorted(self.threads - before.threads, key=lambda thread: thread.name):
            yield "thread", thread.name


class _Conftests:
    """Gives each file its own conftest files, whatever the order of files.

    Pytest forgets those whose directories come later, and the module `conftest` is that which it has imported last.
    """

    def __init__(self, session: pytest.Session) -> None:
        self._manager = session.config.pluginmanager
        # Since pytest 9.1, the fixtures of a conftest that was loaded first wait here for its directory.
        self._pending: dict[Path, object] = getattr(session._fixturemanager, "_pending_conftests", {})
        self._kept: dict[Path, object] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Give them back before a file is collected."""
        self._pending.update(self._kept)
        self._kept.clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self) -> None:
        """Take those that this file did not need."""
        self._kept = dict(self._pending)

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> None:
        """Have `import conftest` in a file, and the doctests of a conftest, find the nearest one that is loaded."""
        if not isinstance(collector, pytest.File):
            return
        found = (self._manager.get_plugin(str(directory / "conftest.py")) for directory in collector.path.parents)
        name = "conftest"
        if nearest := next((each for each in found if getattr(each, "__name__", "") == name), None):
            sys.modules[name] = nearest


class _Worker:
    """The session of one worker."""

    def __init__(self, config: pytest.Config, session: pytest.Session, address: str) -> None:
        self.config = config
        self.session = session
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self._log = os.fstat(1)
        self._cwd = os.getcwd()
        self._directory = os.path.dirname(config.getoption("rlharness_worker_report"))
        own = Reporter(config.getoption("rlharness_worker_report"), config)
        config.pluginmanager.register(self, "rlharness-worker")
        self._limits = _Limits(own)
        config.pluginmanager.register(self._limits, "rlharness-limits")
        config.pluginmanager.register(_Conftests(session), "rlharness-conftests")
        self._limits.write("idle")

    def serve(self) -> int:
        """Run files until the runner has none left; the exit code of the session."""
        with self._socket, self._socket.makefile("rb") as orders:
            self._say({"ready": True})
            for line in orders:
                order = json.loads(line)
                self._limits.write("file", timeout_s=order["timeout_s"], startup_timeout_s=order["startup_timeout_s"])
                self._write_to(order["log"])
                os.environ.update(order["env"])
                before = _State()
                code = self._run(order)
                changes = list(_State().changes_since(before))
                os.chdir(self._cwd)
                self._limits.write("idle")
                self._say({"exit": code, "changes": changes})
        self._write_to(os.path.join(self._directory, "output.log"))
        with self._end_errors(), own_coverage.measured_apart(self.config):
            self.session._setupstate.teardown_exact(None)
            return OK
        return FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, None, None]:
        """Record an error of the hooks that run at the end of the session, and have the worker fail."""
        is_over = False
        with self._end_errors():
            yield
            is_over = True
        if not is_over:
            self.session.exitstatus = FAILED

    @contextmanager
    def _end_errors(self) -> Iterator[None]:
        """Record and print an error of the end of the session, for which no test is left to answer."""
        try:
            yield
        except (Exception, pytest.fail.Exception):  # of a fixture or hook: the run fails with its text
            text = traceback.format_exc()
            print(text, file=sys.stderr, flush=True)
            with open_for_writing(os.path.join(self._directory, WORKER_ERROR), appends=True) as file:
                file.write(text.encode("utf-8", "replace"))

    def _say(self, message: dict[str, object]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _run(self, order: dict[str, Any]) -> int:
        """Run one file; its exit code."""
        config, session = self.config, self.session
        own_coverage.measure_afresh(self.config)
        for name, value in order["options"].items():
            setattr(config.option, name, value)
        config.args, config.args_source = list(order["args"]), config.ArgsSource.ARGS
        if (warm := config.stash.get(KEY, None)) is not None:
            warm.want(config.args)
        session.testsfailed, session.testscollected = 0, 0
        session.shouldfail = session.shouldstop = False
        reporter = Reporter(order["report"], config)
        config.pluginmanager.register(reporter, "rlharness-reporter")
        self._limits.of_file = reporter
        reporter.pytest_sessionstart(session)
        try:
            session.exitstatus = code = self._run_file()
            reporter.pytest_unconfigure()
        except KeyboardInterrupt:  # of a test, or of the supervisor: the end of this worker
            session.exitstatus = INTERRUPTED
            reporter.pytest_keyboard_interrupt(pytest.ExceptionInfo.from_current())
            reporter.pytest_unconfigure()
            raise
        finally:
            config.pluginmanager.unregister(reporter)
        return code

    def _run_file(self) -> int:
        """Do what `pytest.main` does between the start of a session and its end, and print the same."""
        config, session = self.config, self.session
        try:
            config.hook.pytest_collection(session=session)
            config.hook.pytest_runtestloop(session=session)
            code = FAILED if session.testsfailed else OK if session.testscollected else NO_TESTS
        except pytest.UsageError as error:
            code = USAGE_ERROR
            print(*(f"ERROR: {text}" for text in error.args), sep="\n", file=sys.stderr)
        except session.Failed:
            code = FAILED
        except (session.Interrupted, pytest.exit.Exception) as error:
            code = INTERRUPTED
            if isinstance(error, pytest.exit.Exception) and error.returncode is not None:
                code = error.returncode
            print(f"\n{error}", flush=True)
        except Exception:  # of a plugin, or our own bug: this file's failure
            code = INTERNAL_ERROR
            traceback.print_exc()
        try:  # a test that was cut short has not been torn down
            session._setupstate.teardown_exact(_Next.from_parent(session, name="rlharness: the next file"))
        except Exception:  # of a fixture, whose test has its outcome already
            traceback.print_exc()
        self._summarize()
        return code

    def _summarize(self) -> None:
        """Have the terminal reporter print what it has on this file, and forget it."""
        terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None:
            return
        for part in ("summary_errors", "summary_failures", "summary_warnings", "short_test_summary", "summary_stats"):
            getattr(terminal, part)()
        terminal.stats.clear()
        terminal.currentfspath = None
        terminal._progress_nodeids_reported.clear()
        terminal._numcollected = 0
        with suppress(OSError, ValueError):
            sys.stdout.flush()

    def _write_to(self, path: str) -> None:
        """Have every descriptor of the last file's output.log lead to that of this one."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        for fd in _descriptors_of(self._log):
            if fd != log:
                os.dup2(log, fd, inheritable=fd <= 2)
        self._log = os.fstat(log)
        os.close(log)


def _descriptors_of(file: os.stat_result) -> Iterable[int]:
    """The descriptors of this process that lead to a file."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            status = os.fstat(int(entry))
            if (status.st_dev, status.st_ino) == (file.st_dev, file.st_ino):
                found.append(int(entry))
    return found
