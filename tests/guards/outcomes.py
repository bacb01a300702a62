"""Outcomes of misbehaving and hostile files and of three other projects' suites, without a process or a lease too many.

How each file ends is frozen in tests/data/outcomes.json, by the outcome of the file and of each test. Some files have
several entries, as their processes race. Of another project's suite every outcome is that of plain pytest.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from tests.benchmarks.real_suites import SUITES, Suite
from tests.guards.base import kept
from tests.guards.guard import ROOT, Context, Row, run
from tests.support.hostile_tests import HONEST, draw
from tests.support.misbehaving.expected import (
    EXPECTED,
    EXPECTED_ON_A_SMALL_TMPDIR,
    EXPECTED_WITH_A_DRIVER,
    EXPECTED_WITH_RAY,
    GRACE_S,
    TIMEOUT_S,
)
from tests.support.nvml_stub.build import Machine, StubGpu, build, compiler, stub_env

FROZEN = ROOT / "tests" / "data" / "outcomes.json"
MISBEHAVING = ROOT / "tests" / "support" / "misbehaving"
OTHER_SUITES = ("attrs", "jinja2", "networkx")
SEED, NUM_HOSTILE, NUM_HOSTILE_QUICK = 0, 200, 12
SET_BY_OTHERS = ("PYTEST_", "RLHARNESS", "CUDA_", "TMPDIR", "MASTER_PORT", "CI", "GITHUB_")
HONEST_FILES = {f"test_honest_{number}.py": HONEST.format(number=number) for number in range(NUM_HOSTILE)}
HONEST_ENDS = "failed: test_fails failed, test_passes passed"
LONG_LIMITS = ("--timeout", "40", "--collect-timeout", "120", "--cpu-units", "1")
ON_A_GPU = ("honest_*", "forks_*", "sessions_*", "daemon_*", "*_outlives_it", "grandchild_*", "ignores_*")
NEEDS = "".join(f'"test_{glob}.py" = 1\n' for glob in ON_A_GPU)
"""Whatever leaves processes takes a pretended GPU, which these would still hold when it is lent to another file."""
CONFTEST = """
import fcntl, os
from pathlib import Path
LEASES = Path(__file__).resolve().with_name("leases")
held = {}
def pytest_runtest_setup(item):
    for gpu in filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")):
        if (gpu, os.getpid()) not in held:
            try:
                held[gpu, os.getpid()] = file = open(LEASES / gpu.replace("/", "_"), "a", buffering=1)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.write(f"{item.nodeid}\\n")
            except BlockingIOError:
                with open(LEASES / "twice", "a") as twice:
                    twice.write(f"{gpu} by {item.nodeid}\\n")
            except OSError:  # as its file has no descriptors left
                pass
"""
"""A lock on each GPU, which the system lifts when the last process of its holder is gone, however that ended."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A run, read from the command line and from files."""

    code: int | None
    """None if it did not end within its limit."""
    files: Mapping[str, str]
    """Path -> outcome."""
    tests: Counter[tuple[str, str]]
    """(test id, outcome) -> how often."""
    left: Sequence[str]
    """Command lines of processes that live on."""
    leases: Mapping[str, Sequence[str]]
    """GPU -> its holders; `twice` -> those that were given a GPU which another one held."""

    def signature(self, path: str) -> str:
        """Return the outcome of a file, and of each of its tests by name."""
        found = self.tests.elements()
        tests = sorted((test, outcome) for test, outcome in found if test.startswith(f"{module_of(path)}::"))
        shown = ", ".join(f"{test.partition('::')[2]} {outcome}" for test, outcome in tests if "::[" not in test)
        return f"{self.files.get(path, 'none')}: {shown}".rstrip(": ")

    def replaced(self, paths: Iterable[str], again: "Ended") -> "Ended":
        """Return this run, with the outcomes that some of its files have in another."""
        modules = tuple(f"{module_of(path)}::" for path in paths)
        tests = {key: number for key, number in self.tests.items() if not key[0].startswith(modules)}
        return replace(self, files={**self.files, **again.files}, tests=Counter(tests) + again.tests)


def module_of(path: str) -> str:
    """Return the class name that JUnit XML has for the functions of a file."""
    return path.removesuffix(".py").replace("/", ".")


def read_tests(junit: Path) -> Counter[tuple[str, str]]:
    """Return (test id, outcome) of JUnit XML, as pytest and rlharness write it."""
    tags = {"failure": "failed", "error": "error", "skipped": "skipped"}
    types = {"unfinished": "unfinished", "unstarted": "unstarted", "xfailed": "xfailed", "pytest.xfail": "xfailed"}
    found = Counter[tuple[str, str]]()
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        ends = [types.get(each.get("type", ""), tags[each.tag]) for each in case if each.tag in tags]
        name = case.get("name")  # of a module that is skipped as a whole, pytest writes nothing else
        found[f"{case.get('classname') or name}::{name}", "+".join(ends) or "passed"] += 1
    return found


