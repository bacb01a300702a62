"""A pytest plugin for `--isolate test`: each test of a collected file runs in a fork of the process that collected it.

    leader: collect ─▶ for each test: fork ─▶ child: pytest's own protocol; its reports go to report.jsonl alone
               ◀────── reads report.jsonl ────┘
            hooks replayed here, so that reporters and plugins see one session; then whatever the test left is killed

A test that ends its process, exceeds its limit or keeps its process from ending is `lost`: the report says how, and the
next test has a fork of its own.
"""

import contextlib
import gc
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from harness.bits.files import UNLIMITED
from harness.plugin import Reporter, timeout_of_item
from harness.process.clock import SystemClock
from harness.process.exhaustion import reason_of
from harness.process.growing_file import GrowingFile, GrowingLines
from harness.process.program_output import json_objects, signal_name
from harness.process.supervisor import process_tree, syscalls
from harness.process.supervisor.fork_hazards import cuda_is_initialized, num_threads_kept
from harness.process.supervisor.forked_leader import begin_fork, end, keep_random_state
from harness.process.supervisor.stacks import dump_stacks
from harness.process.supervisor_client import find_py_spy
from harness.runner.sessions import own_coverage
from harness.runner.sessions.threads_before import other_threads, plugin_of

SLACK_S = 1.0
"""Seconds that pytest-timeout, which acts inside the process, has before us."""
ROUND_S, REAP_ROUND_S = 0.05, 0.0005
"""Seconds between two looks at a fork that runs, and at one whose end of the pipe is closed."""
SETTLE_S = 1.0
"""Seconds that processes of an ended fork have to end by themselves."""
SWEEP_ROUND_S = 0.01
THREADS_BEFORE = pytest.StashKey[set[threading.Thread]]()
REPLAYED = (
    *("pytest_runtest_logstart", "pytest_runtest_logreport", "pytest_runtest_logfinish"),
    "pytest_warning_recorded",
)
"""Hooks that a fork has for its reporter alone."""
TUPLES = ("location", "longrepr", "user_properties", "sections")
"""Attributes of a report that are tuples, or lists of them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    group = parser.getgroup("rlharness")
    text = "Run each test in a fork; one that is ended has GRACE seconds from SIGINT to SIGKILL."
    group.addoption("--rlharness-fork-tests", metavar="GRACE", type=float, default=None, help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Take note of the threads that no test file has started."""
    session.config.stash[THREADS_BEFORE] = other_threads()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests as pytest's own loop does, each in a fork, in an interpreter of their file's own."""
    grace_s = session.config.getoption("rlharness_fork_tests", None)
    if grace_s is None or session.config.option.collectonly or session.testsfailed:
        return None
    reporter: Any = session.config.pluginmanager.get_plugin("rlharness-reporter")
    if not can_fork(session.config, reporter):
        return None
    run_forked(session, session.items, float(grace_s), reporter)
    return True


def can_fork(config: pytest.Config, reporter: Reporter) -> bool:
    """Return whether tests can have forks of this process; the report says why not."""
    found = _why_not(config)
    if found:
        reporter.write("unforked", why=found[0], detail=found[1])
    return not found


def run_forked(session: pytest.Session, items: Sequence[pytest.Item], grace_s: float, reporter: Reporter) -> None:
    """Run each of `items` in a fork of this process."""
    reporter.write("forked", grace_s=grace_s)
    syscalls.become_subreaper()
    forks = _Forks(session, reporter, grace_s)
    gc.collect()
    gc.freeze()
    for item in items:
        _Fork(item, forks).run()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)


def _why_not(config: pytest.Config) -> tuple[str, str] | None:
    """Return the obstacle to forking this process, as a code and its value; None for none."""
    if (num := num_threads_kept()) > 1:
        earlier, threads = config.stash.get(THREADS_BEFORE, set()), other_threads()
        if plugin := plugin_of(threads & earlier, config.pluginmanager.list_name_plugin()):
            return "plugin_threads", plugin
        names = ", ".join(sorted(thread.name for thread in threads)) or f"{num - 1} of a library"
        return "suite_threads" if threads & earlier else "threads", names
    return ("cuda", "") if cuda_is_initialized() else None


# ---- replay


def replay_test(config: pytest.Config, nodeid: str, item: pytest.Item | None, reports: Iterable[Any]) -> None:
    """Have pytest's hooks hear of a test: of each phase as the report has it, or as a failure for a text."""
    hook = item.ihook if item is not None else config.hook
    location = item.location if item is not None else (nodeid.partition("::")[0], None, nodeid)
    keywords: Any = dict.fromkeys(item.keywords, 1) if item is not None else {}
    hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
    for each in reports:
        with contextlib.suppress(TypeError, ValueError, KeyError, AssertionError):  # a test can write into its report
            if isinstance(each, pytest.TestReport):
                made = each
            elif isinstance(each, str):
                made = pytest.TestReport(nodeid, location, keywords, "failed", each, "call")
            elif isinstance(each, list):
                when, outcome, *times = each
                made = pytest.TestReport(nodeid, location, keywords, outcome, None, when, (), *times)
            else:
                data = {name: _tupled(value) if name in TUPLES else value for name, value in each.items()}
                made = config.hook.pytest_report_from_serializable(config=config, data=data)
            hook.pytest_runtest_logreport(report=made)
    hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)


