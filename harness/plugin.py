"""The pytest plugin: three markers, two fixtures and, with `--rlharness-report=FILE`, a line per event. One
file, loaded into any suite by its entry point or `-p harness.plugin`: it imports pytest and the standard library.

`report.jsonl`, append-only, one JSON object and one write per line, so that a killed process tears the last at most:

    {"k":"hello","version":1,"pid":123}
    {"k":"collected","need":{"gpus":2,…},"nodeids":["tests/a.py::test_x",…],"deselected":0}
    {"k":"collect_error","id":"tests/a.py","text":"…"}
    {"k":"refused","text":"not found: …/tests/a.py::test_gone"}
    {"k":"start","id":"tests/a.py::test_x","timeout_s":5.0}
    {"k":"end","id":"tests/a.py::test_x","outcome":"passed","counted":["passed"],"duration_s":0.01,"reason":"","text":"",
     "several":[["failed","assert 0","…"],["error","…","…"]],"reports":[["setup","passed",0.001,1.0,1.1],…]}
    {"k":"teardown","id":"tests/a.py::test_x"}
    {"k":"suite_property","name":"…","value":"…"}
    {"k":"warning","id":"tests/a.py::test_x","when":"runtest","category":"UserWarning","text":"…","file":"…","line":1}
    {"k":"interrupted","id":"tests/a.py::test_x"}
    {"k":"finish","exit":0}

There is one `end` per test, whatever its phases, subtests and reruns; none if its teardown did not end, but for a test
that had failed. Its `teardown` comes before it. `counted` holds every category in which pytest
counts it, in order: `["passed","error"]` for a test whose teardown fails. `outcome` is the most severe of them (see
MOST_TELLING_FIRST), `several` each failure and skip of one that has more than its own. `reports` holds what pytest
reported of it, in order: of a phase without anything to say the times alone, else the whole report as pytest serialises
it. A file that skips itself at import has an `end` under its path.
"""

import contextlib
import json
import math
import os
import re
import socket
import subprocess
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

VERSION = 1
MAX_TEXT_CHARS, MAX_REASON_CHARS = 1_000_000, 500
RERUN = "rerun"  # category of a failure in plugins that run failed tests again
MOST_TELLING_FIRST = ("error", "failed", "xpassed", "xfailed", "passed", "skipped")

NeedJson = dict[str, Any]  # a need, with the keys of NOTHING; min_capability is [9, 0] or None
FLAGS = {"exclusive": False, "shared": False}
NOTHING: NeedJson = {"gpus": 0, "memory_gb": 0.0, "model": None, "min_capability": None, **FLAGS}
SAYS_NOTHING = {"_id", "nodeid", "location", "keywords", "outcome", "longrepr", "when", "user_properties", "sections"}
SAYS_NOTHING |= {"duration", "start", "stop"}
"""Attributes of a report without anything of its own."""
# Tests replace these, some for good; ours are kept.
_getpid, _write, _fstat, _open = os.getpid, os.write, os.fstat, os.open
_encode = json.JSONEncoder(separators=(",", ":"), default=repr, skipkeys=True).encode


class MarkError(ValueError):
    """Arguments of a marker that cannot be used; the text names the value and what is legal."""


