"""A pytest plugin for the child that finds the test files: pytest walks the suite, and no test module is imported.

With `--rlharness-discover=FILE` every file that pytest would collect from gets a collector that only notes it, and its
text is scanned (`source_scan`). conftest files are imported, as their options, ignore lists and hooks decide what is
found. One that fails is replaced by an empty one, so that the other directories are still walked. One that hangs or
ends the process is found by the note made before its import, and named in `--rlharness-broken` the next time.

FILE holds JSON lines: `conftest` (path) before an import and `imported` (path) or `broken` (path, text) after it,
`skipped` (path, reason) for a directory that skips itself, `error` (id, text) for what cannot be collected, one `found`
with everything else, and from a fork of the warm session `modules` (modules): what pytest has imported meanwhile.

Without the option, the plugin keeps a collecting child from writing (caches, reports, coverage), and has the report say
what each selected test asks for: `asks` (need of all, by_test), and before it for each test a `test` (id, need, ties:
see `parts`). pytest has applied `-k`, `-m` and `--deselect` by then.
"""

import json
import os
import re
import sys
import types
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from harness.bits.files import open_regular, read_regular
from harness.plugin import NOTHING, NeedJson, merge_needs, need_of_items
from harness.runner.collection.child_files import UNWRITABLE
from harness.runner.collection.source_scan import OURSELVES, ScannedFile, SourceScan
from harness.runner.sessions.own_coverage import combine_options, threshold
from harness.runner.sessions.parts import ties_of
from harness.runner.sessions.xdist_fixtures import NUM_WORKERS

SILENCED: dict[str, Any] = {
    "xmlpath": None,  # --junitxml
    "report_log": None,  # pytest-reportlog
    "htmlpath": None,  # pytest-html
    "cov_source": [],  # pytest-cov
    "cacheclear": False,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
}
"""Options under which a session writes or deletes files, or leaves files out by what an earlier one wrote."""
IMPORT = re.compile(r"^(?:from[ \t]+([A-Za-z_][\w.]*)[ \t]+import\b|import[ \t]+([A-Za-z_][\w., \t]*))", re.MULTILINE)
MAX_SCANNED_BYTES = 1 << 16
MAX_IMPORTS = 200
COVERAGE = pytest.StashKey[tuple[list[str] | None, float | None]]()
"""What pytest-cov was asked for, before it is silenced: options of the combination, the least percentage."""
CACHE_WRITERS = ("lfplugin", "nfplugin", "stepwise", "stepwiseplugin")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two options."""
    group = parser.getgroup("rlharness")
    group.addoption("--rlharness-discover", metavar="FILE", default=None, help="Note the test files in FILE.")
    group.addoption(
        "--rlharness-broken", metavar="PATH", action="append", default=[], help="A conftest.py not to import."
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """Stand between pytest and the conftest files before the first one is imported."""
    options = early_config.known_args_namespace
    early_config.stash[COVERAGE] = combine_options(options), threshold(options)
    _silence(options)
    if options.rlharness_discover:
        manager = early_config.pluginmanager
        finder = Finder(Path(options.rlharness_discover), options.rlharness_broken, manager, early_config.rootpath)
        manager.register(finder, "rlharness-finder")
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The same in a fork of the warm session, which has imported its conftest files before it forks."""
    out, manager = config.getoption("rlharness_discover", None), config.pluginmanager
    config.stash.setdefault(COVERAGE, (combine_options(config.option), threshold(config.option)))
    if out and not manager.hasplugin("rlharness-finder"):
        finder = Finder(Path(out), config.getoption("rlharness_broken"), manager, config.rootpath)
        manager.register(finder, "rlharness-finder")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """The options are parsed a second time after the conftest files."""
    _silence(config.option)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Take out what would write into the cache."""
    for name in CACHE_WRITERS:
        if session.config.pluginmanager.hasplugin(name):
            session.config.pluginmanager.unregister(name=name)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Report what each selected test asks for: its markers have been checked by now."""
    if reporter := session.config.pluginmanager.get_plugin("rlharness-reporter"):
        by_test: dict[str, NeedJson] = {}
        for item in session.items:
            reporter.write("test", id=item.nodeid, need=need_of_items([item]), ties=ties_of(item))
            test = item.nodeid.partition("::")[2].partition("[")[0]
            by_test[test] = merge_needs([by_test.get(test, NOTHING), need_of_items([item])])
        reporter.write("asks", need=need_of_items(session.items), by_test=by_test)


def _silence(options: Any) -> None:
    for name, value in SILENCED.items():
        if hasattr(options, name):
            setattr(options, name, value)


class Found(pytest.File):
    """Stands where pytest would have put the collector of a file. Only those that were asked for are collected."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Note the file, which is not opened."""
        finder = self.config.pluginmanager.get_plugin("rlharness-finder")
        assert isinstance(finder, Finder)
        finder.sizes_bytes[self.path] = self.path.stat().st_size
        return []


