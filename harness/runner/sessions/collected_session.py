"""A pytest plugin: the one session of a run, which collects the suite once. The process of every unit is a fork of it.

    runner ──starts──▶ session: conftest files, collect ─▶ serve ─"fork"─▶ supervisor ─▶ leader: runs its items, ends
       │                  │ fork, every 0.3 s                └─"replay"─▶ pytest's hooks hear what the leaders reported
       └──wakes──▶ standby: the collection as it stood; goes on without the file that ended or poisoned the session

It is plain pytest but for its run loop: what it configures, collects and selects is what pytest does, and reporters,
the cache and the hooks of the suite see one session. With `--rlharness-serve=FD` it answers the runner on that socket,
and writes to `--rlharness-found=FILE`, a JSON line each, what it imports before it does (`importing`, `imported`), and
at last every file with its tests. `--rlharness-left-out=WHY:PATH` names a file that ended the session before.

A file that does at its import what must not be shared (`fork_hazards`) poisons: the session ends, and the standby goes
on without it. Such a file is collected late, by its own leader, which has its GPUs by then; the standby imports what is
installed among the modules that it has imported, so that this costs no more than the file.
"""

import gc
import importlib
import itertools
import json
import os
import socket
import sys
import sysconfig
import traceback
import types
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
from _pytest.junitxml import xml_key

from harness.plugin import (
    NOTHING,
    BadMarker,
    MarkError,
    NeedJson,
    Reporter,
    merge_needs,
    need_of_items,
    timeout_of_item,
)
from harness.process.child_env import ATTEMPT_MARKER, VARYING
from harness.process.clock import SystemClock
from harness.process.program_output import json_objects
from harness.process.supervisor import syscalls
from harness.process.supervisor.fork_hazards import Watch
from harness.process.supervisor.fork_server import serve
from harness.process.supervisor.forked_leader import ParentState, begin_fork, end, show_marker
from harness.process.supervisor.main import supervise
from harness.runner.sessions import own_coverage
from harness.runner.sessions.forked_tests import REPLAYED, can_fork, replay_test, replay_warning, run_forked
from harness.runner.sessions.threads_before import other_threads, plugin_of
from harness.runner.sessions.ties import ties_of
from harness.runner.sessions.xdist_fixtures import NUM_WORKERS

