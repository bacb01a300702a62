"""The warm session: what a fork of it has of its own, what is shared, and what is not forked because of it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.process.supervisor import process_tree
from tests.support.nvml_stub.build import compiler
from tests.support.suite_runs import ROOT, Done, run, write_suite

IS_FORKED = "'--rlharness-serve' in open('/proc/self/cmdline').read()"
NOTE = f"""
import json, os, random, signal, sys, tempfile
def note(name, **more):
    seen = dict(forked={IS_FORKED}, argv=sys.argv, **more)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"seen_{{name}}.json"), "w") as file:
        json.dump(seen, file)
"""
SEEN = """
from noting import *
import numpy
def test_seen(tmp_path):
    marker = os.environ["RLHARNESS_ATTEMPT"]
    note("{name}", environ=dict(os.environ), tempdir=tempfile.gettempdir(), tmp_path=str(tmp_path),
         random=random.random(), numpy=float(numpy.random.rand()), files=os.listdir("/proc/self/fd"),
         signals=[str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)],
         shows_marker=f"={{marker}}\\0" in open("/proc/self/environ").read(), stdin=sys.stdin.isatty())
"""
FORKED = "from noting import *\ndef test_forked(): note('{name}')\n"


def seen(done: Done, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((done.directory / f"seen_{name}.json").read_text())
    return found


def suite(tmp_path: Path, files: dict[str, str], *, names: str = "ab") -> Path:
    """A suite of files that note whether they are forked, and `files`."""
    tests = {f"test_{name}.py": FORKED.format(name=name) for name in names}
    return write_suite(tmp_path / "suite", {"noting.py": NOTE, **tests, **files})


def said(done: Done) -> str:
    return " ".join((done.stdout + done.stderr).split())


def are_forked(done: Done, names: str = "ab") -> list[bool]:
    return [seen(done, name)["forked"] for name in names]


@pytest.fixture(scope="module", params=["file", "interpreter"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The same two files, forked and in an interpreter of their own."""
    files = {f"test_{name}.py": SEEN.format(name=name) for name in "ab"}
    files["conftest.py"] = "import os\nos.environ['OF_CONFTEST'] = 'kept'\n"
    directory = suite(tmp_path_factory.mktemp(request.param), files)
    done = run(directory, "run", "--gpus", "none", "--isolate", request.param, "--json", env={"MINE": "kept"})
    assert done.outcomes == {"test_a.py": "passed", "test_b.py": "passed"}
    assert are_forked(done) == [request.param == "file"] * 2
    return done


@pytest.mark.full
def test_a_fork_is_as_an_interpreter_of_its_own(both: Done) -> None:
    a, b = (seen(both, name) for name in "ab")
    for of_file, name in ((a, "a"), (b, "b")):
        assert of_file["argv"][-1] == f"test_{name}.py"
        assert of_file["environ"]["OF_CONFTEST"] == of_file["environ"]["MINE"] == "kept"
        assert of_file["tempdir"] == of_file["environ"]["TMPDIR"]
        assert of_file["tmp_path"].startswith(of_file["tempdir"])
        assert "default_int_handler" in of_file["signals"][0]
        assert of_file["signals"][1:] == ["0", "0", "1"] or "SIG_DFL" in of_file["signals"][1]
        assert of_file["shows_marker"]
        assert not of_file["stdin"]
    differing = ("TMPDIR", "RLHARNESS_ATTEMPT")
    assert all(a["environ"][name] != b["environ"][name] for name in differing)
    assert a["random"] != b["random"]
    assert a["numpy"] != b["numpy"]


def test_a_fork_keeps_what_the_suite_seeds_and_no_file_of_the_runner_or_of_a_supervisor(tmp_path: Path) -> None:
    links = "[os.path.realpath(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd') if int(fd) > 2]"
    text = "from noting import *\ndef test(): note('{}', drawn=random.random(), links={})\n"
    files = {f"test_{name}.py": text.format(name, links) for name in "ab"}
    files["conftest.py"] = "import os, random\nrandom.seed(3)\nread = dict(os.environ), {**os.environ}\n"
    done = run(suite(tmp_path, files), "run", "--gpus", "none")
    assert are_forked(done) == [True, True], "a copy of the environment reads no variable"
    assert seen(done, "a")["drawn"] == seen(done, "b")["drawn"]
    assert not [link for link in seen(done, "a")["links"] if "socket:" in link or "pipe:" in link]


