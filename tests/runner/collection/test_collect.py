"""Collection against real pytest children: every file is a unit, whatever happens to it, and nothing is left behind."""

import asyncio
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.bits.errors import CollectionError
from harness.process.supervisor_client import ProcessEnd, ProcessSpec
from harness.runner.collection.collect import Collected, collect
from harness.runner.collection.collect_options import CollectOptions
from harness.runner.need import Need, NeedRule
from harness.runner.units import NeedSource, Unit

ROOT = Path(__file__).parents[3]
LATE_S = 60.0
HANG = "import os, pathlib, time\npathlib.Path(os.environ['HANGS']).touch()\ntime.sleep(3600)\n"


@dataclass
class PlainProcesses:
    """A supervisor that only starts a process; the time of one that says that it hangs is over at once."""

    num_alive: int = 0
    most_alive: int = 0
    specs: list[ProcessSpec] = field(default_factory=list)

    async def run(self, spec: ProcessSpec) -> ProcessEnd:
        self.specs.append(spec)
        self.num_alive += 1
        self.most_alive = max(self.most_alive, self.num_alive)
        with open(Path(spec.directory) / "output.log", "wb") as log:
            process = await asyncio.create_subprocess_exec(
                *spec.argv, cwd=spec.cwd, env=spec.env, stdout=log, stderr=subprocess.STDOUT
            )
        ended = asyncio.create_task(process.wait())
        reason = ""
        try:
            while not ended.done() and not reason:
                await asyncio.wait([ended], timeout=0.02)
                reason = "timeout" if Path(spec.env["HANGS"]).exists() else ""
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            self.num_alive -= 1
        code = process.returncode
        assert code is not None
        return ProcessEnd(None if code < 0 else code, -code if code < 0 else None, reason, (), (), 0.0)


@dataclass
class Suite:
    """A directory of test files, and the collection of it."""

    root: Path
    scratch: Path
    supervisor: PlainProcesses = field(default_factory=PlainProcesses)

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def spec(
        self, pytest_args: tuple[str, ...], directory: Path, timeout_s: float, session: object = None, /
    ) -> ProcessSpec:
        return ProcessSpec(
            argv=(sys.executable, "-m", "pytest", *pytest_args),
            cwd=str(self.root),
            env={**os.environ, "PYTHONPATH": str(ROOT), "HANGS": str(directory / "hangs")},
            directory=str(directory),
            marker=str(directory),
            timeout_s=timeout_s,
            startup_timeout_s=float("inf"),
            grace_s=1.0,
        )

    def options(self, **changes: Any) -> CollectOptions:
        wanted: dict[str, Any] = {
            "cwd": self.root,
            "directory": self.scratch / "collect",
            "timeout_s": LATE_S,
            "limit": 2,
        }
        return CollectOptions(**{**wanted, **changes})

    def collect(self, *paths: str, **changes: Any) -> Collected:
        return asyncio.run(collect(paths, self.options(**changes), self.supervisor, self.spec))

    def units(self, *paths: str, **changes: Any) -> dict[str, Unit]:
        return {unit.path: unit for unit in self.collect(*paths, **changes).units}


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    made = Suite(tmp_path / "suite", tmp_path / "scratch")
    made.write({"pytest.ini": "[pytest]\n"})
    return made


def marked(argument: str) -> str:
    return f"import pytest\n@pytest.mark.gpus({argument})\ndef test_a(): pass\n"


COMPUTED = marked("int('2'), model='H100'")


