"""Workers as actors of Ray: what a group promises, and how it ends. test_ray_actors runs these tests."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import torch

from rlcore.config import DeploymentSection
from rlcore.distributed import worker_group
from rlcore.distributed.placement import make_plan
from rlcore.distributed.ray_cluster import ray_nodes, reserve
from rlcore.distributed.worker_group import WorkerGroup, start_group
from rlcore.entrypoint import train
from rlcore.errors import (
    InvalidValueError,
    LevelError,
    ReplicaError,
    RlcoreError,
    StepError,
    WorkerDiedError,
    WorkerError,
)
from rlcore.log import NullRecorder
from rlcore.trainers import worker
from tests.rlcore.distributed.workers import Adder, Faulty, Gathering, OwnError, double
from tests.rlcore.training.recorded import config
from tests.support.corrupted_worker import CorruptedWorker

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 120.0
LARGE = 50_000
"""Elements of a tensor that Ray does not send in the message itself."""


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def adder(session: None) -> Iterator[WorkerGroup[Adder]]:
    with start_group(
        Adder, 5, role="adder", size=3, num_cpus=0.5, environment={"RLCORE_TEST": "1", "WORLD_SIZE": "100"}
    ) as group:
        yield group


@pytest.fixture(scope="module")
def faulty(session: None) -> Iterator[WorkerGroup[Faulty]]:
    with start_group(Faulty, role="faulty", size=2, num_cpus=0.5) as group:
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


def test_values_are_broadcast_and_listed(adder: WorkerGroup[Adder]) -> None:
    handle: Any = adder.handle
    assert handle.total({"a": torch.ones(LARGE), "b": torch.ones(3)}, scale=2.0) == [2.0 * (LARGE + 3)] * 3
    assert handle.total({"a": torch.ones(2)}) == [2.0] * 3, "the method's own default"
    assert handle.first(1) == 6
    assert handle.sizes(torch.zeros(7)) == [3, 2, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_tensors_travel_as_they_are(adder: WorkerGroup[Adder], dtype: torch.dtype) -> None:
    """As a view of a larger one, transposed, empty, with a gradient."""
    whole = torch.randn(4, 300).to(dtype)
    for values in (whole[1:3, ::2].t(), whole[:0], torch.tensor(1).to(dtype)):
        (found, *_) = adder.handle.echo({"a": [values]})
        assert (found["a"][0].dtype, found["a"][0].shape) == (dtype, values.shape)
        assert torch.equal(found["a"][0], values)
    (found, *_) = adder.handle.echo({"a": [torch.ones(3, requires_grad=True)]})
    assert found["a"][0].requires_grad


def test_rows_are_divided_padded_and_come_back_in_order(adder: WorkerGroup[Adder]) -> None:
    assert adder.handle.add(torch.arange(7)).tolist() == [5, 6, 7, 9, 10, 11, 13]
    assert adder.handle.add(values=torch.arange(3)).tolist() == [5, 7, 9]
    assert adder.handle.add_uneven(torch.zeros(5)).tolist() == [0, 0, 1, 1, 2]
    assert adder.handle.add_uneven(torch.zeros(2)).tolist() == [0, 1], "rank 2 has no row"
    assert adder.handle.lengths(["a", "bbb", "cc", "dddd", ""]) == [1, 3, 2, 4, 0]


def test_a_function_travels_beside_rows(adder: WorkerGroup[Adder]) -> None:
    for function in (double, lambda values: values * 2):
        assert adder.handle.apply(function, torch.arange(6)).tolist() == [0, 2, 4, 6, 8, 10]


def test_large_tensors_keep_their_bits_and_belong_to_the_worker(adder: WorkerGroup[Adder]) -> None:
    values = torch.randn(3 * LARGE)
    given = values.clone()
    result = adder.handle.add_uneven(values)
    parts = [values[begin : begin + LARGE] for begin in range(0, 3 * LARGE, LARGE)]
    assert torch.equal(result, torch.cat([part + rank for rank, part in enumerate(parts)]))
    assert torch.equal(values, given)


def test_calls_of_several_threads_reach_all_ranks_in_one_order(adder: WorkerGroup[Adder]) -> None:
    found: list[Any] = []

    def call(number: int) -> None:
        found.extend((number, adder.handle.add(torch.full((3,), number)).tolist()) for _ in range(5))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert all(result == [number + 5, number + 6, number + 7] for number, result in found)


def test_a_handle_names_its_methods(adder: WorkerGroup[Adder]) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'frist'"):
        adder.handle.frist(1)  # type: ignore[attr-defined]
    assert adder.handle.first.__doc__ == Adder.first.__doc__


def test_arguments_are_bound_as_the_method_takes_them(adder: WorkerGroup[Adder]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'vlaue'"):
        adder.handle.first(1, vlaue=1)  # type: ignore[call-arg]


def test_an_error_keeps_class_and_fields_and_names_the_worker(faulty: WorkerGroup[Faulty]) -> None:
    with pytest.raises(StepError) as caught:
        faulty.handle.raise_error("step", 1)
    error = caught.value
    assert (error.what, error.legal, error.remedy, error.phases) == (
        "update or sync: the sum is odd",
        "even",
        "add one",
        ("update", "sync"),
    )
    pid = faulty.process_ids[1]
    assert error.__notes__ == [f"in worker faulty, rank 1 of 2 (pid {pid}), method raise_error"]
    assert "workers.py" in str(error.__cause__), "its traceback"
    with pytest.raises(ValueError, match="not a number") as builtin:
        faulty.handle.raise_error("value", 0)
    assert builtin.value.__notes__[0].startswith("in worker faulty, rank 0 of 2")
    assert not isinstance(builtin.value, RlcoreError)


def test_after_an_error_the_group_still_works(faulty: WorkerGroup[Faulty]) -> None:
    with pytest.raises(StepError):
        faulty.handle.raise_error("step", 0)
    assert tuple(faulty.handle.pid()) == faulty.process_ids  # type: ignore[arg-type]


def test_errors_and_results_that_cannot_travel_are_described(faulty: WorkerGroup[Faulty]) -> None:
    with pytest.raises(WorkerError, match="OwnError: 3 of a") as caught:
        faulty.handle.raise_error("own", 1)
    assert (caught.value.role, caught.value.rank) == ("faulty", 1)
    assert "workers.py" in str(caught.value), "its traceback"
    with pytest.raises(Exception, match="of a function") as local:
        faulty.handle.raise_error("local", 1)
    assert local.value.__notes__[0].startswith("in worker faulty, rank 1 of 2")
    with pytest.raises(TypeError, match="pickle"):
        faulty.handle.result()
    assert OwnError("a", 3).args == ("3 of a",)


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
    with start_group(Gathering, role="ranks", size=2, num_cpus=0.5) as group:
        assert [each.tolist() for each in group.handle.gather(torch.arange(4))] == [[0, 1, 2, 3]] * 2
    assert_ended(group.process_ids)
    group = start_group(Gathering, role="ranks", size=2, num_cpus=0.5)
    with pytest.raises(StepError, match="rank 0 does not take part"), group:
        group.handle.half_gather()
    assert_ended(group.process_ids)


@pytest.mark.parametrize("how", ["kill", "exit", "later"])
def test_a_worker_that_dies_in_a_call_is_named_and_the_others_are_ended(how: str) -> None:
    group = start_group(Faulty, role="faulty", size=2, num_cpus=0.5)
    with pytest.raises(WorkerDiedError, match="method die") as caught, group:
        group.handle.die(how, 1)
    assert (caught.value.role, caught.value.rank, caught.value.pid) == ("faulty", 1, group.process_ids[1])
    assert_ended(group.process_ids)


def test_a_worker_that_dies_between_calls_is_noticed_and_every_call_raises() -> None:
    with start_group(Faulty, role="faulty", size=2, num_cpus=0.5) as group:
        os.kill(group.process_ids[0], signal.SIGKILL)
        for ask in (group.handle.pid, group.handle.pid, group.close):
            with pytest.raises(WorkerDiedError, match="rank 0 of 2"):
                ask()
    assert_ended(group.process_ids)
    with pytest.raises(WorkerError, match="rank 0 of 2"):
        group.handle.pid()


def test_a_closed_group_is_not_called_and_its_workers_were_closed(tmp_path: Path) -> None:
    with start_group(Adder, role="adder", size=2, num_cpus=0.5) as group:
        group.handle.note_close(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
    assert_ended(group.process_ids)
    with pytest.raises(WorkerError, match="its group is closed"):
        group.handle.first(1)
    group.close()


@pytest.mark.parametrize("how", ["raise", "die"])
def test_a_constructor_that_fails_leaves_nothing(how: str) -> None:
    expected = StepError if how == "raise" else WorkerDiedError
    with pytest.raises(expected) as caught:
        start_group(Faulty, how, role="faulty", size=2, num_cpus=0.5)
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "faulty, rank 1 of 2" in text
    assert "method __init__" in text


def test_a_group_without_resources_is_given_up() -> None:
    with pytest.raises(WorkerError, match=r"not constructed within 5\.0 s") as caught:
        start_group(Faulty, role="faulty", size=1, num_cpus=64, start_timeout_s=5.0)
    assert "resources for 1 actors" in caught.value.remedy


def test_ranks_run_in_a_reservation() -> None:
    plan = make_plan(DeploymentSection(num_ranks=2, cpus_per_rank=0.5), ["policy"], ray_nodes())
    with reserve(plan, timeout_s=TIMEOUT_S) as reservation:
        with start_group(Adder, role="adder", size=2, reservation=reservation) as adder:
            found: Any = adder.handle.where(["LOCAL_RANK", "LOCAL_WORLD_SIZE"])
            assert [tuple(each.values()) for each in found] == [("0", "2"), ("1", "2")]
        with pytest.raises(InvalidValueError, match="group adder of 3 ranks"):
            start_group(Adder, role="adder", size=3, reservation=reservation)


def test_a_random_kill_while_calls_run_is_named_and_leaves_nothing(seed: str) -> None:
    draw = random.Random(seed)
    group = start_group(Adder, role="adder", size=3, num_cpus=0.5)
    victim, at_call, num_done = draw.randrange(3), draw.randrange(20), 0
    with pytest.raises(WorkerDiedError) as caught, group:
        while True:
            timer = threading.Timer(draw.random() / 50, os.kill, (group.process_ids[victim], signal.SIGKILL))
            if num_done == at_call:
                timer.start()
            group.handle.add(torch.ones(draw.choice([3, 6, 99_999])))
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
group = start_group(Faulty, role="faulty", size=2)
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

    monkeypatch.setattr(worker_group, "start_group", on_another_node)
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