HAZARDS = {
    "threads": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
        "thr",
    ),
    "processes": ("import subprocess\nsubprocess.Popen(['sleep', '60'])\n", "process"),
    "sockets": ("import socket\nheld = socket.socketpair()\n", "sockets"),
    "temporary_files": ("import tempfile\nheld = tempfile.mkdtemp()\n", "temporary files"),
    "files": ("held = open('held.txt', 'a')\n", "held.txt"),
    "cwd": ("import os\nos.makedirs('below', exist_ok=True)\nos.chdir('below')\n", "working directory"),
    "replaced": ("import os\nreal = os.fork\nos.fork = lambda: real()\n", "os.fork"),
    "reads": ("import os\nheld = os.environ['RLHARNESS_ATTEMPT']\n", "reads RLHARNESS_ATTEMPT"),
    "reads_by_getenv": ("import os\nheld = os.getenv('CUDA_VISIBLE_DEVICES')\n", "reads CUDA_VISIBLE_DEVICES"),
}


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("threads", "sockets", "reads") else pytest.param(name, marks=pytest.mark.full)
        for name in HAZARDS
    ],
)
def test_what_must_not_be_shared_is_named_and_each_file_has_an_interpreter(tmp_path: Path, name: str) -> None:
    text, why = HAZARDS[name]
    marked = "import pytest\nfrom noting import *\n@pytest.mark.gpus(1)\ndef test_forked(): note('a')\n"
    directory = suite(tmp_path, {"conftest.py": text, "test_a.py": marked})
    done = run(directory, "run", "--gpus", "sim:2")
    assert done.code == 0
    assert are_forked(done) == [False, False]
    assert "an interpreter of their own" in said(done) or "an interpreter of its own" in said(done)
    assert why in said(done)
    assert not process_tree.bearing("sleep 60")


@pytest.mark.full
@pytest.mark.parametrize(("answer", "is_forked"), [(0, False), (3, True)])
def test_a_driver_that_is_initialised_is_found(tmp_path: Path, answer: int, is_forked: bool) -> None:
    """A stub of libcuda: before cuInit, cuDeviceGetCount answers 3 (CUDA_ERROR_NOT_INITIALIZED)."""
    if (command := compiler()) is None:
        pytest.skip("no C compiler (cc, gcc or clang) on PATH")
    source, library = tmp_path / "cuda.c", tmp_path / "libcuda.so.1"
    source.write_text(f"int cuDeviceGetCount(int *count) {{ *count = 1; return {answer}; }}\n")
    subprocess.run([command, "-shared", "-fPIC", "-o", library, source], check=True)
    loads = f"import ctypes\nheld = ctypes.CDLL({str(library)!r})\n"
    done = run(suite(tmp_path, {"conftest.py": loads}), "run", "--gpus", "none")
    assert are_forked(done) == [is_forked, is_forked]
    assert ("the suite initialises CUDA" in said(done)) is not is_forked


@pytest.mark.full
def test_a_parallel_region_of_torch_is_found(tmp_path: Path) -> None:
    """A parent with a pool of OpenMP threads makes the next parallel operation of its fork hang."""
    region = "import torch\ntorch.set_num_threads(2)\nheld = (torch.rand(4000, 4000) + 1).sum()\n"
    done = run(suite(tmp_path, {"conftest.py": region}), "run", "--gpus", "none")
    assert done.code == 0
    assert are_forked(done) == [False, False]
    assert "the suite starts threads" in said(done)