STANDBY_S = 0.3
"""Between two forks of a standby: so much of a collection is done twice at most."""
POISONED = 117
"""Exit code of a session that a file has poisoned."""
MAX_AHEAD = 1000
"""Modules that a standby imports at most, after a file that poisoned."""
MAX_ORDER_BYTES = 1 << 18
REPORTING = (*REPLAYED, "pytest_keyboard_interrupt")
"""Hooks that the session calls for its leaders, beside those at its end."""
UNWRITABLE = "the list of test files cannot be written"
"""Begin of pytest's error where FILE cannot be written."""
INSTALLED = [os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
BENCHMARK = "pytest_benchmark.session"
"""Asks whether pytest-xdist is active, and then times nothing, since files that run at once disturb each other."""
RUN_NOTHING = (
    *("collectonly", "setupplan", "setuponly", "showfixtures", "show_fixtures_per_test", "cacheshow"),
    *("markers", "help", "version", "usepdb", "trace"),
)
"""Names of the options of pytest that run no test, or with which a failing test waits for input."""
KEY = pytest.StashKey["CollectedSession"]()
# Files replace these when they are imported; ours are kept.
_fork, _write, _waitpid, _kill, _exit = os.fork, os.write, os.waitpid, os.kill, os._exit
_encode, _decode = json.JSONEncoder(separators=(",", ":")).encode, json.JSONDecoder().decode


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    # Most of what plugins and files make while they are imported stays: looking for garbage among it takes a third of
    # the time. All of it is frozen before the first leader is forked.
    gc.disable()
    group = parser.getgroup("rlharness")
    group.addoption("--rlharness-serve", metavar="FD", type=int, default=-1, help="Serve forks on this socket.")
    group.addoption("--rlharness-found", metavar="FILE", default="", help="Write what is collected to FILE.")
    group.addoption("--rlharness-left-out", metavar="WHY:PATH", action="append", default=[], help="Leave out a file.")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """Watch what conftest files do, before the first of them is imported."""
    options = early_config.known_args_namespace
    if options.rlharness_serve >= 0:
        if found := [name for name in RUN_NOTHING if getattr(options, name, False)]:
            raise pytest.UsageError(f"with its option {found[0]}, pytest runs no tests, or waits for input")
        session = early_config.stash[KEY] = CollectedSession(early_config)
        early_config.pluginmanager.register(session, "rlharness-session")
        early_config.pluginmanager.register(_LeftOut(session), "rlharness-left-out")
    return (yield)


class _LeftOut:
    """Stands for the files that are not imported here."""

    def __init__(self, session: "CollectedSession") -> None:
        self._session = session

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        """Have nothing collected from such a file."""
        session = self._session
        if isinstance(collector, pytest.File) and not session.is_child and session.why_left_out(collector.path):
            return pytest.CollectReport(collector.nodeid, "passed", None, [])
        return None


class CollectedSession:
    """The session, from its first conftest file to the end of the run."""

    def __init__(self, config: pytest.Config) -> None:
        syscalls.die_with_parent()
        options = config.known_args_namespace
        self.config = config
        self.left_out: dict[str, str] = {}
        """Why files are not imported here, by absolute path; a conftest stands for all files beside and below it."""
        for each in options.rlharness_left_out:
            why, _, path = each.partition(":")
            self.left_out[path] = why
        self.files: dict[Path, str] = {}
        """Files from which pytest collects, in its order, with their path below the root directory."""
        self.reports = defaultdict[str, list[pytest.CollectReport]](list)
        """Files, and what they hold, that cannot be collected or skip themselves, by the path of the file."""
        self.num_deselected = Counter[str]()
        self.not_found: dict[str, str] = {}
        self.is_child = False
        self._socket = socket.socket(fileno=options.rlharness_serve)
        self._socket.set_inheritable(False)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            self._found = os.open(options.rlharness_found, flags, 0o644)
        except OSError as error:
            raise pytest.UsageError(f"{UNWRITABLE}: {error.strerror}") from None
        self._watch = Watch(VARYING, [BENCHMARK])
        self._parent_state = ParentState(self._watch)
        self._clock = SystemClock()
        self._standby, self._forked_s = 0, float("-inf")
        self._dropped: list[int] = []
        """Standbys that have been killed, and are not reaped yet."""
        self._hazard: tuple[str, str] | None = None
        """What nothing can be forked for: a plugin or a conftest file has done it."""
        self._maxfail, self._is_collecting = 0, False
        self._items: dict[str, pytest.Item] = {}
        self._of_leaders: list[tuple[Any, list[Any]]] = []
        """Hooks, with the implementations that a leader calls."""
        self._coverage = own_coverage.combine_options(options), own_coverage.threshold(options)
        # pytest has no hook around the import of a conftest, and stops altogether where one fails that it imports
        # early (pytest-dev/pytest#12690). Until it goes on, its one method that imports them is wrapped.
        manager = config.pluginmanager
        self._conftests: dict[str, types.ModuleType] = {}
        self._import: Callable[..., types.ModuleType] = manager._importconftest
        manager._importconftest = self._import_conftest  # type: ignore[assignment]

    def note(self, kind: str, **fields: object) -> None:
        """Append a line to FILE. Raises pytest.UsageError where it cannot be written."""
        line = memoryview(_encode({"k": kind, **fields}).encode() + b"\n")
        try:
            while line:
                line = line[_write(self._found, line) :]
        except OSError as error:
            raise pytest.UsageError(f"{UNWRITABLE}: {error.strerror}") from None

    def why_left_out(self, path: Path) -> str:
        """Return why a file is not imported here; empty for one that is."""
        beside = (os.path.join(above, "conftest.py") for above in path.parents)
        return next((self.left_out[each] for each in (str(path), *beside) if each in self.left_out), "")

    # ---- conftest files

    def _import_conftest(self, path: Path, *args: Any, **kwargs: Any) -> types.ModuleType:
        if str(path) in self._conftests:
            return self._conftests[str(path)]
        if str(path) in self.left_out:
            return self._replaced(path)
        self.note("importing", path=str(path), log=os.fstat(1).st_size)
        try:
            module = self._import(path, *args, **kwargs)
        except KeyboardInterrupt:
            raise
        except pytest.skip.Exception as skipped:
            self.note("skipped", path=str(path.parent), reason=str(skipped))
            self.left_out[str(path)] = "skipped"
            return self._replaced(path)
        except BaseException as error:  # whatever it is, SystemExit too: that conftest's, not ours
            self.note("broken", path=str(path), text=_conftest_text(path, error))
            self.left_out[str(path)] = "broken"
            return self._replaced(path)
        self.note("imported", path=str(path))
        self._conftests[str(path)] = module
        if self._is_collecting and self._hazard is None:  # else the first look comes at the start of the session
            self._look_at_conftests()
        return module

    def _replaced(self, path: Path) -> types.ModuleType:
        manager = self.config.pluginmanager
        if manager.hasplugin(str(path)):  # it failed in what it loads, after it was registered itself
            manager.unregister(name=str(path))
        module = self._conftests[str(path)] = types.ModuleType("conftest")
        return module

    # ---- collection

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Have pytest-benchmark run what it would time once, as beside pytest-xdist."""
        if hasattr(config.option, "benchmark_disable") and not config.option.benchmark_enable:
            config.option.benchmark_disable = True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Look at what plugins and conftest files have done."""
        self._maxfail, self.config.option.maxfail = self.config.option.maxfail, 0  # for tests: all files are collected
        self._watch.known_files |= {fd for stream in _captured(self.config) for fd in _files_of(stream)}
        self._is_collecting = True
        self._look_at_conftests()

    def _look_at_conftests(self) -> None:
        """Look at what plugins and conftest files have done: of that, forks would lack what a thread does."""
        self._hazard = self._watch.hazard(self._own_children())
        threads = other_threads()
        if self._hazard and threads:
            plugin = plugin_of(threads, self.config.pluginmanager.list_name_plugin())
            names = ", ".join(sorted(thread.name for thread in threads))
            self._hazard = ("plugin_threads", plugin) if plugin else ("suite_threads", names)
        if self._hazard:
            self._drop_standby()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Note the import of a file before it, and look at what it has done after it."""
        path = collector.path
        if not isinstance(collector, pytest.File) or self.is_child:
            return (yield)
        self.files.setdefault(path, Path(os.path.relpath(path, self.config.rootpath)).as_posix())
        if self.why_left_out(path):
            return (yield)
        self._renew_standby()
        if self.why_left_out(path):  # this process is the standby, which was woken
            return (yield)
        before, modules = len(self._watch.reads), len(sys.modules)
        self.note("importing", path=str(path), log=os.fstat(1).st_size)
        try:
            report = yield
        except (SystemExit, KeyboardInterrupt, pytest.exit.Exception):  # which would end pytest: it is this file's end
            traceback.print_exc()
            _exit(1)
        if self._hazard is None:
            found = self._watch.hazard(self._own_children())
            if found is not None or len(self._watch.reads) > before:
                self._poison(collector, report, [*itertools.islice(sys.modules, modules, None)])
        self.note("imported", path=str(path))
        return report

    def _poison(self, collector: pytest.Collector, report: pytest.CollectReport, modules: Sequence[str]) -> NoReturn:
        """End this session, for a standby to go on; first, say what the file holds, and which modules it imports."""
        try:
            session, config = collector.session, self.config
            items = [item for node in report.result or () for item in session.genitems(node)]
            config.hook.pytest_collection_modifyitems(session=session, config=config, items=items)
            tests = self._tests(((-number, item) for number, item in enumerate(items, 1)))
        except BaseException:  # its own leader will see what it is
            tests = self._tests(())
        ahead = [name for name in modules if _is_installed(name)][:MAX_AHEAD]
        num = self.num_deselected[self.files.get(collector.path, "")]
        self.note("poisoned", path=str(collector.path), modules=ahead, errors=[], deselected=num, **tests)
        _exit(POISONED)

    def _import_ahead(self, modules: Sequence[str]) -> None:
        """Import modules for all files to come, if this does nothing that must not be shared: in a fork at first."""
        if not modules:
            return
        before = len(self._watch.reads)
        pid = _fork()
        if not pid:
            _import_all(modules)
            _exit(self._watch.hazard() is not None or len(self._watch.reads) > before)
        if _waitpid(pid, 0)[1] == 0:
            _import_all(modules)

    def _renew_standby(self) -> None:
        """Fork a standby, and end the one before. Returns in the standby too, once it is woken."""
        if self._hazard is not None or self._clock.monotonic_s() - self._forked_s < STANDBY_S:
            return
        self._drop_standby()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = _fork()
        if pid:
            self._standby, self._forked_s = pid, self._clock.monotonic_s()
            self.note("standby", pid=pid)
            return
        text = self._socket.recv(MAX_ORDER_BYTES)
        if not text:  # the runner has gone, or needs it no more
            _exit(0)
        syscalls.die_with_parent()
        order = _decode(text.decode())
        self.left_out[order["path"]] = order["why"]
        self._standby, self._forked_s, self._dropped = 0, float("-inf"), []
        _give_new_files(self.config)
        self._import_ahead(order["modules"])
        self._renew_standby()

    def _drop_standby(self) -> None:
        if self._standby:
            with suppress(ProcessLookupError):
                _kill(self._standby, 9)
            self._dropped.append(self._standby)
            self._standby = 0

    def _own_children(self) -> list[int]:
        """Return the standbys that are children of this process, without those that can be reaped."""
        for pid in [*self._dropped]:
            with suppress(ChildProcessError):
                if not _waitpid(pid, os.WNOHANG)[0]:
                    continue
            self._dropped.remove(pid)
        return [self._standby, *self._dropped]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep what cannot be collected or skips itself, of files; note it of directories."""
        if self.is_child or report.passed:
            return
        file = report.nodeid.partition("::")[0]
        if file in self.files.values():
            self.reports[file].append(report)
        elif report.failed:
            self.note("error", id=report.nodeid, text=report.longreprtext)
        else:
            self.note("skipped", path=str(self.config.rootpath / report.nodeid), reason=report.longreprtext)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count what is not selected, by file."""
        self.num_deselected.update(self._file_of(item) for item in items)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, object, object]:
        """Collect the rest where node ids name no test: pytest would collect nothing."""
        try:
            return (yield)
        except pytest.UsageError as error:
            config = session.config
            nodeids = [arg for arg in config.args if "::" in arg]
            said = {arg: text for arg in nodeids for text in map(str, error.args) if _names(text, arg, config)}
            if not said or self.is_child:
                raise
            self.not_found |= said
            config.args = [arg for arg in config.args if arg not in said]
            if not config.args:
                return None
            return config.hook.pytest_collection(session=session)

    def _file_of(self, item: pytest.Item) -> str:
        return self.files.get(item.path) or item.nodeid.partition("::")[0]

    def _tests(self, numbered: Iterable[tuple[int, pytest.Item]]) -> dict[str, Any]:
        """Return the tests of a file, as (number, node id, number of its need, ties), and what they need.

        Of a file with a marker that cannot be used, the reason.
        """
        tests, needs, asks = list(numbered), dict[str, int](), dict[str, NeedJson]()
        rows = []
        try:
            for number, item in tests:
                timeout_of_item(item)
                need = need_of_items([item])
                name = item.nodeid.partition("::")[2].partition("[")[0]
                asks[name] = merge_needs([asks.get(name, NOTHING), need])
                rows.append((number, item.nodeid, needs.setdefault(_encode(need), len(needs)), ties_of(item)))
            whole = need_of_items([item for _, item in tests])
        except (BadMarker, MarkError) as error:
            return {"need": NOTHING, "asks": {}, "tests": [], "needs": [], "bad": str(error)}
        return {"need": whole, "asks": asks, "tests": rows, "needs": [*map(_decode, needs)]}

    def _note_all(self, session: pytest.Session) -> None:
        """Note every file with its tests: (number, node id, number of its need, ties) each."""
        of_file: dict[str, list[tuple[int, pytest.Item]]] = {path: [] for path in self.files.values()}
        for number, item in enumerate(session.items):
            of_file.setdefault(self._file_of(item), []).append((number, item))
        options: Any = self.config.option
        left_out = {self.files[path] for path in self.files if self.why_left_out(path)}
        for path, tests in of_file.items():
            is_skipped = not (tests or self.num_deselected[path] or self.reports[path] or path in left_out)
            if is_skipped and getattr(options, "lf", False):
                continue
            errors = [report.longreprtext for report in self.reports[path] if report.failed]
            self.note("file", path=path, errors=errors, deselected=self.num_deselected[path], **self._tests(tests))
        config = self.config
        self.note(
            "found",
            rootdir=str(config.rootpath),
            inifile=str(config.inipath) if config.inipath else None,
            has_xdist=hasattr(config.option, "numprocesses"),
            coverage=self._coverage,
            num_workers=config.stash.get(NUM_WORKERS, 0),
            not_found=self.not_found,
            hazard=self._hazard,
            reads=self._watch.reads,
            runs_with_errors=bool(config.option.continue_on_collection_errors),
            failed_first=[*config.cache.get("cache/lastfailed", {})] if getattr(options, "failedfirst", False) else [],
        )

    # ---- the run

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Serve forks until the runner closes its end; then pytest finishes the session."""
        self._drop_standby()
        self.config.option.maxfail = self._maxfail
        self._note_all(session)
        self.session = session
        self._items = {item.nodeid: item for item in session.items}
        self._prepare_leaders()
        self._parent_state.take([self._socket.fileno(), self._found])
        serve(self._socket, self._supervise, self._answer)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _prepare_leaders(self) -> None:
        """Decide once which hooks a leader calls: those of REPORTING for its reporter and the terminal alone."""
        for item in self._items.values():  # which keep it; both a leader and the replay ask for it
            item.location  # noqa: B018
        manager = self.config.pluginmanager
        self.reporter = Reporter(self.config)
        manager.register(self.reporter, "rlharness-reporter")
        kept = [manager.get_plugin(name) for name in ("session", "runner", "logging-plugin", "terminalreporter")]
        kept.append(self.reporter)
        for caller in manager.get_hookcallers(self.reporter) or ():
            found = caller.get_hookimpls()
            if caller.name in REPORTING:
                found = [each for each in found if any(each.plugin is plugin for plugin in kept)]
            self._of_leaders.append((caller, found))
            caller._remove_plugin(self.reporter)
        for name in ("pytest_sessionfinish", "pytest_terminal_summary"):
            caller = getattr(self.config.hook, name)
            found = [each for each in caller.get_hookimpls() if any(each.plugin is plugin for plugin in kept)]
            self._of_leaders.append((caller, found))

    def _answer(self, request: bytes) -> bytes:
        """Have pytest hear what became of a unit: the reports of its attempts, and tests that have none."""
        asked = _decode(request.decode())
        ends: dict[str, dict[str, Any]] = {}
        for path in asked["reports"]:
            with suppress(OSError):
                for record in json_objects(Path(path).read_text("utf-8", "replace").rpartition("\n")[0]):
                    if record.get("k") == "warning":
                        replay_warning(self.config, record)
                    elif record.get("k") == "suite_property" and (xml := self.config.stash.get(xml_key, None)):
                        xml.add_global_property(str(record.get("name")), record.get("value"))
                    elif record.get("k") == "end":
                        ends[str(record.get("id"))] = record
        heard = {nodeid: record.get("reports") or () for nodeid, record in ends.items()}
        for nodeid, reports in (*heard.items(), *((nodeid, [why]) for nodeid, why in asked["lost"].items())):
            item = self._items.get(nodeid)
            self.session.testscollected += item is None  # of a file with an interpreter of its own
            replay_test(self.config, nodeid, item, reports)
        if cache := self.config.pluginmanager.get_plugin("lfplugin"):
            cache.lastfailed |= dict.fromkeys(asked["failed"], True)
        return _encode({"stop": str(self.session.shouldfail or self.session.shouldstop or "")}).encode()

    # ---- a unit

    def _supervise(self) -> None:
        """Be a supervisor, which outlives the session: without its mark, by which what that leaves behind is ended."""
        show_marker(f"{self._watch.environ[ATTEMPT_MARKER].rstrip('_')}-supervisor")
        supervise(self.lead)

    def lead(self, order: dict[str, Any]) -> NoReturn:
        """Be the leader of an attempt to its end."""
        code = 1
        try:
            self.is_child = True
            begin_fork()
            self._parent_state.give(order["session"]["env"], order["session"]["unset"])
            own_coverage.measure_afresh(self.config)
            sys.argv = [sys.argv[0], *order["argv"][order["argv"].index("pytest") + 1 :]]
            code = self._run(order["session"])
        except BaseException:  # our own bug, which must show as one and not as an attempt that never ends
            traceback.print_exc()
        finally:
            end(code)

    def _collect_late(self, asked: dict[str, Any]) -> list[pytest.Item]:
        """Collect the files of this leader alone, and leave out the tests of other parts of them."""
        session = self.session
        session.perform_collect(asked["late"])
        only, without = asked["only"], asked["without"]
        return [
            item
            for item in session.items
            if (only is None or item.nodeid in only) and (without is None or item.nodeid not in without)
        ]

    def _run(self, asked: dict[str, Any]) -> int:
        """Run the items that were asked for, as pytest's own session does; its exit status."""
        config, session = self.config, self.session
        _give_new_files(config)
        factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
        factory._basetemp, factory._given_basetemp = None, Path(asked["basetemp"])
        config.option.rlharness_report = asked["report"]
        reporter = self.reporter
        for caller, implementations in self._of_leaders:
            caller._hookimpls[:] = implementations
            if caller.is_historic():
                caller._call_history.clear()
        if terminal := config.pluginmanager.get_plugin("terminalreporter"):
            terminal.stats, terminal._main_color, terminal._progress_nodeids_reported = {}, None, set()
            if start := getattr(terminal, "_session_start", None):  # since pytest 8.4
                terminal._session_start = type(start)()
        reporter.begin(asked["report"])
        config.stash[cast(Any, xml_key)] = _SuiteProperties(reporter)
        session.testsfailed = 0
        reporter.pytest_sessionstart(session)
        if asked["late"]:
            items = self._collect_late(asked)
        else:
            items = [session.items[number] for number in asked["items"]]
            for report in [report for path in asked["files"] for report in self.reports.get(path, ())]:
                reporter.pytest_collectreport(report)
                session.testsfailed += report.failed
            reporter.num_deselected = asked["deselected"]
        session.testscollected = len(items)
        reporter.collected(need_of_items(items), {item.nodeid: timeout_of_item(item) for item in items})
        status: int = pytest.ExitCode.OK
        try:
            if session.testsfailed and not config.option.continue_on_collection_errors:
                raise session.Interrupted("errors during collection")
            if asked["grace_s"] is None or not can_fork(config, reporter):
                _run_items(session, items)
            else:
                run_forked(session, items, asked["grace_s"], reporter)
            if session.testsfailed:
                status = pytest.ExitCode.TESTS_FAILED
            elif not items:
                status = pytest.ExitCode.NO_TESTS_COLLECTED
        except session.Failed:
            status = pytest.ExitCode.TESTS_FAILED
        except (KeyboardInterrupt, pytest.exit.Exception) as error:
            status = pytest.ExitCode.INTERRUPTED
            if isinstance(error, pytest.exit.Exception) and error.returncode is not None:
                status = error.returncode
            config.hook.pytest_keyboard_interrupt(excinfo=pytest.ExceptionInfo.from_exception(error))
        except BaseException as error:  # as pytest's own loop
            status = pytest.ExitCode.INTERNAL_ERROR
            config.notify_exception(pytest.ExceptionInfo.from_exception(error), config.option)
        session.exitstatus = status
        try:
            config.hook.pytest_sessionfinish(session=session, exitstatus=status)
        except pytest.exit.Exception as error:
            session.exitstatus = status if error.returncode is None else error.returncode
        finally:
            own_coverage.finish(config)
            reporter.pytest_unconfigure()
        return int(session.exitstatus)


class _SuiteProperties:
    """Stands for pytest's writer of JUnit XML where tests record properties of the suite."""

    family = "legacy"

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def add_global_property(self, name: str, value: object) -> None:
        """Report a property."""
        self._reporter.write("suite_property", name=name, value=str(value))

    def node_reporter(self, nodeid: str) -> "_SuiteProperties":
        """Return what takes attributes of a test, which are the session's affair."""
        return self

    def add_attribute(self, name: str, value: object) -> None:
        """Leave out an attribute of a test."""


def _is_installed(module: str) -> bool:
    """Whether a module is of Python or an installed package, and not of the suite."""
    origin = str(getattr(getattr(sys.modules.get(module), "__spec__", None), "origin", None) or "")
    return any(origin.startswith(f"{place}{os.sep}") for place in INSTALLED)


def _import_all(modules: Sequence[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            with suppress(BaseException):  # whoever needs it will see this for themselves
                importlib.import_module(name)


def _run_items(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    for item, following in itertools.zip_longest(items, items[1:]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)


def _give_new_files(config: pytest.Config) -> None:
    """In a fork: give capture files of its own, below the objects that the suite may hold."""
    for stream in _captured(config):
        new = os.memfd_create("capture")
        os.dup2(new, stream.tmpfile.fileno(), inheritable=False)
        os.close(new)
        os.dup2(stream.targetfd, stream.targetfd_save, inheritable=False)


def _captured(config: pytest.Config) -> list[Any]:
    """The streams that pytest captures by their descriptors."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    streams = capture and capture._global_capturing
    return [each for each in (streams.out, streams.err) if hasattr(each, "targetfd_save")] if streams else []


def _files_of(stream: Any) -> tuple[int, int]:
    return stream.tmpfile.fileno(), stream.targetfd_save


def _names(text: str, nodeid: str, config: pytest.Config) -> bool:
    """Whether pytest's error is about this node id."""
    file, _, rest = nodeid.partition("::")
    place = os.path.normpath(config.invocation_params.dir / file)
    return text.splitlines()[0].endswith((nodeid, f"{place}::{rest}"))


def _conftest_text(path: Path, error: BaseException) -> str:
    """The failure as pytest shows one of a conftest: its own frames, without those of pytest above them."""
    cause = error.__cause__ if type(error).__name__ == "ConftestImportFailure" else None
    info = pytest.ExceptionInfo.from_exception(cause or error)
    own = info.traceback.cut(path=path)
    head = f"{type(info.value).__name__} while loading conftest '{path}'."
    if len(own) == len(info.traceback):  # none of its lines was run
        return f"{head}\n{info.exconly()}"
    info.traceback = own
    return f"{head}\n{info.getrepr(style='short')}"
