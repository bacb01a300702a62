"""Workers in child processes: as every backend, and how they end."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import psutil
import pytest
import torch

from rlcore.distributed.backends.processes import ChildProcesses
from rlcore.distributed.futures import Future
from rlcore.distributed.worker import WorkerSpec
from rlcore.distributed.worker_group import WorkerGroup, start_colocated, start_group
from rlcore.errors import StepError, WorkerDiedError, WorkerError
from tests.rlcore.distributed.conformance import *  # noqa: F403  # the tests of every backend
from tests.rlcore.distributed.conformance import AdderView, in_other_processes_an_error_that_cannot_travel_is_described
from tests.rlcore.distributed.workers import Adder, Faulty, Ranks

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 120.0
BACKEND = "processes"


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    """Children use one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def adder(_importable: None) -> Iterator[WorkerGroup[Adder]]:
    specs = [WorkerSpec("adder", Adder, (5,)), WorkerSpec("other", Adder, (100,))]
    with start_colocated(specs, size=3, backend=BACKEND, environment={"RLCORE_TEST": "1"})["adder"] as group:
        yield group


@pytest.fixture(scope="module")
def faulty(_importable: None) -> Iterator[WorkerGroup[Faulty]]:
    with start_group(Faulty, role="faulty", size=2, backend=BACKEND) as group:
        yield group


class FaultyView(Protocol):
    """A Faulty as its caller sees it."""

    def wait(self) -> Future[list[None]]: ...
    def pid(self) -> list[int]: ...


def assert_ended(pids: tuple[int, ...]) -> None:
    """Wait until the processes have ended; a zombie is one that its new parent has not reaped."""
    running = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            running += [] if process.status() == psutil.STATUS_ZOMBIE else [process]
    _, alive = psutil.wait_procs(running, timeout=TIMEOUT_S)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


def children() -> set[int]:
    """Process ids of the workers that this process has started and not ended."""
    found = set()
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            found |= {process.pid} if any("spawn_main" in word for word in process.cmdline()) else set()
    return found


def test_errors_and_results_that_cannot_travel_are_described(faulty: WorkerGroup[Faulty]) -> None:
    in_other_processes_an_error_that_cannot_travel_is_described(faulty)


def test_an_argument_belongs_to_the_worker(adder: WorkerGroup[Adder]) -> None:
    for size in (3, 50_000):
        values = torch.zeros(size)
        assert adder.handle.change(values) == [1.0, 1.0, 1.0]  # type: ignore[comparison-overlap]
        assert float(values[0]) == 0.0


def test_children_are_seen(adder: WorkerGroup[Adder]) -> None:
    assert set(adder.process_ids) <= children()


def test_each_process_has_its_rank_and_the_environment_from_its_start(adder: WorkerGroup[Adder]) -> None:
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "RLCORE_TEST"]
    assert adder.handle.where(names) == [  # type: ignore[comparison-overlap]
        dict(zip(names, (str(rank), str(rank), "3", "3", "1"), strict=True)) for rank in range(3)
    ]
    for rank, pid in enumerate(adder.process_ids):
        assert psutil.Process(pid).environ()["RANK"] == str(rank), "before the interpreter started"
    assert "RLCORE_TEST" not in os.environ


@pytest.mark.full
def test_ranks_find_each_other_and_one_that_raises_does_not_hang_the_caller() -> None:
    with start_group(Ranks, role="ranks", size=2, backend=BACKEND) as group:
        assert [each.tolist() for each in group.handle.gather(torch.arange(4))] == [[0, 1, 2, 3]] * 2
    assert_ended(group.process_ids)
    group = start_group(Ranks, role="ranks", size=2, backend=BACKEND)
    with pytest.raises(StepError, match="rank 0 does not take part"), group:
        group.handle.half_gather()
    assert_ended(group.process_ids)


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("kill", -signal.SIGKILL),
        pytest.param("later", -signal.SIGKILL, marks=pytest.mark.full),
        pytest.param("exit", 3, marks=pytest.mark.full),
    ],
)
def test_a_worker_that_dies_in_a_call_is_named_and_the_others_are_ended(how: str, code: int) -> None:
    group = start_group(Faulty, role="faulty", size=2, backend=BACKEND)
    with pytest.raises(WorkerDiedError) as caught, group:
        group.handle.die(how, 1)
    error = caught.value
    assert (error.role, error.rank, error.pid, error.exit_code) == ("faulty", 1, group.process_ids[1], code)
    assert "method die" in error.what
    assert ("exited with 3" if how == "exit" else "was killed by SIGKILL") in error.what
    assert_ended(group.process_ids)


@pytest.mark.full
def test_a_worker_that_dies_between_calls_is_noticed_and_every_call_raises() -> None:
    with start_group(Faulty, role="faulty", size=2, backend=BACKEND) as group:
        caller: FaultyView = group.view(FaultyView)
        future = caller.wait()
        os.kill(group.process_ids[0], signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="rank 0 of 2"):
            future.result()
        assert_ended(group.process_ids)
        with pytest.raises(WorkerDiedError, match="rank 0 of 2"):
            group.check()
        with pytest.raises(WorkerDiedError, match="rank 0 of 2"):
            group.handle.pid()
        with pytest.raises(WorkerDiedError, match="rank 0 of 2"):
            group.close()