def read_files(value: object) -> Iterator[tuple[str, str]]:
    """Yield (path, outcome) of each file, wherever the value of --json holds it."""
    if isinstance(value, dict):
        unit = value.get("unit", value)
        if isinstance(unit, dict) and {"path", "outcome"} <= {*unit, *value}:
            yield unit["path"], value["outcome"]
        else:
            yield from read_files([*value.values()])
    elif isinstance(value, list):
        for each in value:
            yield from read_files(each)


def read_leases(directory: Path) -> dict[str, list[str]]:
    """Return what the files of CONFTEST noted, by GPU."""
    return {path.name: path.read_text("utf-8").splitlines() for path in sorted(directory.glob("leases/*"))}


def environment(**more: str) -> dict[str, str]:
    """Return the variables of this process without those that a runner around it has set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SET_BY_OTHERS)}
    return kept | {"PYTHONPATH": str(ROOT), **more}


def run_suite(directory: Path, *arguments: str, limit_s: float, env: Mapping[str, str]) -> Ended:
    """Run `rlharness run` in `directory`, in a process that sees whatever it leaves behind."""
    with tempfile.TemporaryDirectory(prefix="o-", dir="/tmp", ignore_cleanup_errors=True) as work:  # short, for sockets
        ended, junit, tmpdir = Path(work, "ended.json"), Path(work, "junit.xml"), Path(work, "t")
        tmpdir.mkdir()
        contained = [sys.executable, str(Path(__file__).with_name("contained.py")), str(ended), str(limit_s)]
        command = [*contained, sys.executable, "-m", "harness", "run", "--json", "--junit", str(junit), *arguments]
        variables = {"TMPDIR": str(tmpdir), "XDG_CACHE_HOME": f"{work}/cache"} | dict(env)
        done = run(command, cwd=directory, env=variables, limit_s=limit_s + 60)
        result = json.loads(ended.read_text("utf-8"))
        if result["code"] not in (0, 1, 13, 14):
            raise RuntimeError(f"exit code {result['code']}: {done.stderr[-2000:]}")
        files = defaultdict[str, list[str]](list)
        for path, outcome in read_files(json.loads(done.stdout)):
            files[path].append(outcome)
        outcomes = {path: "+".join(each) for path, each in files.items()}
        left = [*result["left"], *(f"file {path.name}" for path in tmpdir.iterdir())]
        return Ended(result["code"], outcomes, read_tests(junit), left, read_leases(directory))


def soundness(name: str, ended: Ended) -> Iterator[Row]:
    """Yield whether a run left what it must not, whatever its outcomes are."""
    yield Row(f"{name}: nothing left", "; ".join(ended.left))
    yield Row(f"{name}: no GPU leased twice", "; ".join(ended.leases.get("twice", ())))


def compare_files(name: str, ended: Ended, frozen: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Yield a row for each file that has one way to end or several, and for each file that nobody asked for."""
    for path in sorted({*frozen, *ended.files}):
        found, legal = ended.signature(path), frozen.get(path, ())
        yield Row(f"{name} {path}", "" if found in legal else f"{found!r}; frozen: {' or '.join(map(repr, legal))}")


def compare_tests(found: Counter[tuple[str, str]], plain: Counter[tuple[str, str]]) -> str:
    """Return the tests whose outcomes differ from those of plain pytest; empty if none does."""
    lines = [f"only rlharness: {test} {outcome}" for test, outcome in sorted(found - plain)]
    lines += [f"only pytest: {test} {outcome}" for test, outcome in sorted(plain - found)]
    more = [f"{len(lines) - 10} more"] if len(lines) > 10 else []
    return "; ".join([*lines[:10], *more]) if plain else "pytest ran no test"


def frozen_files() -> dict[str, list[str]]:
    """Return path -> each of its legal signatures."""
    legal = defaultdict[str, list[str]](list)
    for signature, paths in json.loads(FROZEN.read_text("utf-8")).items():
        for path in paths:
            legal[path].append(signature)
    return legal | {path: [HONEST_ENDS] for path in HONEST_FILES}


@dataclass(frozen=True, slots=True)
class Part:
    """Files that share a run; those that are to leave something behind take a pretended GPU."""

    name: str
    files: Mapping[str, str]
    options: tuple[str, ...]
    code: int
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, work: Path) -> Ended:
        """Write the files, and run them."""
        directory = work / self.name
        (directory / "leases").mkdir(parents=True)
        beside = {"conftest.py": CONFTEST, "pytest.ini": "[pytest]\n", "needs.toml": NEEDS}
        for path, text in {**self.files, **beside}.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(text, "utf-8")
        options = ("--needs", "needs.toml", *self.options, "--", "-p", "no:cacheprovider", "-p", "timeout")
        env = environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", **self.env)
        return run_suite(directory, *options, limit_s=600 + 6 * len(self.files), env=env)

    def compare(self, work: Path) -> Iterator[Row]:
        """Run the files. Those that a busy machine let time out run once more, and that run decides."""
        legal = {path: ways for path, ways in frozen_files().items() if path in self.files}
        ended = self.run(work)
        differ = [path for path in legal if ended.signature(path) not in legal[path]]
        late = [path for path in differ if ended.files.get(path) in ("timed_out", "collect_timeout")]
        if late:
            options = (*self.options, *LONG_LIMITS)
            files = {path: text for path, text in self.files.items() if path in late or path not in legal}
            again = replace(self, name=f"{self.name}, late", files=files, options=options).run(work)
            yield from soundness(f"{self.name}, late", again)
            ended = ended.replaced(late, again)
        elif ended.code != self.code:
            yield Row(f"{self.name}: exit code", f"{ended.code} instead of {self.code}")
        yield from compare_files(self.name, ended, legal)
        yield from soundness(self.name, ended)