def _tupled(value: Any) -> Any:
    """A value of a report as pytest made it: JSON has no tuples."""
    rows = [tuple(row) if isinstance(row, list) else row for row in value] if isinstance(value, list) else value
    return tuple(rows) if isinstance(rows, list) and not any(isinstance(row, tuple) for row in rows) else rows


def replay_warning(config: pytest.Config, record: dict[str, Any]) -> None:
    """Have pytest's hook hear of a warning."""
    module, _, name = str(record.get("category")).partition(":")
    category = getattr(sys.modules.get(module), name, None)
    if not (isinstance(category, type) and issubclass(category, Warning)):
        category = UserWarning
    with contextlib.suppress(Exception):  # a category with arguments of its own
        where = str(record["file"]), int(record["line"])
        message = warnings.WarningMessage(category(record["text"]), category, *where)
        config.hook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": message, "when": record["when"], "nodeid": record["id"], "location": None}
        )


# ---- a test in its fork


class _Forks:
    """What the forks of one process share."""

    def __init__(self, session: pytest.Session, reporter: Reporter, grace_s: float) -> None:
        self.reporter = reporter
        self.grace_s = grace_s
        self.clock = SystemClock()
        self.own = {process.pid for process in process_tree.children(os.getpid())}
        """Processes that the file started when it was imported."""
        self.of_reporter = []
        """Hooks of REPLAYED, with the implementations of the reporter: a fork has these, this process all others."""
        for caller in (getattr(session.config.hook, name) for name in REPLAYED):
            self.of_reporter.append((caller, [each for each in caller.get_hookimpls() if each.plugin is reporter]))
            caller._remove_plugin(reporter)
        self._lines = GrowingLines(GrowingFile(reporter.path, max_bytes=UNLIMITED))
        [*self.records()]

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield what the report has more than the last time."""
        while True:
            yield from json_objects(b"\n".join(self._lines.poll()).decode("utf-8", "replace"))
            if not self._lines.file.is_behind:
                return


class _Fork:
    """One test in its fork."""

    def __init__(self, item: pytest.Item, forks: _Forks) -> None:
        self.item = item
        self.forks = forks
        self.clock = forks.clock
        self.limit_s = timeout_of_item(item)
        self.finished_s: float | None = None
        """When pytest came to the end of the test; None before, and while a plugin runs it again."""
        self.said: dict[str, Any] = {}
        """The last record of the fork: `pytest.exit` and KeyboardInterrupt in the test, and why pytest is to stop."""
        self.pid = self.pipe = 0
        """The fork, and the end of a pipe whose other end it holds."""
        self.code: int | None = None
        """Its exit code, negative for a signal, once it has been reaped."""

    def run(self) -> None:
        """Run the test to its end, and to the end of every process that it has started."""
        item, reporter = self.item, self.forks.reporter
        reporter.pytest_runtest_logstart(item.nodeid)  # whatever the test does to this process, the report names it
        try:
            self._fork()
        except OSError as error:  # no process, memory or descriptor left: this test's failure
            why = f"the test could not be given a process: {reason_of(error)}"
            reporter.pytest_runtest_logreport(pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "setup"))
            reporter.pytest_runtest_logfinish(item.nodeid)
            self._hear()
            return
        try:
            timed_out = not self._wait()
            if timed_out:
                self._terminate()
        except BaseException:  # Ctrl-C and the end of the run: the test first
            with contextlib.suppress(BaseException):
                self._signal(signal.SIGKILL)
                self._sweep()
            raise
        finally:
            os.close(self.pipe)
        if left := self._sweep():
            reporter.write("left_behind", id=item.nodeid, processes=left)
        reporter.reports.pop(item.nodeid, None)  # it is the fork that has run it
        item.session.shouldstop = self.said.get("stop") or item.session.shouldstop
        if timed_out or self.code:
            self._lose("timed_out" if timed_out else "crashed")
        elif exit_ := self.said.get("exit"):
            pytest.exit(*exit_)
        elif self.finished_s is None:
            self._lose("exited_early")

    def _fork(self) -> None:
        """Fork; OSError leaves nothing."""
        read, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        restore_random = keep_random_state()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads that end in them
                pid = os.fork()
        except OSError:
            os.close(read)
            os.close(write)
            raise
        if pid == 0:
            os.close(read)
            restore_random()
            _be_test(self.item, self.forks)
        os.close(write)
        self.pid, self.pipe = pid, read

    def _wait(self, until_s: float | None = None) -> bool:
        """Hear the fork until it has ended; False once its limit, or the time `until_s`, has passed.

        The limit is that of the test, and after its end the grace in which its process ends too.
        """
        test_s = None if self.limit_s is None else self.clock.monotonic_s() + self.limit_s + SLACK_S
        while True:
            self._hear()
            if self._has_ended():
                self._hear()
                return True
            exit_s = None if self.finished_s is None else self.finished_s + self.forks.grace_s
            limit_s = until_s if until_s is not None else exit_s if exit_s is not None else test_s
            left_s = ROUND_S if limit_s is None else limit_s - self.clock.monotonic_s()
            if left_s <= 0:
                return False
            # The end of the fork counts, not that of the pipe, which a process that it has left may hold open.
            if select.select([self.pipe], [], [], min(left_s, ROUND_S))[0]:
                select.select([], [], [], REAP_ROUND_S)

    def _hear(self) -> None:
        """Replay what the fork has reported."""
        nodeid, config = self.item.nodeid, self.item.config
        for record in self.forks.records():
            match record:
                case {"k": "start", "id": str(of)} if of == nodeid:
                    self.finished_s = None
                case {"k": "end", "id": str(of), "reports": list(reports)} if of == nodeid:
                    replay_test(config, nodeid, self.item, reports)
                    self.finished_s = self.clock.monotonic_s()
                case {"k": "warning"}:
                    replay_warning(config, record)
                case {"k": "forked_end"}:
                    self.said = record

    def _has_ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def _signal(self, signum: int) -> None:
        if not self._has_ended():
            os.kill(self.pid, signum)

    def _terminate(self) -> None:
        """End the test in order: stacks, SIGINT, SIGTERM after half of the grace, SIGKILL at its end."""
        tree = [each for each in process_tree.descendants(os.getpid()) if each.pid not in self.forks.own]
        with contextlib.suppress(OSError):
            dump_stacks(tree, str(Path(self.forks.reporter.path).with_name("stacks.txt")), find_py_spy(), self.clock)
        for signum in (signal.SIGINT, signal.SIGTERM):
            self._signal(signum)
            if self._wait(self.clock.monotonic_s() + self.forks.grace_s / 2):
                return
        self._signal(signal.SIGKILL)
        while not self._wait(self.clock.monotonic_s() + 1):
            pass

    def _sweep(self) -> list[str]:
        """Kill what the ended fork has left until nothing of it lives; return each as "pid state command"."""
        found: dict[int, str] = {}
        until_s = self.clock.monotonic_s() + SETTLE_S
        while left := list(self._orphans()):
            if self.clock.monotonic_s() >= until_s:
                for process in left:
                    found.setdefault(process.pid, process_tree.describe(process))
                    process_tree.send_signal(process, signal.SIGKILL)
            select.select([], [], [], SWEEP_ROUND_S)
        return list(found.values())

    def _orphans(self) -> Iterator[process_tree.Process]:
        """Yield living children of this process that are not its own; those that have ended are reaped."""
        if not self.forks.own:  # then a look at /proc, which takes milliseconds, is seldom needed
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
        for process in process_tree.children(os.getpid()):
            if process.pid not in self.forks.own:
                if process.is_zombie:
                    os.waitpid(process.pid, os.WNOHANG)
                else:
                    yield process

    def _lose(self, how: str) -> None:
        """Record a test without an end, and have pytest count it as failed."""
        item, code = self.item, self.code or 0
        is_interrupted = bool(self.said.get("interrupted"))
        if how == "timed_out" and self.finished_s is not None and not is_interrupted:  # its process had no end
            why = f"the process took longer than {self.forks.grace_s:g} s to exit"
        elif how == "timed_out":
            why = f"it ran longer than its limit of {self.limit_s:g} s"
        elif is_interrupted:
            why = "KeyboardInterrupt"
        else:
            why = f"exit code {code}" if code >= 0 else signal_name(-code)
        if self.finished_s is None:
            text = f"the process of the test ended: {why}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call", self._output())
            replay_test(item.config, item.nodeid, item, [report])
        self.forks.reporter.write("lost", id=item.nodeid, how=how, why=why)

    def _output(self) -> list[tuple[str, str]]:
        """What the test had printed: the files in which pytest keeps it are those of this process too."""
        capture: Any = self.item.config.pluginmanager.get_plugin("capturemanager")
        if capture is None or not capture.is_globally_capturing():
            return []
        found = capture.read_global_capture()
        return [(f"Captured {name}", text) for name, text in (("stdout", found.out), ("stderr", found.err)) if text]


def _be_test(item: pytest.Item, forks: _Forks) -> NoReturn:
    """In the fork: run the protocol of one test, with the hooks of REPLAYED for the reporter alone."""
    code, reporter, said = 1, forks.reporter, dict[str, Any]()
    try:
        os.setsid()
        begin_fork()
        for caller, implementations in forks.of_reporter:
            caller._hookimpls[:] = implementations
            if caller.is_historic():
                caller._call_history.clear()  # the parent has reported these
        reporter.go_on(item.nodeid)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        except pytest.exit.Exception as error:
            said["exit"] = (error.msg, error.returncode)
        except KeyboardInterrupt:
            said["interrupted"] = True
            raise
        finally:
            reporter.end_failed()
            reporter.write("forked_end", stop=str(item.session.shouldstop or ""), **said)
        own_coverage.save()
        code = 0
    except BaseException:  # a traceback and an exit code, as at the end of an interpreter
        sys.excepthook(*sys.exc_info())
    finally:
        end(code)
