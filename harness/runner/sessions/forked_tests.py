"""A pytest plugin for `--isolate test`: each test of a collected file runs in a fork of the process that collected it.

    leader: collect ─▶ for each test: fork ─▶ child: pytest's own protocol, whose hooks are sent up as frames
                          ◀─── frames ────────┘
            hooks replayed here, so that reporters and plugins see one session; then whatever the test left is killed

A test that ends its process, exceeds its limit or keeps its process from ending is `lost`: the report says how, and the
next test has a fork of its own.
"""

import contextlib
import gc
import os
import pickle
import random
import select
import signal
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from harness.plugin import timeout_of_item
from harness.process.clock import SystemClock
from harness.process.exhaustion import reason_of
from harness.process.supervisor import process_tree, syscalls
from harness.process.supervisor.fork_hazards import cuda_is_initialized, num_threads_kept
from harness.process.supervisor.forked_child import ForkedChild
from harness.process.supervisor.forked_leader import begin_fork, end, set_random_state
from harness.process.supervisor.stacks import dump_stacks
from harness.process.supervisor_client import find_py_spy
from harness.runner.sessions import own_coverage
from harness.runner.sessions.threads_before import other_threads, plugin_of

SLACK_S = 1.0
"""Seconds that pytest-timeout, which acts inside the process, has before us."""
ROUND_S = 0.05
"""Seconds between two looks at a fork whose pipe another process holds open."""
THREADS_BEFORE = pytest.StashKey[set[threading.Thread]]()
_FRAME = struct.Struct("!Q")
# Tests replace these, some for good; ours are kept.
_write, _getpid, _dumps = os.write, os.getpid, pickle.dumps
_REPLAYED = ("pytest_runtest_logstart", "pytest_runtest_logreport", "pytest_runtest_logfinish")


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
    reporter = session.config.pluginmanager.get_plugin("rlharness-reporter")
    if not can_fork(session.config, reporter):
        return None
    run_forked(session, session.items, float(grace_s), reporter)
    return True


def can_fork(config: pytest.Config, reporter: Any) -> bool:
    """Return whether tests can have forks of this process; the report says why not."""
    found = _why_not(config)
    if found and reporter:
        reporter.write("unforked", why=found[0], detail=found[1])
    return not found


def run_forked(session: pytest.Session, items: Sequence[pytest.Item], grace_s: float, reporter: Any) -> None:
    """Run each of `items` in a fork of this process."""
    if reporter:
        reporter.write("forked", grace_s=grace_s)
    syscalls.become_subreaper()
    own = {process.pid for process in process_tree.children(os.getpid())}
    gc.collect()
    gc.freeze()
    for item in items:
        _Fork(item, grace_s, reporter, own).run()
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


class _Seeding:
    """Whether the suite has seeded `random`."""

    is_done = False

    def __init__(self) -> None:
        self._seed, random.seed = random.seed, self._note_seed

    def _note_seed(self, *args: Any, **kwargs: Any) -> None:
        self._seed(*args, **kwargs)
        type(self).is_done = True


_SEEDING = _Seeding()


