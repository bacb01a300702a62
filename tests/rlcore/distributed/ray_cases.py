"""Workers as actors of Ray: as every backend, and how they end. test_ray_actors runs these tests."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest
import ray
import torch
from ray.util import placement_group, remove_placement_group

from rlcore.distributed.backends.ray_actors import RayActors
from rlcore.distributed.futures import Future
from rlcore.distributed.worker import WorkerSpec
from rlcore.distributed.worker_group import WorkerGroup, start_colocated, start_group
from rlcore.entrypoint import train
from rlcore.errors import InvalidValueError, LevelError, ReplicaError, StepError, WorkerDiedError, WorkerError
from rlcore.log import NullRecorder
from rlcore.trainers import deployment, worker
from tests.rlcore.distributed.conformance import *  # noqa: F403  # the tests of every backend
from tests.rlcore.distributed.conformance import AdderView, in_other_processes_an_error_that_cannot_travel_is_described
from tests.rlcore.distributed.workers import Adder, Faulty, Ranks
from tests.rlcore.training.recorded import config
from tests.support.corrupted_worker import CorruptedWorker

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 120.0
BACKEND = RayActors(num_cpus=0.5)


class FaultyView(Protocol):
    """A Faulty as its caller sees it."""

    def wait(self) -> Future[list[None]]: ...
    def pid(self) -> list[int]: ...


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def adder(session: None) -> Iterator[WorkerGroup[Adder]]:
    specs = [WorkerSpec("adder", Adder, (5,)), WorkerSpec("other", Adder, (100,))]
    with start_colocated(specs, size=3, backend=BACKEND, environment={"RLCORE_TEST": "1"})["adder"] as group:
        yield group


@pytest.fixture(scope="module")
def faulty(session: None) -> Iterator[WorkerGroup[Faulty]]:
    with start_group(Faulty, role="faulty", size=2, backend=BACKEND) as group:
        yield group


def assert_ended(pids: tuple[int, ...]) -> None:
    """Wait until the processes have ended; a zombie is one that its new parent has not reaped."""
    running = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            running += [] if process.status() == psutil.STATUS_ZOMBIE else [process]
    _, alive = psutil.wait_procs(running, timeout=TIMEOUT_S)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


def test_errors_and_results_that_cannot_travel_are_described(faulty: WorkerGroup[Faulty]) -> None:
    in_other_processes_an_error_that_cannot_travel_is_described(faulty)


def test_an_argument_belongs_to_the_worker(adder: WorkerGroup[Adder]) -> None:
    for size in (3, 50_000):
        values = torch.zeros(size)
        result: Any = adder.handle.change(values)
        assert (result, float(values[0])) == ([1.0, 1.0, 1.0], 0.0)


def test_each_process_has_its_rank_and_the_environment_from_its_start(adder: WorkerGroup[Adder]) -> None:
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "RLCORE_TEST"]
    found: Any = adder.handle.where(names)
    assert found == [dict(zip(names, (str(rank), str(rank), "3", "3", "1"), strict=True)) for rank in range(3)]


def test_ranks_find_each_other_and_one_that_raises_does_not_hang_the_caller() -> None:
    with start_group(Ranks, role="ranks", size=2, backend=BACKEND) as group:
        assert [each.tolist() for each in group.handle.gather(torch.arange(4))] == [[0, 1, 2, 3]] * 2
    assert_ended(group.process_ids)
    group = start_group(Ranks, role="ranks", size=2, backend=BACKEND)
    with pytest.raises(StepError, match="rank 0 does not take part"), group:
        group.handle.half_gather()
    assert_ended(group.process_ids)


@pytest.mark.parametrize("how", ["kill", "exit", "later"])
def test_a_worker_that_dies_in_a_call_is_named_and_the_others_are_ended(how: str) -> None:
    group = start_group(Faulty, role="faulty", size=2, backend=BACKEND)
    with pytest.raises(WorkerDiedError, match="method die") as caught, group:
        group.handle.die(how, 1)
    assert (caught.value.role, caught.value.rank, caught.value.pid) == ("faulty", 1, group.process_ids[1])
    assert_ended(group.process_ids)


def test_a_worker_that_dies_between_calls_is_noticed_and_every_call_raises() -> None:
    with start_group(Faulty, role="faulty", size=2, backend=BACKEND) as group:
        caller: FaultyView = group.view(FaultyView)
        future = caller.wait()
        os.kill(group.process_ids[0], signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="rank 0 of 2"):
            future.result()
        assert_ended(group.process_ids)
        for ask in (group.check, caller.pid, group.close):
            with pytest.raises(WorkerDiedError, match="rank 0 of 2"):
                ask()


def test_a_death_shows_in_check() -> None:
    group = start_group(Faulty, role="faulty", size=2, backend=BACKEND)
    with pytest.raises(WorkerDiedError, match="rank 1 of 2"), group:
        os.kill(group.process_ids[1], signal.SIGKILL)
        while True:
            group.check()
    assert_ended(group.process_ids)


@pytest.mark.parametrize("how", ["raise", "die"])
def test_a_constructor_that_fails_leaves_nothing(how: str) -> None:
    expected = StepError if how == "raise" else WorkerDiedError
    with pytest.raises(expected) as caught:
        start_group(Faulty, how, role="faulty", size=2, backend=BACKEND)
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "faulty, rank 1 of 2" in text
    assert "method __init__" in text


def test_a_group_without_resources_is_given_up() -> None:
    backend = RayActors(num_cpus=64, start_timeout_s=5.0)
    with pytest.raises(WorkerError, match=r"not constructed within 5\.0 s") as caught:
        start_group(Faulty, role="faulty", size=1, backend=backend)
    assert "resources for 1 actors" in caught.value.remedy


def test_ranks_run_in_reserved_bundles() -> None:
    group = placement_group([{"CPU": 0.5}] * 2)
    ray.get(group.ready())
    try:
        backend = replace(BACKEND, placement_group=group)
        with start_group(Adder, role="adder", size=2, backend=backend) as adder:
            found: Any = adder.handle.where(["LOCAL_RANK", "LOCAL_WORLD_SIZE"])
            assert [tuple(each.values()) for each in found] == [("0", "2"), ("1", "2")]
        with pytest.raises(InvalidValueError, match="2 reserved bundles for group adder"):
            start_group(Adder, role="adder", size=3, backend=backend)
    finally:
        remove_placement_group(group)


def test_a_random_kill_while_calls_run_is_named_and_leaves_nothing(seed: str) -> None:
    draw = random.Random(seed)
    group = start_group(Adder, role="adder", size=3, backend=BACKEND)
    victim, at_call, num_done = draw.randrange(3), draw.randrange(20), 0
    caller: AdderView = group.view(AdderView)
    with pytest.raises(WorkerDiedError) as caught, group:
        while True:
            future = caller.later(torch.ones(draw.choice([3, 6, 99_999])))
            if num_done == at_call:
                os.kill(group.process_ids[victim], signal.SIGKILL)
            future.result()
            assert group.handle.first(1) == 1
            num_done += 1
    assert (caught.value.rank, caught.value.pid) == (victim, group.process_ids[victim])
    assert num_done >= at_call
    assert_ended(group.process_ids)


CONTROLLER = """
import sys
from pathlib import Path