@pytest.mark.full
def test_what_several_files_import_is_imported_once(tmp_path: Path) -> None:
    counting = "with open('imports.txt', 'a') as file: file.write('x')\n"
    files = {f"test_{n}.py": f"import counted\n{FORKED.format(name=n)}" for n in "abcd"}
    done = run(suite(tmp_path, {"counted.py": counting, **files}, names=""), "run", "--gpus", "none")
    assert are_forked(done, "abcd") == [True] * 4
    assert (done.directory / "imports.txt").read_text() == "x"
    again = run(done.directory, "run", "--gpus", "none", "--isolate", "interpreter")
    assert again.code == 0
    assert (done.directory / "imports.txt").read_text() == "x" * 5


@pytest.mark.full
def test_what_files_import_inside_tests_is_learnt(tmp_path: Path) -> None:
    counting = "with open('imports.txt', 'a') as file: file.write('x')\n"
    files = {f"test_{n}.py": f"{FORKED.format(name=n)}def test_late(): import counted\n" for n in "abcdef"}
    done = run(
        suite(tmp_path, {"counted.py": counting, **files}, names=""), "run", "--gpus", "none", "--cpu-units", "1"
    )
    assert are_forked(done, "abcdef") == [True] * 6
    assert (done.directory / "imports.txt").read_text() == "xxx", "two files, then the session"


@pytest.mark.full
@pytest.mark.parametrize(
    "text",
    [
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
        pytest.param("import os\nheld = os.environ['TMPDIR']\n", marks=pytest.mark.full),
    ],
)
def test_a_package_that_must_not_be_shared_is_left_to_the_files(tmp_path: Path, text: str) -> None:
    counting = "with open('imports.txt', 'a') as file: file.write('x')\n"
    files = {f"test_{n}.py": f"import counted, harmful\n{FORKED.format(name=n)}" for n in "ab"}
    done = run(suite(tmp_path, {"counted.py": counting, "harmful.py": text, **files}), "run", "--gpus", "none")
    assert done.code == 0
    assert are_forked(done) == [True, True]
    assert (done.directory / "imports.txt").read_text() == "xx", "the session, started twice"


@pytest.mark.full
def test_an_import_that_warns_fails_where_the_suite_has_it_fail(tmp_path: Path) -> None:
    files = {
        "pytest.ini": "[pytest]\nfilterwarnings = error\n",
        "old.py": "import warnings\nwarnings.warn('old', DeprecationWarning)\n",
        **{f"test_{n}.py": f"import old\n{FORKED.format(name=n)}" for n in "ab"},
    }
    done = run(suite(tmp_path, files), "run", "--gpus", "none", "--json")
    assert done.outcomes == {"test_a.py": "collect_error", "test_b.py": "collect_error"}


@pytest.mark.full
def test_no_file_is_lost_with_the_session(tmp_path: Path) -> None:
    """The second file kills the process from which the others are forked."""
    kills = f"""
import os, signal, pathlib
from noting import *
def test_kill():
    assert {IS_FORKED}
    marker = "=" + os.environ["RLHARNESS_ATTEMPT"].rpartition("-")[0] + "-warm"
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (process / "environ").read_bytes():
                found.append((int((process / "stat").read_text().rpartition(")")[2].split()[19]), int(process.name)))
        except OSError:
            pass
    os.kill(min(found)[1], signal.SIGKILL)
"""
    directory = suite(tmp_path, {"test_0.py": kills}, names="abc")
    arguments = ("run", "--gpus", "none", "--cpu-units", "1", "--containment", "subreaper")
    done = run(directory, *arguments, "--json")
    assert done.code == 0
    assert done.outcomes == dict.fromkeys(("test_0.py", "test_a.py", "test_b.py", "test_c.py"), "passed")
    assert are_forked(done, "abc").count(False) >= 1
    assert "the warm session was lost" in said(done)


@pytest.mark.full
def test_a_run_sees_one_version_of_a_conftest(tmp_path: Path) -> None:
    files = {
        "conftest.py": "VERSION = 1\n",
        "test_0.py": "import pathlib\ndef test(): pathlib.Path('conftest.py').write_text('VERSION = 2')\n",
        "test_a.py": "from noting import *\nimport conftest\ndef test(): note('a', version=conftest.VERSION)\n",
    }
    done = run(suite(tmp_path, files, names="a"), "run", "--gpus", "none", "--cpu-units", "1")
    assert seen(done, "a")["version"] == 1