class _Fork:
    """One test in its fork."""

    def __init__(self, item: pytest.Item, grace_s: float, reporter: Any, own: set[int]) -> None:
        self.item = item
        self.grace_s = grace_s
        self.reporter = reporter
        self.own = own
        """Processes that the file started when it was imported."""
        self.limit_s = timeout_of_item(item)
        self.clock = SystemClock()
        self.finished_s: float | None = None
        """When pytest came to the end of the test; None before, and while a plugin runs it again."""
        self.num_begun = 0
        """How often the test has begun."""
        self.is_interrupted = False
        """Whether the test has raised KeyboardInterrupt."""
        self.exit: tuple[str, int | None] | None = None
        """Message and code of `pytest.exit` in the test."""

    def run(self) -> None:
        """Run the test to its end, and to the end of every process that it has started."""
        item = self.item
        # Before the fork: whatever the test does to this process, the report names it.
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        state = random.getstate() if _Seeding.is_done else None
        try:
            pid, read, write = _forked()
        except OSError as error:  # no process, memory or descriptor left: this test's failure
            self._fail(f"the test could not be given a process: {reason_of(error)}")
            return
        if pid == 0:
            os.close(read)
            _be_test(item, write, state)
        os.close(write)
        child = ForkedChild(pid, self.own, self.clock)
        try:
            with open(read, "rb", buffering=0) as frames:
                timed_out = not self._follow(child, frames.fileno())
                if timed_out:
                    self._terminate(child, frames.fileno())
        except BaseException:  # Ctrl-C and the end of the run: the test first
            with contextlib.suppress(BaseException):
                child.signal(signal.SIGKILL)
                child.sweep()
            raise
        limits_s = self.limit_s and self.limit_s + SLACK_S, self.finished_s and self.grace_s
        code = child.reap(min(filter(None, limits_s), default=None))
        left = child.sweep()
        if left and self.reporter:
            self.reporter.write("left_behind", id=item.nodeid, processes=left)
        if timed_out or code != 0:
            self._lose("timed_out" if timed_out else "crashed", code)
        elif self.exit is not None:
            pytest.exit(self.exit[0], self.exit[1])
        elif self.finished_s is None:
            self._lose("exited_early", code)

    def _follow(self, child: ForkedChild, fd: int, until_s: float | None = None) -> bool:
        """Replay frames until the fork closes its end; False once its limit, or the time `until_s`, has passed.

        The limit is that of the test, and after its end the grace in which its process ends too.
        """
        test_s = None if self.limit_s is None else self.clock.monotonic_s() + self.limit_s + SLACK_S
        rest = b""
        while True:
            exit_s = None if self.finished_s is None else self.finished_s + self.grace_s
            limit_s = until_s if until_s is not None else exit_s if exit_s is not None else test_s
            pause_s = None if limit_s is None else max(0.0, limit_s - self.clock.monotonic_s())
            # The end of the fork counts, not that of the pipe, which a process that it has left may hold open.
            if not select.select([fd], [], [], ROUND_S if pause_s is None else min(pause_s, ROUND_S))[0]:
                if pause_s == 0:
                    return False
                if child.has_ended:
                    return True
                continue
            chunk = os.read(fd, 1 << 20)
            if not chunk:
                return True
            rest = self._replay(rest + chunk)

    def _replay(self, received: bytes) -> bytes:
        """Call the hooks of all whole frames; the rest."""
        while len(received) >= _FRAME.size:
            (size,) = _FRAME.unpack(received[: _FRAME.size])
            if len(received) < _FRAME.size + size:
                break
            name, given = pickle.loads(received[_FRAME.size : _FRAME.size + size])
            received = received[_FRAME.size + size :]
            hook = self.item.config.hook
            if name == "exit":
                self.exit = given
            elif name == "interrupted":
                self.is_interrupted = True
            elif name == "stop":
                self.item.session.shouldstop = given
            elif name == "pytest_warning_recorded":
                hook.pytest_warning_recorded.call_historic(kwargs=given)
            elif name == "pytest_runtest_logreport":
                report = hook.pytest_report_from_serializable(config=self.item.config, data=given)
                self.item.ihook.pytest_runtest_logreport(report=report)
            elif name == "pytest_runtest_logstart":
                self.num_begun, self.finished_s = self.num_begun + 1, None
                if self.num_begun > 1:
                    self.item.ihook.pytest_runtest_logstart(**given)
            else:
                self.finished_s = self.clock.monotonic_s()
                self.item.ihook.pytest_runtest_logfinish(**given)
        return received

    def _terminate(self, child: ForkedChild, fd: int) -> None:
        """End the test in order: stacks, SIGINT, SIGTERM after half of the grace, SIGKILL at its end."""
        if self.reporter:
            with contextlib.suppress(OSError):
                dump_stacks(
                    child.tree(), str(Path(self.reporter._path).with_name("stacks.txt")), find_py_spy(), self.clock
                )
        for signum in (signal.SIGINT, signal.SIGTERM):
            child.signal(signum)
            if self._follow(child, fd, self.clock.monotonic_s() + self.grace_s / 2):
                return
        child.signal(signal.SIGKILL)

    def _fail(self, why: str) -> None:
        """Have the test fail before it has begun."""
        report = pytest.TestReport(self.item.nodeid, self.item.location, {}, "failed", why, "setup")
        self.item.ihook.pytest_runtest_logreport(report=report)
        self.item.ihook.pytest_runtest_logfinish(nodeid=self.item.nodeid, location=self.item.location)

    def _lose(self, how: str, code: int) -> None:
        """Record a test without an end, and have pytest count it as failed."""
        ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        with contextlib.suppress(ValueError):
            ending = signal.Signals(-code).name
        item, manager = self.item, self.item.config.pluginmanager
        if how == "timed_out" and self.finished_s is not None:  # it has its outcome; its process had no end
            if self.reporter:
                why = f"the process took longer than {self.grace_s:g} s to exit"
                self.reporter.write("lost", id=item.nodeid, how=how, why=why)
            return
        if how == "timed_out":
            why = f"it ran longer than its limit of {self.limit_s:g} s"
        else:
            why = "KeyboardInterrupt" if self.is_interrupted else ending
        report = pytest.TestReport(
            item.nodeid, item.location, {}, "failed", f"the process of the test ended: {why}", "call", self._output()
        )
        others = [self.reporter] if self.reporter else []
        manager.subset_hook_caller("pytest_runtest_logreport", remove_plugins=others)(report=report)
        manager.subset_hook_caller("pytest_runtest_logfinish", remove_plugins=others)(
            nodeid=item.nodeid, location=item.location
        )
        if self.reporter:
            if not self.is_interrupted:  # which pytest counts at its own end, as without a fork
                self.reporter._reports.pop(item.nodeid, None)  # its phases so far are no end
            self.reporter.write("lost", id=item.nodeid, how=how, why=why)

    def _output(self) -> list[tuple[str, str]]:
        """What the test had printed: the files in which pytest keeps it are those of this process too."""
        capture: Any = self.item.config.pluginmanager.get_plugin("capturemanager")
        if capture is None or not capture.is_globally_capturing():
            return []
        found = capture.read_global_capture()
        return [(f"Captured {name}", text) for name, text in (("stdout", found.out), ("stderr", found.err)) if text]