class Finder:
    """Notes what pytest finds."""

    def __init__(self, out: Path, broken: list[str], manager: pytest.PytestPluginManager, rootdir: Path) -> None:
        self._out = out
        self._manager = manager
        self._rootdir = rootdir
        self.sizes_bytes: dict[Path, int] = {}
        """Size of each file found so far, in the order pytest collects them."""
        self._conftests: dict[str, types.ModuleType | None] = dict.fromkeys(broken)
        # pytest has no hook around the import of a conftest, and stops altogether where one fails that it imports
        # early (pytest-dev/pytest#12690). Until it goes on, its one method that imports them is wrapped.
        self._import: Callable[..., types.ModuleType] = manager._importconftest
        manager._importconftest = self._import_conftest  # type: ignore[assignment]

    def note(self, kind: str, **fields: object) -> None:
        """Append a line to FILE. Raises pytest.UsageError where it cannot be written."""
        try:
            with self._out.open("a") as file:
                file.write(json.dumps({"k": kind, **fields}) + "\n")
        except OSError as error:
            raise pytest.UsageError(f"{UNWRITABLE}: {error.strerror}") from None

    def _import_conftest(self, path: Path, *args: Any, **kwargs: Any) -> types.ModuleType:
        known = self._conftests.get(str(path))
        if known is not None:
            return known
        if str(path) in self._conftests:
            return self._replaced(path)
        self.note("conftest", path=str(path))
        try:
            module = self._import(path, *args, **kwargs)
        except KeyboardInterrupt:
            raise
        except pytest.skip.Exception as skipped:
            self.note("skipped", path=str(path.parent), reason=str(skipped))
            return self._replaced(path)
        except BaseException as error:  # whatever it is, SystemExit too: that conftest's, not ours
            self.note("broken", path=str(path), text=_conftest_text(path, error))
            return self._replaced(path)
        self.note("imported", path=str(path))
        self._conftests[str(path)] = module
        return module

    def _replaced(self, path: Path) -> types.ModuleType:
        if self._manager.hasplugin(str(path)):  # it failed in what it loads, after it was registered itself
            self._manager.unregister(name=str(path))
        module = self._conftests[str(path)] = types.ModuleType("conftest")
        return module

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        """Replace the collectors of a file: they have been made, and are never asked."""
        collectors = yield
        if not collectors:
            return collectors
        return [Found.from_parent(parent, path=file_path)]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a directory that cannot be read, or skips itself."""
        if report.failed:
            self.note("error", id=report.nodeid, text=report.longreprtext)
        elif report.skipped:
            self.note("skipped", path=str(self._rootdir / report.nodeid), reason=report.longreprtext)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, object, object]:
        """Read the needs once all files are known; not where pytest refuses its arguments."""
        result = yield
        config = session.config
        scanned = [(self._relative(path), self.sizes_bytes[path], file) for path, file in self._scanned(config)]
        self.note(
            "found",
            rootdir=str(self._rootdir),
            inifile=str(config.inipath) if config.inipath else None,
            has_xdist=hasattr(config.option, "numprocesses"),
            coverage=config.stash[COVERAGE],
            num_workers=config.stash.get(NUM_WORKERS, 0),
            files=[(path, size_bytes, file.why_import, file.digest) for path, size_bytes, file in scanned],
            imports=common_imports(self.sizes_bytes, config.getini("python_files")),
        )
        return result

    def _scanned(self, config: pytest.Config) -> Iterator[tuple[Path, ScannedFile]]:
        scan = SourceScan(self._rootdir, sys.path, _versions(config))
        applying = list(self._applying())
        for path in self.sizes_bytes:
            yield path, scan.of_file(path, [plugin for plugin, scope in applying if scope in path.parents])

    def _applying(self) -> Iterator[tuple[Path, Path]]:
        """Plugins that may mark tests, each with the directory below which it may."""
        for plugin in self._manager.get_plugins():
            file, package = getattr(plugin, "__file__", None), getattr(plugin, "__name__", "").partition(".")[0]
            if isinstance(file, str) and file.endswith(".py") and package not in ("_pytest", OURSELVES):
                path = Path(file)
                yield path, path.parent if path.name == "conftest.py" else Path(path.anchor)

    def _relative(self, path: Path) -> str:
        return Path(os.path.relpath(path, self._rootdir)).as_posix()


def _versions(config: pytest.Config) -> bytes:
    """What decides which tests there are, apart from the source of the suite."""
    plugins = sorted({f"{dist.project_name} {dist.version}" for _, dist in config.pluginmanager.list_plugin_distinfo()})
    configuration = read_regular(config.inipath, follows_links=True) if config.inipath else b""
    return "\n".join((sys.version, pytest.__version__, *plugins)).encode() + b"\0" + configuration


def common_imports(paths: Iterable[Path], python_files: Iterable[str]) -> list[str]:
    """Modules that at least two of the files `paths` import at their top level, the most frequent first.

    Read as text, since a module that is imported in vain costs little. Test files and conftest files are left out.
    """
    counts = Counter[str]()
    for path in paths:
        with suppress(OSError), open_regular(path, follows_links=True) as file:
            text = file.read(MAX_SCANNED_BYTES).decode(errors="replace")
            found = [match[1] or match[2] for match in IMPORT.finditer(text)]
            counts.update({name.split()[0] for names in found for name in names.split(",") if name.strip()})
    tests = ("conftest.py", *python_files)
    return [
        name
        for name, count in counts.most_common(MAX_IMPORTS)
        if count > 1 and not any(fnmatch(f"{name.rpartition('.')[2]}.py", pattern) for pattern in tests)
    ]


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