@pytest.mark.full
def test_needs_come_from_source_import_and_table(suite: Suite) -> None:
    suite.write({"test_a.py": marked("1"), "test_b.py": COMPUTED, "test_c.py": marked("4"), "test_d.py": ""})
    collected = suite.collect(needs=(NeedRule("*_c.py", Need(gpus=8), timeout_s=9.0), NeedRule("*_d.py", None, 7.0)))
    assert collected.units == (
        Unit("test_a.py", Need(gpus=1), NeedSource.IMPORT),
        Unit("test_b.py", Need(gpus=2, model="H100"), NeedSource.IMPORT),
        Unit("test_c.py", Need(gpus=8), NeedSource.TABLE, timeout_s=9.0),
        Unit("test_d.py", Need(), NeedSource.AST, timeout_s=7.0),
    )
    assert collected.rootdir == suite.root
    assert collected.pytest_args[:4] == ("--rootdir", str(suite.root), "-c", str(suite.root / "pytest.ini"))
    assert collected.sizes_bytes["test_a.py"] == len(marked("1"))
    assert collected.why_imported == dict.fromkeys(["test_a.py", "test_b.py"], "it mentions gpus")
    assert collected.asks["test_a.py"] == {"test_a": Need(gpus=1)}
    assert len(suite.supervisor.specs) == 3  # one to find the files, two to import


def test_a_file_in_the_table_is_never_imported(suite: Suite) -> None:
    suite.write({"test_a.py": "raise SystemExit('imported')\n" + COMPUTED})
    units = suite.units(needs=(NeedRule("*", Need(gpus=1)),))
    assert units == {"test_a.py": Unit("test_a.py", Need(gpus=1), NeedSource.TABLE)}


FAILING = {
    "raises": ("raise RuntimeError('at import')", "RuntimeError: at import"),
    "does not parse": ("def test_a(:", "SyntaxError"),
    "is killed": ("import os\nos.kill(os.getpid(), 9)", "died of SIGKILL"),
    "crashes": ("import ctypes\nprint('last words', flush=True)\nctypes.string_at(0)", "died of SIGSEGV"),
    "leaves with 0": ("import os\nos._exit(0)", "exited with 0"),
    "has a wrong marker": (marked("int('-1')"), "number of GPUs -1; legal: a whole number, 0 or more"),
}


@pytest.mark.full
@pytest.mark.parametrize(("source", "said"), FAILING.values(), ids=FAILING.keys())
def test_a_file_that_cannot_be_imported_is_a_unit_that_says_why(suite: Suite, source: str, said: str) -> None:
    suite.write({"test_a.py": f"SIZE = gpus = 1\n{source}", "test_b.py": marked("1")})
    units = suite.units(distrusted=lambda rootdir: frozenset({"test_a.py"}))
    assert said in units["test_a.py"].collect_error
    assert not units["test_a.py"].collect_timed_out
    assert units["test_a.py"].need == Need()
    assert units["test_b.py"] == Unit("test_b.py", Need(gpus=1), NeedSource.IMPORT)
    assert not list(suite.scratch.iterdir())


@pytest.mark.full
def test_the_output_of_a_file_that_died_is_in_its_error(suite: Suite) -> None:
    suite.write({"test_a.py": "import os, sys\nos.write(1, b'caf\\xe9 ' * 100_000 + b'last words')\nos._exit(3)"})
    error = suite.units(distrusted=lambda _: frozenset({"test_a.py"}), pytest_args=("-s",))["test_a.py"].collect_error
    assert error.endswith("last words")
    assert "caf\ufffd" in error
    assert len(error) < 70_000


@pytest.mark.full
def test_what_pytest_would_run_in_spite_of_errors_is_run(suite: Suite) -> None:
    suite.write(
        {
            "test_a.py": f"""
{COMPUTED}
class TestB:
    @pytest.mark.parametrize("wrong", [1])
    def test_b(self): pass
"""
        }
    )
    assert "test_b" in suite.units()["test_a.py"].collect_error
    unit = suite.units(pytest_args=("--continue-on-collection-errors",))["test_a.py"]
    assert (unit.collect_error, unit.need.gpus) == ("", 2)