def _forked() -> tuple[int, int, int]:
    """Fork; return the pid, which is 0 in the fork, and a pipe's ends to read and to write. OSError leaves nothing."""
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks beside threads that end in them
            return os.fork(), read, write
    except OSError:
        os.close(read)
        os.close(write)
        raise


def _be_test(item: pytest.Item, write: int, state: tuple[Any, ...] | None) -> NoReturn:
    """In the fork: run the protocol of one test, with the hooks that report going to the parent."""
    code = 1
    try:
        os.setsid()
        begin_fork()
        set_random_state(state)
        send = _sender(write)
        _redirect_hooks(item, send)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        except pytest.exit.Exception as error:
            send("exit", (error.msg, error.returncode))
        except KeyboardInterrupt:
            send("interrupted", None)
            raise
        if item.session.shouldstop:
            send("stop", item.session.shouldstop)
        own_coverage.save()
        code = 0
    except BaseException:  # a traceback and an exit code, as at the end of an interpreter
        sys.excepthook(*sys.exc_info())
    finally:
        end(code)


def _sender(write: int) -> Callable[[str, Any], None]:
    pid, lock = os.getpid(), threading.Lock()

    def send(name: str, given: Any) -> None:
        if _getpid() != pid:  # a fork of the test
            return
        frame = _dumps((name, given))
        unsent = memoryview(_FRAME.pack(len(frame)) + frame)
        with lock:
            while unsent:
                unsent = unsent[_write(write, unsent) :]

    return send


def _redirect_hooks(item: pytest.Item, send: Callable[[str, Any], None]) -> None:
    """Have the hooks that report a test call the parent's in place of those of this fork."""
    hooks = item.config.hook
    for name in (*_REPLAYED, "pytest_warning_recorded"):
        caller = getattr(hooks, name)
        for implementation in caller.get_hookimpls():
            caller._remove_plugin(implementation.plugin)
        if caller.is_historic():
            caller._call_history.clear()  # the parent has reported these
    item.config.pluginmanager.register(_Sending(item.config, send))


class _Sending:
    """The hooks of a fork that its parent replays."""

    def __init__(self, config: pytest.Config, send: Callable[[str, Any], None]) -> None:
        self._config = config
        self._send = send

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """A test begins."""
        self._send("pytest_runtest_logstart", {"nodeid": nodeid, "location": location})

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """A test has ended."""
        self._send("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test has ended."""
        self._config.hook.pytest_report_teststatus(report=report, config=self._config)  # fails a test by its subtests
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        try:
            self._send("pytest_runtest_logreport", data)
        except Exception:  # properties that the test has added, of a type that no other process knows
            data["user_properties"] = [(str(name), repr(value)) for name, value in data.get("user_properties", ())]
            self._send("pytest_runtest_logreport", data)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
        """A warning was issued."""
        warning_message.source = None
        given = {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": None}
        try:
            self._send("pytest_warning_recorded", given)
        except Exception:  # a category that the suite defines where it cannot be found by its name
            text, where = str(warning_message.message), (warning_message.filename, warning_message.lineno)
            plain = warnings.WarningMessage(UserWarning(text), UserWarning, *where)
            self._send("pytest_warning_recorded", given | {"warning_message": plain})