class BadMarker(ValueError):
    """A marker that cannot be used, on the test `nodeid`."""

    def __init__(self, nodeid: str, why: str) -> None:
        super().__init__(f"{nodeid}: {why}")
        self.nodeid = nodeid


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("rlharness")
    group.addoption("--rlharness-report", metavar="FILE", help="Append what the tests do to FILE, a JSON line each.")
    as_found = "Collect from a named file only what pytest collects when it finds the file itself."
    group.addoption("--rlharness-as-found", action="store_true", help=as_found)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and the reporter where it was asked for."""
    config.addinivalue_line(
        "markers",
        "gpus(n, memory_gb=0, model=None, min_capability=None, exclusive=False, shared=False): needs n GPUs,"
        " each with memory_gb GB, of a model whose name contains `model`, of a CUDA capability of at least"
        " min_capability; exclusive: no other file runs on the machine; shared: others may use the rest of the GPU.",
    )
    config.addinivalue_line("markers", "together(name): tests with the same name run in one process.")
    if not (config.pluginmanager.hasplugin("timeout") or config.pluginmanager.hasplugin("pytest_timeout")):
        config.addinivalue_line("markers", "timeout(seconds): time limit of the test, spelled as in pytest-timeout.")
    if path := config.getoption("rlharness_report"):
        reporter = Reporter(config)
        config.pluginmanager.register(reporter, "rlharness-reporter")
        reporter.begin(os.path.abspath(path))


class NoTestModule(pytest.File):
    """A file in which pytest would not have looked for test functions (its doctests have a collector of their own)."""

    def collect(self) -> Iterable[pytest.Item]:
        """Nothing."""
        return ()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.File | None:
    """pytest holds a file against python_files only where the file was not named, and the runner names every file."""
    if not parent.config.getoption("rlharness_as_found"):
        return None
    patterns = parent.config.getini("python_files")
    is_found = any(fnmatch(str(module_path) if "/" in pattern else module_path.name, pattern) for pattern in patterns)
    return None if is_found else NoTestModule.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Once the tests that will run are known: check their markers, and report them and what they need."""
    reporter = session.config.pluginmanager.get_plugin("rlharness-reporter")
    try:
        result = yield
    except pytest.UsageError as error:  # a node id that names no test
        if reporter:
            said = [line for text in error.args for line in str(text).splitlines()[:1]]
            reporter.write("refused", text="\n".join(said))
        raise
    try:
        need = need_of_items(session.items)
        timeouts_s = {item.nodeid: timeout_of_item(item) for item in session.items}
    except BadMarker as error:
        if not session.config.getoption("rlharness_report"):  # only installed: the suite may have its own `gpus`
            _warn(f"rlharness: {error}")
            return result
        if reporter:
            reporter.write("collect_error", id=error.nodeid, text=str(error))
        raise pytest.UsageError(str(error)) from None
    if reporter and not session.config.pluginmanager.hasplugin("dsession"):
        reporter.collected(need, timeouts_s)
    return result


def need_of_mark(args: Sequence[object], kwargs: Mapping[str, object]) -> NeedJson:
    """The need that `gpus(*args, **kwargs)` asks for. Raises MarkError for what is not legal or not known."""
    given = dict(kwargs)
    if len(args) + ("n" in given) != 1:
        how = "takes one number, the rest by keyword" if args else "lacks the number of GPUs"
        raise MarkError(f"{how}; legal: gpus(1), gpus(2, memory_gb=40)")
    num_gpus: Any = args[0] if args else given.pop("n")
    if not _is_int(num_gpus) or num_gpus < 0:
        raise MarkError(f"number of GPUs {num_gpus!r}; legal: a whole number, 0 or more")
    memory_gb: Any = given.pop("memory_gb", 0.0)
    if not (_is_int(memory_gb) or isinstance(memory_gb, float)) or not 0 <= memory_gb < math.inf:
        raise MarkError(f"memory_gb {memory_gb!r}; legal: a number of GB, 0 or more")
    model = given.pop("model", None)
    if model is not None and (not isinstance(model, str) or not model.strip()):
        raise MarkError(f"model {model!r}; legal: a part of the GPU's name, such as 'H100'")
    exclusive, shared = given.pop("exclusive", False), given.pop("shared", False)
    for name, flag in (("exclusive", exclusive), ("shared", shared)):
        if not isinstance(flag, bool):
            raise MarkError(f"{name} {flag!r}; legal: True or False")
    least = capability(given.pop("min_capability", None))
    of_kind = {"memory_gb": float(memory_gb), "model": model, "min_capability": least}
    if given:
        raise MarkError(f"unknown keyword {min(given)!r}; legal: {', '.join([*NOTHING][1:])}")
    if num_gpus == 0 and any(of_kind.values()):
        raise MarkError("describes 0 GPUs; legal: 1 or more GPUs with memory_gb, model or min_capability")
    if shared and (num_gpus != 1 or not memory_gb or exclusive):
        found = f"shared with {num_gpus} GPUs, memory_gb {memory_gb:g}, exclusive {exclusive}"
        raise MarkError(f"{found}; legal: gpus(1, memory_gb=12, shared=True)")
    return {"gpus": num_gpus, **of_kind, "exclusive": exclusive, "shared": shared}


