"""Real attempts for the tests of the supervisor, and the proof after each test that none of their processes lives."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.bits.errors import HarnessError
from harness.process.supervisor import process_tree
from harness.process.supervisor.containment import BACKENDS, cgroup_home
from harness.process.supervisor.process_tree import Process
from harness.process.supervisor_client import ProcessSpec, Supervisors, probe_backends

INTERPRETER = (sys.executable, "-I", "-S", "-c")
GIVE_UP_ROOT = "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)"
EVENTUALLY_S = 10.0
EVENTUALLY_ROUND_S = 0.01


@pytest.fixture(scope="module", autouse=True)
def _remembers_elsewhere(own_cache: Path) -> None:
    """Runs keep their history of durations in the user's cache."""


@pytest.fixture(scope="session")
def refusals() -> dict[str, str]:
    """Why this machine refuses a tier, "" where it does not."""
    answers: dict[str, str] = {}
    for backend in BACKENDS:
        try:
            probe_backends(backend)
            answers[backend] = ""
        except HarnessError as error:
            answers[backend] = error.what
    return answers


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest, refusals: dict[str, str]) -> str:
    """Each tier that this machine allows."""
    name = str(request.param)
    if refusals[name]:
        pytest.skip(refusals[name])
    return name


@pytest.fixture(scope="session")
def give_up_root() -> str:
    """Python code after which a process is nobody's in particular."""
    if subprocess.run([*INTERPRETER, GIVE_UP_ROOT], check=False, capture_output=True).returncode != 0:
        pytest.skip("only root can become another user")
    return GIVE_UP_ROOT


@pytest.fixture(scope="module")
def run_id() -> str:
    """Unique: control groups are named after it."""
    return f"t{os.getpid()}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def supervisors(backend: str, run_id: str) -> Iterator[Supervisors]:
    """Supervisors of the tier; at the end it has left no control group behind."""
    with contextlib.closing(Supervisors(backend, run_id)) as supervisors:
        yield supervisors
    if backend == "cgroup":
        assert [name for name in os.listdir(cgroup_home()) if run_id in name] == []


@pytest.fixture(scope="session")
def living() -> Callable[..., list[Process]]:
    """Finds living processes that show any of these texts in their environment or, where that was scrubbed, in their
    arguments."""

    def find(*texts: str) -> list[Process]:
        return [process for process in process_tree.all_processes() if not process.is_zombie and shows(process, texts)]

    return find


def shows(process: Process, texts: tuple[str, ...]) -> bool:
    shown = b""
    for name in ("environ", "cmdline"):
        with contextlib.suppress(OSError):  # gone meanwhile
            shown += Path(f"/proc/{process.pid}/{name}").read_bytes()
    return any(text.encode() in shown for text in texts)


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], object], str], Awaitable[None]]:
    """Polls until a condition holds; fails the test, saying what never came, after ten seconds."""

    async def wait(condition: Callable[[], object], what: str) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + EVENTUALLY_S
        while not condition():
            assert loop.time() < until_s, f"never: {what}"
            await asyncio.sleep(EVENTUALLY_ROUND_S)

    return wait


@pytest.fixture(scope="module")
def module_spec(
    tmp_path_factory: pytest.TempPathFactory, living: Callable[..., list[Process]]
) -> Iterator[Callable[..., ProcessSpec]]:
    """As `spec`, for fixtures of a whole module."""
    yield from make_specs(tmp_path_factory.mktemp("attempts"), living)


@pytest.fixture
def new_children() -> Callable[[], list[Process]]:
    """Our children, zombies included, that were not there when the test began."""
    before = {process.pid for process in process_tree.children(os.getpid())}
    return lambda: [process for process in process_tree.children(os.getpid()) if process.pid not in before]


@pytest.fixture
def spec(tmp_path: Path, living: Callable[..., list[Process]]) -> Iterator[Callable[..., ProcessSpec]]:
    """Makes attempts of Python code (text) or of any command (tuple); the attempt's marker is in sys.argv[1] too."""
    yield from make_specs(tmp_path, living)


def make_specs(root: Path, living: Callable[..., list[Process]]) -> Iterator[Callable[..., ProcessSpec]]:
    markers: list[str] = []

    def make(program: str | tuple[str, ...], **others: Any) -> ProcessSpec:
        marker = f"m{len(markers)}-{uuid.uuid4().hex}"
        markers.append(marker)
        directory = root / marker
        directory.mkdir()
        argv = (*INTERPRETER, program, marker) if isinstance(program, str) else program
        env = {**os.environ, "RLHARNESS_ATTEMPT": marker, **others.pop("env", {})}
        limits = {"timeout_s": 20.0, "startup_timeout_s": float("inf"), "grace_s": 0.4}
        return ProcessSpec(argv, others.pop("cwd", str(directory)), env, str(directory), marker, **{**limits, **others})

    yield make
    left = living(*markers)
    for process in left:
        process_tree.send_signal(process, signal.SIGKILL)
    assert left == []