import ray

from rlcore.distributed.worker_group import start_group
from tests.rlcore.distributed.workers import Faulty

ray.init(address=sys.argv[1], log_to_driver=False)
group = start_group(Faulty, role="faulty", size=2, backend="ray")
print(*group.process_ids, flush=True)
group.handle.stay(str(Path(__file__).parent))
"""


def controller(tmp_path: Path) -> tuple["subprocess.Popen[str]", tuple[int, ...]]:
    """Start a controller in a process of its own, and return it with the ids of its workers, once they run a call."""
    program = tmp_path / "controller.py"
    program.write_text(CONTROLLER, "utf-8")
    process = subprocess.Popen(
        [sys.executable, str(program), ray.get_runtime_context().gcs_address],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    pids = tuple(int(word) for word in process.stdout.readline().split())
    while process.poll() is None and len(list(tmp_path.glob("rank *"))) < len(pids):
        time.sleep(0.05)
    return process, pids


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_a_controller_that_a_signal_ends(tmp_path: Path, signum: int) -> None:
    process, pids = controller(tmp_path)
    with process:
        assert len(pids) == 2
        process.send_signal(signum)
        _, errors = process.communicate(timeout=TIMEOUT_S)
        assert ("KeyboardInterrupt" in errors) is (signum == signal.SIGINT)
        assert_ended(pids)


# -------------------------------------------------------------------------------------------------------------- runs


def test_a_process_that_differs_ends_the_run_before_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_another_node(*args: Any, environment: dict[str, str], **kwargs: Any) -> Any:
        return start_group(*args, environment={**environment, "NVTE_FLASH_ATTN": "0"}, **kwargs)

    monkeypatch.setattr(deployment, "start_group", on_another_node)
    of = config("grpo", deployment={"backend": "ray", "num_ranks": 1}, training={"num_steps": 1})
    with pytest.raises(LevelError) as caught:
        train(of, level="invariant", directory=tmp_path, recorder=NullRecorder())
    assert "process models, role policy" in caught.value.what
    assert "rank 0" in caught.value.what
    assert "NVTE_FLASH_ATTN is 0" in caught.value.what
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_run_ends_with_the_rank_whose_weights_were_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "ModelWorker", CorruptedWorker)
    of = config("grpo", deployment={"backend": "ray", "num_ranks": 2, "sentinel_every": 1}, training={"num_steps": 4})
    with pytest.raises(ReplicaError, match=r"rank 0 on .*, rank 1 on .*, update 2, before its weights moved") as caught:
        train(of, level="invariant", directory=tmp_path / "watched", recorder=NullRecorder())
    assert caught.value.ranks == (0, 1)