def merge_needs(needs: Iterable[NeedJson]) -> NeedJson:
    """Return the need that satisfies each of `needs`: the maximum of each field. Raises MarkError for two models."""
    merged = NOTHING
    for need in needs:
        models = {model.casefold(): model for model in (merged["model"], need["model"]) if model}
        if len(models) > 1:
            raise MarkError(f"asks for models {merged['model']!r} and {need['model']!r}; legal: one model per file")
        merged = {
            "gpus": max(merged["gpus"], need["gpus"]),
            "memory_gb": max(merged["memory_gb"], need["memory_gb"]),
            "model": merged["model"] or need["model"],
            "min_capability": max(merged["min_capability"] or [], need["min_capability"] or []) or None,
            "exclusive": merged["exclusive"] or need["exclusive"],
            "shared": all(each["shared"] for each in (merged, need) if each["gpus"] or each["exclusive"])
            and merged["gpus"] + need["gpus"] > 0,
        }
    return merged


def need_of_items(items: Iterable[pytest.Item]) -> NeedJson:
    """The need of all `items` together: of each, its closest `gpus` marker. Raises BadMarker where one is wrong."""
    of_file: dict[str, NeedJson] = {}
    for item in items:
        mark = item.get_closest_marker("gpus")
        if mark is None:
            continue
        file = item.nodeid.partition("::")[0]
        try:
            need = need_of_mark(mark.args, mark.kwargs)
        except MarkError as error:
            raise BadMarker(item.nodeid, f"gpus marker: {error}") from None
        try:
            of_file[file] = merge_needs([of_file.get(file, NOTHING), need])
        except MarkError as error:
            raise BadMarker(item.nodeid, f"the file {error}; split it") from None
    whole = merge_needs([{**need, "model": None} for need in of_file.values()])
    # One process has one lease. Files of different models meet only where pytest is run without the runner.
    return {**whole, "model": next((need["model"] for need in of_file.values() if need["model"]), None)}


def timeout_of_item(item: pytest.Item) -> float | None:
    """Seconds of the closest `timeout` marker, None for no limit (0 too). Raises BadMarker for what is no number."""
    mark = item.get_closest_marker("timeout")
    value = None if mark is None else mark.args[0] if mark.args else mark.kwargs.get("timeout")
    try:
        seconds = 0.0 if value is None else float(value)
    except (TypeError, ValueError):
        raise BadMarker(item.nodeid, f"timeout marker: {value!r}; legal: a number of seconds") from None
    return seconds if 0 < seconds < math.inf else None


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def capability(value: Any) -> list[int] | None:
    """A CUDA compute capability spelt 9.0, "9.0" or (9, 0), as [9, 0]; None as None. Raises MarkError for the rest."""
    if value is None:
        return None
    if isinstance(value, (tuple, list)) and len(value) == 2 and all(_is_int(part) and part >= 0 for part in value):
        return list(value)
    is_text = _is_int(value) or isinstance(value, (float, str))
    if is_text and (match := re.fullmatch(r"(\d+)(?:\.(\d+))?", str(value), re.ASCII)):
        return [int(match[1]), int(match[2] or 0)]
    raise MarkError(f"min_capability {value!r}; legal: 9.0, '9.0' or (9, 0)")


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Hold a TCP port that no other process gets meanwhile; a server with SO_REUSEADDR can listen on it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]