@pytest.mark.full
@pytest.mark.parametrize("place", ["test_bad", "bad"])
@pytest.mark.parametrize(
    ("source", "said", "timed_out"),
    [
        ("raise RuntimeError('in conftest')", "RuntimeError: in conftest", False),
        ("import os\nos._exit(7)", "exited with 7", False),
        (HANG, "reached its limit of", True),
    ],
)
def test_a_conftest_that_fails_takes_its_own_files_only(
    suite: Suite, place: str, source: str, said: str, timed_out: bool
) -> None:
    suite.write(
        {f"{place}/conftest.py": source, f"{place}/deep/test_a.py": marked("2"), f"{place}/test_b.py": COMPUTED}
    )
    suite.write({"good/conftest.py": "", "good/test_c.py": marked("1"), "test_d.py": ""})
    units = suite.units()
    assert set(units) == {f"{place}/deep/test_a.py", f"{place}/test_b.py", "good/test_c.py", "test_d.py"}
    for path, unit in units.items():
        assert (said in unit.collect_error) == path.startswith(place), unit
        assert unit.collect_timed_out == (timed_out and path.startswith(place))
    assert units["good/test_c.py"] == Unit("good/test_c.py", Need(gpus=1), NeedSource.IMPORT)
    assert not list(suite.scratch.iterdir())


@pytest.mark.full
def test_two_conftests_that_end_the_process_are_both_found(suite: Suite) -> None:
    for name in ("a", "b"):
        suite.write({f"{name}/conftest.py": "import os\nos._exit(7)", f"{name}/test_{name}.py": ""})
    units = suite.units()
    assert [bool(unit.collect_error) for unit in units.values()] == [True, True]


@pytest.mark.full
def test_files_are_found_although_a_broken_conftest_defines_their_options(suite: Suite) -> None:
    suite.write(
        {
            "pytest.ini": "[pytest]\naddopts = --own-option\n",
            "conftest.py": "import gone\ndef pytest_addoption(parser): parser.addoption('--own-option')",
            "tests/test_a.py": "",
        }
    )
    collected = suite.collect(pytest_args=("--own-option",))
    assert [unit.path for unit in collected.units] == ["tests/test_a.py"]
    assert "No module named 'gone'" in collected.units[0].collect_error
    assert "without pytest's arguments" in collected.notes[0]


def test_a_directory_that_skips_itself_is_noted(suite: Suite) -> None:
    skipping = "import pytest\npytest.skip('no GPUs', allow_module_level=True)"
    suite.write({"a/conftest.py": skipping, "a/test_a.py": "", "b/test_b.py": ""})
    collected = suite.collect()
    assert [unit.path for unit in collected.units] == ["b/test_b.py"]
    assert collected.notes == ("a skips itself: no GPUs",)


def test_a_directory_that_cannot_be_collected_is_a_unit(suite: Suite) -> None:
    raising = """
        import pytest
        def pytest_collect_directory(path, parent):
            if path.name == "a":
                return Raising.from_parent(parent, path=path)
        class Raising(pytest.Directory):
            def collect(self):
                raise RuntimeError("cannot list")
    """
    suite.write({"conftest.py": raising, "a/test_a.py": "", "b/test_b.py": ""})
    units = suite.units()
    assert "cannot list" in units["a"].collect_error
    assert units["b/test_b.py"].collect_error == ""


@pytest.mark.full
def test_a_session_that_fails_as_a_whole_is_an_error_with_its_output(suite: Suite) -> None:
    suite.write({"conftest.py": "def pytest_sessionstart(): raise RuntimeError('at the start')"})
    with pytest.raises(CollectionError, match=r"(?s)exited with 3.*at the start"):
        suite.collect()
    suite.write({"conftest.py": f"def pytest_sessionstart():\n{textwrap.indent(HANG, '    ')}"})
    with pytest.raises(CollectionError, match=r"(?s)reached its limit of.*--collect-timeout"):
        suite.collect()
    assert not list(suite.scratch.iterdir())
    suite.write({"conftest.py": "import os\ndef pytest_sessionstart(): os._exit(1)"})
    with pytest.raises(CollectionError, match=r"(?s)exited with 1, and printed nothing.*rlharness doctor"):
        suite.collect()


@pytest.mark.full
def test_progress_is_told_and_the_limit_kept(suite: Suite) -> None:
    suite.write({f"test_{number}.py": COMPUTED for number in range(5)})
    heard: list[tuple[int, int]] = []
    told = collect([], suite.options(), suite.supervisor, suite.spec, lambda done, total: heard.append((done, total)))
    assert len(asyncio.run(told).units) == 5
    assert heard == [(done, 5) for done in range(6)]
    assert suite.supervisor.most_alive == 2