@pytest.mark.full
def test_a_result_of_a_group_that_was_closed_is_an_error() -> None:
    group = start_group(Faulty, role="faulty", size=1, backend=BACKEND)
    caller: FaultyView = group.view(FaultyView)
    future = caller.wait()
    with pytest.raises(KeyError), group:
        raise KeyError
    with pytest.raises(WorkerError, match="closed before the call had returned"):
        future.result()
    group.close()


@pytest.mark.full
@pytest.mark.parametrize("number", range(5))
def test_a_random_kill_while_calls_run_is_named_and_leaves_nothing(seed: str, number: int) -> None:
    draw = random.Random(f"{seed}:{number}")
    group = start_group(Adder, role="adder", size=3, backend=BACKEND)
    victim, at_call, num_done = draw.randrange(3), draw.randrange(20), 0
    caller: AdderView = group.view(AdderView)
    with pytest.raises(WorkerDiedError) as caught, group:
        while True:
            future = caller.later(torch.ones(draw.choice([1, 5, 100_000])))
            if num_done == at_call:
                os.kill(group.process_ids[victim], signal.SIGKILL)
            future.result()
            assert group.handle.first(1) == 1
            num_done += 1
    assert (caught.value.rank, caught.value.pid) == (victim, group.process_ids[victim])
    assert num_done >= at_call
    assert_ended(group.process_ids)


@pytest.mark.full
@pytest.mark.parametrize("how", ["raise", pytest.param("die", marks=pytest.mark.full)])
def test_a_constructor_that_fails_leaves_nothing(how: str) -> None:
    before = children()
    expected = StepError if how == "raise" else WorkerDiedError
    with pytest.raises(expected) as caught:
        start_group(Faulty, how, role="faulty", size=2, backend=BACKEND)
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "faulty, rank 1 of 2" in text
    assert "method __init__" in text
    assert children() == before


@pytest.mark.full
def test_a_constructor_that_hangs_is_given_up() -> None:
    with pytest.raises(WorkerError, match=r"group faulty was not constructed within 20\.0 s: ranks \[0\] still run"):
        start_group(Faulty, "wait", role="faulty", backend=ChildProcesses(start_timeout_s=20.0))


CONTROLLER = """
import sys
from pathlib import Path

from rlcore.distributed.worker_group import start_group
from tests.rlcore.distributed.workers import Faulty

if __name__ == "__main__":
    if sys.argv[2] == "ray":
        import ray

        ray.init(address=sys.argv[3], log_to_driver=False)
    group = start_group(Faulty, role="faulty", size=2, backend=sys.argv[2])
    print(*group.process_ids, flush=True)
    if sys.argv[1] == "call":
        group.handle.stay(str(Path(__file__).parent))
    elif sys.argv[1] == "print":
        group.handle.say()
        group.close()
    elif sys.argv[1] == "sleep":
        sys.stdin.read()
"""


def controller(tmp_path: Path, how: str, *backend: str) -> tuple["subprocess.Popen[str]", tuple[int, ...]]:
    """Start a controller in a process of its own, and return it with the ids of its workers, once they run a call."""
    program = tmp_path / "controller.py"
    program.write_text(CONTROLLER, "utf-8")
    process = subprocess.Popen(
        [sys.executable, str(program), how, *(backend or (BACKEND,))],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    pids = tuple(int(word) for word in process.stdout.readline().split())
    while how == "call" and process.poll() is None and len(list(tmp_path.glob("rank *"))) < len(pids):
        time.sleep(0.05)
    return process, pids


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "signum"),
    [
        ("call", signal.SIGKILL),
        pytest.param("call", signal.SIGTERM, marks=pytest.mark.full),
        pytest.param("sleep", signal.SIGKILL, marks=pytest.mark.full),
    ],
)
def test_workers_end_with_a_controller_that_is_killed(tmp_path: Path, how: str, signum: int) -> None:
    process, pids = controller(tmp_path, how)
    with process:
        assert len(pids) == 2
        process.send_signal(signum)
        process.wait(TIMEOUT_S)
        assert_ended(pids)


@pytest.mark.full
def test_what_a_worker_prints_is_not_lost(tmp_path: Path) -> None:
    process, pids = controller(tmp_path, "print")
    with process:
        assert process.stdout is not None
        assert sorted(process.stdout) == ["rank 0\n", "rank 1\n"]
        assert_ended(pids)


@pytest.mark.full
def test_ctrl_c_ends_a_group_that_was_not_closed(tmp_path: Path) -> None:
    process, pids = controller(tmp_path, "call")
    with process:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=TIMEOUT_S)
        assert errors.count("KeyboardInterrupt") == 1, "the workers say nothing"
        assert_ended(pids)


@pytest.mark.full
def test_a_group_that_was_not_closed_ends_with_the_interpreter(tmp_path: Path) -> None:
    process, pids = controller(tmp_path, "leave")
    with process:
        _, errors = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, errors) == (0, "")
        assert_ended(pids)