def visible_gpu_ids(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs CUDA would show, as CUDA_VISIBLE_DEVICES names them; else every GPU of nvidia-smi."""
    given = environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return tuple(takewhile(lambda gpu: gpu not in ("", "-1", "NoDevFiles"), map(str.strip, given.split(","))))
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:  # no driver, no GPU
        return ()
    return tuple(re.findall(r"\(UUID: (MIG-[^)]+|GPU-[^)]+(?=\)(?!\s*\n\s+MIG )))\)", done.stdout))  # instances, if any


@pytest.fixture
def free_port() -> Iterator[int]:
    """A TCP port for the test's own server, which sets SO_REUSEADDR; held for it until the test has ended."""
    with held_port() as port:
        yield port


@pytest.fixture
def gpu_ids(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The GPUs the test may use, or the first n for `gpus(n)`. Too few skip it; in `rlharness run` they fail it."""
    visible = visible_gpu_ids(os.environ)
    mark = request.node.get_closest_marker("gpus")
    need = need_of_mark(mark.args, mark.kwargs) if mark else {"gpus": len(visible)}
    wanted = need["gpus"]
    if wanted > len(visible):
        refuse = pytest.fail if "RLHARNESS_ATTEMPT" in os.environ else pytest.skip
        refuse(f"needs {wanted} GPU{'s' * (wanted != 1)}; {len(visible)} visible here")
    return visible[:wanted]


class Reporter:
    """Writes the report of one pytest session; never the reason why a test fails."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.path, self._pid, self._file, self._stopped = "", 0, -1, False
        self._identity: tuple[int, int] | None = None
        self._session: pytest.Session | None = None
        self._timeouts_s: dict[str, float | None] = {}
        self.num_deselected = 0
        self.reports: dict[str, list[tuple[str, pytest.TestReport]]] = {}
        """Phases so far of the tests that have begun, each with its category."""
        self._begun = ""
        """Test that the process which has forked this one has said to begin."""

    def begin(self, path: str) -> None:
        """Begin the report in the file `path`."""
        self.path, self._pid = path, _getpid()
        self.write("hello", version=VERSION, pid=self._pid)

    def go_on(self, nodeid: str) -> None:
        """In a fork of the process that began the report, and the test `nodeid`: write on."""
        self._pid, self._begun = _getpid(), nodeid

    def write(self, kind: str, **fields: object) -> None:
        """Append one line, unless this is a fork of the process that opened the file, or writing has failed before."""
        if self._stopped or _getpid() != self._pid:
            return
        line = _encode({"k": kind, **fields}).encode() + b"\n"
        try:
            file = self._descriptor()
            while line:  # more than one write only where the disk took a part
                line = line[_write(file, line) :]
        except OSError as error:
            self._stopped = True
            _warn(f"rlharness: the report {self.path} ends here: it cannot be written: {error}")

    def _descriptor(self) -> int:
        """The open file; opened again where a test closed it, or closed it and its number is another file's now."""
        with contextlib.suppress(OSError):
            status = _fstat(self._file)
            if (status.st_dev, status.st_ino) == self._identity:
                return self._file
        self._file = _open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        status = _fstat(self._file)
        self._identity = (status.st_dev, status.st_ino)
        return self._file

    def collected(self, need: NeedJson, timeouts_s: dict[str, float | None]) -> None:
        """Say which tests will run (the keys) and what they need together."""
        self._timeouts_s = timeouts_s
        self.write("collected", need=need, nodeids=list(timeouts_s), deselected=self.num_deselected)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count what does not run; a plugin may take back its own."""
        self.num_deselected += len(items)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session: its exit status is final only after everybody's session hooks."""
        self._session = session

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Report what cannot be collected, and files that skip themselves."""
        if report.failed:
            self.write("collect_error", id=report.nodeid or ".", text=_shortened(report.longreprtext))
        elif report.skipped:
            self._end(report.nodeid, ["skipped"], duration_s=0.0, reason=_reason(report), text="")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins, or is run again."""
        self.reports.setdefault(nodeid, [])
        if self._begun == nodeid:
            self._begun = ""
            return
        self.write("start", id=nodeid, timeout_s=self._timeouts_s.get(nodeid))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a phase, a subtest or a rerun, under the category pytest counts it in."""
        status = self._config.hook.pytest_report_teststatus(report=report, config=self._config)
        category = status[0] if status else report.outcome if report.when == "call" else ""
        self.reports.setdefault(report.nodeid, []).append((category, report))
        if category not in ("", RERUN) and report.when != "teardown":
            self.write("teardown", id=report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test has ended, unless it will be run again."""
        counted = [category for category, _ in self.reports.get(nodeid, []) if category]
        if counted[-1:] != [RERUN]:
            self._fold(nodeid, self.reports.pop(nodeid, []))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Report the test that raises KeyboardInterrupt; `pytest.exit`, and pytest's own kind, come here too."""
        if isinstance(excinfo.value, KeyboardInterrupt) and not isinstance(excinfo.value, pytest.Session.Interrupted):
            self.write("interrupted", id=next(iter(self.reports), ""))

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Nothing follows."""
        self.end_failed()
        if self._session is not None:
            self.write("finish", exit=int(self._session.exitstatus))

    def end_failed(self) -> None:
        """End tests that had failed when their teardown was cut short, which is an error too."""
        for nodeid, reports in self.reports.items():
            if reports and {category for category, _ in reports} & {"error", "failed"}:
                last = reports[-1][1]
                cut = pytest.TestReport(nodeid, last.location, {}, "failed", "its teardown did not end", "teardown")
                self._fold(nodeid, [*reports, ("error", cut)])

    def _fold(self, nodeid: str, reports: list[tuple[str, pytest.TestReport]]) -> None:
        counted = [category for category, _ in reports if category]
        bad = [report for category, report in reports if category in ("error", "failed")]
        shown = [(kind or "skipped", each) for kind, each in reports if kind in ("error", "failed") or each.skipped]
        telling = bad or [report for category, report in reports if category in ("skipped", "xfailed", "xpassed")]
        text = "\n\n".join(report.longreprtext for report in bad)
        duration_s = sum(each.duration for _, each in reports if not hasattr(each, "context"))  # subtests are within
        packed = [self._packed(report) for _, report in reports]
        several = [(category, _reason(each), _shortened(each.longreprtext)) for category, each in shown]
        reason = _reason(telling[0]) if telling else ""
        several = [] if [each for _, each in shown] == telling[:1] else several
        fields = {"duration_s": duration_s, "reason": reason, "text": _shortened(text), "several": several}
        self._end(nodeid, counted, **fields, reports=packed)

    def _end(self, nodeid: str, counted: list[str], **fields: object) -> None:
        outcome = next((category for category in MOST_TELLING_FIRST if category in counted), "passed")
        self.write("end", id=nodeid, outcome=outcome, counted=counted, **fields)

    def _packed(self, report: pytest.TestReport) -> object:
        """A report as pytest serialises it, or its times alone."""
        if not (report.longrepr or report.sections or report.user_properties) and vars(report).keys() <= SAYS_NOTHING:
            return [report.when, report.outcome, report.duration, report.start, report.stop]
        report.sections = [(name, _shortened(text)) for name, text in report.sections]
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        if len(report.longreprtext) > MAX_TEXT_CHARS:
            data["longrepr"] = _shortened(report.longreprtext)
        return data

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
        """Report a warning, its category by the name under which another process finds it."""
        category = warning_message.category
        self.write(
            "warning",
            id=nodeid,
            when=when,
            category=f"{category.__module__}:{category.__qualname__}",
            text=str(warning_message.message),
            file=warning_message.filename,
            line=warning_message.lineno,
        )


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """One line: why a test was skipped or expected to fail, or the first line of its failure."""
    longrepr: Any = report.longrepr
    if hasattr(report, "wasxfail"):
        text = report.wasxfail.removeprefix("reason: ")
    elif report.skipped and isinstance(longrepr, tuple):
        text = longrepr[2].removeprefix("Skipped: ")
    else:
        text = getattr(getattr(longrepr, "reprcrash", None), "message", "") or report.longreprtext
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:MAX_REASON_CHARS]


def _shortened(text: str) -> str:
    half, left_out = MAX_TEXT_CHARS // 2, len(text) - MAX_TEXT_CHARS
    return text if left_out <= 0 else f"{text[:half]}\n[{left_out} characters left out]\n{text[-half:]}"


def _warn(text: str) -> None:
    """Say it on standard error, past Python's buffers: a full disk must not come back when they are flushed."""
    with contextlib.suppress(OSError):
        _write(2, text.encode(errors="replace") + b"\n")