def misbehaving(name: str, paths: Iterable[str], *options: str, code: int = 1, **env: str) -> Part:
    """Return the part that runs these files of the suite."""
    beside = {f"{Path(path).parent}/conftest.py" for path in paths if "/" in path}
    return Part(name, {path: (MISBEHAVING / path).read_text("utf-8") for path in {*paths, *beside}}, options, code, env)


def hostile(num_files: int) -> Part:
    """Return the part that runs so many hostile files beside as many honest ones."""
    files = {each.name: each.text for each in draw(num_files, SEED)} | dict(
        itertools.islice(HONEST_FILES.items(), num_files)
    )
    options = ("--gpus", "sim:2", "--cpu-units", "4", "--timeout", "4", "--grace", "1", "--collect-timeout", "60")
    return Part("hostile", files, options, 1)


def parts_of_a_machine(work: Path) -> Iterator[Row]:
    """Compare the files that need something of the machine: Ray, a driver, a small file system."""
    name = "misbehaving with Ray"
    if find_spec("ray"):
        options = ("--gpus", "none", "--cpu-units", "2", "--timeout", "120")
        yield from misbehaving(name, EXPECTED_WITH_RAY, *options, code=0).compare(work)
    else:
        yield Row(name, missing="Ray")
    name = "misbehaving with a driver"
    if compiler():
        Machine([StubGpu()]).write(work / "machine.txt")
        env = stub_env(build(work), work / "machine.txt", os.environ)
        env["CUDA_VISIBLE_DEVICES"] = "0"
        part = misbehaving(name, EXPECTED_WITH_A_DRIVER, "--gpus", "auto", code=13, **env)
        yield from part.compare(work)
    else:
        yield Row(name, missing="a C compiler")
    name, small = "misbehaving on a small TMPDIR", tempfile.mkdtemp(prefix="o-", dir="/tmp")
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", small]
    if subprocess.run(mount, check=False, capture_output=True).returncode == 0:
        part = misbehaving(name, EXPECTED_ON_A_SMALL_TMPDIR, "--gpus", "none", TMPDIR=small)
        yield from part.compare(work)
        yield Row(f"{name}: emptied", "; ".join(os.listdir(small)))
        subprocess.run(["umount", small], check=True)
    else:
        yield Row(name, missing="the right to mount a file system")
    os.rmdir(small)


def other_suite(work: Path, suite: Suite) -> Iterator[Row]:
    """Compare another project's suite with plain pytest, test by test."""
    name, requirement = f"{suite.name} {suite.version}", f"{suite.name}=={suite.version}"
    variables = environment(CI="1")  # hypothesis draws the same examples then

    def make(directory: Path) -> None:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", suite.name, requirement]
        subprocess.run([*pip, "--dest", str(directory)], check=True, capture_output=True)
        (archive,) = directory.glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(directory, filter="data")
        source = directory / archive.name.removesuffix(".tar.gz")
        pytest = [sys.executable, "-m", "pytest", "-q", "--junit-xml", str(directory / "plain.xml"), *suite.paths]
        run(pytest, cwd=source, env=variables, limit_s=1200)
        source.rename(directory / "source")

    try:
        if version(suite.name) != suite.version:
            raise PackageNotFoundError
        directory = kept(f"outcomes-{suite.name}", make)
    except (PackageNotFoundError, subprocess.CalledProcessError):
        yield Row(name, missing=f"{requirement} with its source distribution")
        return
    shutil.copytree(directory / "source", source := work / suite.name)
    ended = run_suite(source, "--gpus", "none", *suite.paths, limit_s=1200, env=variables)
    plain = read_tests(directory / "plain.xml")
    yield Row(name, compare_tests(ended.tests, plain))
    yield from soundness(name, ended)


def rows(context: Context) -> Iterator[Row]:
    """Compare every outcome with what is frozen."""
    limit_s, num_hostile = ("5", NUM_HOSTILE_QUICK) if context.is_quick else (str(TIMEOUT_S), NUM_HOSTILE)
    limits = ("--timeout", limit_s, "--collect-timeout", limit_s, "--grace", str(GRACE_S))
    yield from misbehaving("misbehaving", EXPECTED, "--gpus", "sim:2", "--cpu-units", "10", *limits).compare(
        context.work
    )
    yield from hostile(num_hostile).compare(context.work)
    if not context.is_quick:
        yield from parts_of_a_machine(context.work)
        for suite in SUITES:
            if suite.name in OTHER_SUITES:
                yield from other_suite(context.work, suite)