@pytest.mark.full
def test_a_conftest_that_fails_or_hangs_is_told_as_without_the_session(tmp_path: Path) -> None:
    for text in ("raise RuntimeError('broken')\n", "import time\ntime.sleep(60)\n"):
        directory = suite(tmp_path / str(len(text)), {"conftest.py": text})
        outcomes = [
            run(directory, "run", "--gpus", "none", "--collect-timeout", "2", "--isolate", isolate, "--json").outcomes
            for isolate in ("file", "interpreter")
        ]
        assert outcomes[0] == outcomes[1]


@pytest.mark.full
def test_an_exit_function_and_a_thread_are_waited_for_as_an_interpreter_does(tmp_path: Path) -> None:
    text = """
import atexit, threading, time
def late(): open('late.txt', 'a').write('exit')
def slow():
    time.sleep(0.5)
    open('late.txt', 'a').write('thread ')
def test_it():
    atexit.register(late)
    threading.Thread(target=slow).start()
"""
    done = run(suite(tmp_path, {"test_x.py": text}), "run", "--gpus", "none")
    assert done.code == 0
    assert (done.directory / "late.txt").read_text() == "thread exit"


@pytest.mark.full
def test_files_behind_a_link_are_collected(tmp_path: Path) -> None:
    directory = suite(tmp_path, {"below/test_c.py": FORKED.format(name="c")})
    (tmp_path / "link").symlink_to(directory)
    (directory / "near").symlink_to(directory / "below")
    for cwd, path in ((tmp_path, "link/below"), (tmp_path / "link", "below/test_c.py"), (directory, "near/test_c.py")):
        done = run(
            directory, "run", path, "--gpus", "none", "--json", cwd=cwd, env={"PYTHONPATH": f"{ROOT}:{directory}"}
        )
        found = json.loads(done.stdout)
        assert [unit["tests"] for unit in found["units"]] == [{"passed": 1}]


@pytest.mark.full
def test_whatever_stands_among_the_modules_costs_no_outcome(tmp_path: Path) -> None:
    """Modules that vanish while they are looked at, as templates that were compiled to modules do, and hostile ones."""
    text = """
import gc, sys, types, weakref
class Hostile(types.ModuleType):
    def __getattr__(self, name): raise RuntimeError(name)
class Vanishing(types.ModuleType): pass
def test_it():
    sys.modules["hostile"] = Hostile("hostile")
    del sys.modules["hostile"].__spec__
    for number in range(2000):
        module = Vanishing(f"vanishing_{number}")
        module.me = module
        sys.modules[module.__name__] = weakref.proxy(
            module, lambda _, name=module.__name__: sys.modules.pop(name, None))
    del module
"""
    done = run(suite(tmp_path, {"test_a.py": text}), "run", "--gpus", "none", "--json")
    assert done.outcomes == {"test_a.py": "passed", "test_b.py": "passed"}


@pytest.mark.full
@pytest.mark.parametrize("isolate", ["file", "test", "worker"])
def test_a_suite_whose_warnings_are_errors_runs_with_all_plugins_of_a_run(tmp_path: Path, isolate: str) -> None:
    text = "import pytest\n@pytest.mark.gpus(1)\ndef test_one(): pass\n@pytest.mark.gpus(2)\ndef test_two(): pass\n"
    strict = "[pytest]\nfilterwarnings = error\n"
    suite = write_suite(tmp_path, {"test_a.py": text, "test_b.py": "def test_b(): pass\n", "pytest.ini": strict})
    done = run(suite, "run", "--gpus", "sim:2", "--isolate", isolate)
    assert done.outcomes == {"test_a.py [1/2]": "passed", "test_a.py [2/2]": "passed", "test_b.py": "passed"}
