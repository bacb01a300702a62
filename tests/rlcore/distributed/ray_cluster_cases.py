"""Plans on a Ray cluster of two nodes of four simulated GPUs. test_ray_placement runs these tests."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, ClassVar, cast

import psutil
import pytest
import ray
import torch

from harness.fixtures.ray_nodes import RayCluster, start_ray_cluster
from rlcore.config import DeploymentSection
from rlcore.determinism import worker_environment
from rlcore.distributed import ray_cluster
from rlcore.distributed.dispatch import Collect, Entry, Table
from rlcore.distributed.placement import Plan, make_plan
from rlcore.distributed.process_report import ProcessName, ProcessReport, check_reports, report_of
from rlcore.distributed.ray_cluster import ray_nodes, reserve
from rlcore.distributed.worker import Worker
from rlcore.distributed.worker_group import start_group
from rlcore.errors import LevelError, PlacementError

LEVEL = "deterministic"
TIMEOUT_S = 120.0
NOT_NICE = {"RAY_worker_niceness": "0"}
"""Ray's workers have niceness 15: on a busy machine they would start in minutes."""


class Located(Worker):
    """A worker that says where it is, and reports its process."""

    dispatch_table: ClassVar[Table] = {
        "report": Entry(collect=Collect.LIST),
        "locate": Entry({}, collect=Collect.LIST),
    }

    def report(self) -> ProcessReport:
        torch.use_deterministic_algorithms(True)
        return report_of(ProcessName(self.context.role, (self.context.role,), self.context.rank))

    def locate(self) -> tuple[str, int, list[int]]:
        gpus = [int(each) for each in ray.get_gpu_ids()]
        return ray.get_runtime_context().get_node_id(), int(os.environ["LOCAL_RANK"]), gpus


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    started = start_ray_cluster(
        2, num_cpus=4, pretend_gpus=4, env=NOT_NICE, timeout_s=TIMEOUT_S, include_dashboard=False, log_to_driver=False
    )
    yield started
    started.close()


@pytest.fixture(autouse=True)
def _all_is_given_back(cluster: RayCluster) -> Iterator[None]:
    yield
    until_free(4, 4)


def until_free(*gpus: float) -> None:
    """Wait until the nodes have so many free GPUs: nodes report some time after resources are given back."""
    from ray._private import state

    books: Any = state
    found: list[float] = []
    for _ in range(600):
        free = books.available_resources_per_node()
        found = sorted(free.get(node.node_id, {}).get("GPU", 0.0) for node in ray_nodes())
        if found == sorted(gpus):
            return
        time.sleep(0.1)
    pytest.fail(f"after a minute: {found}")


def plan_of(num_ranks: int, *, num_nodes: int | None = None) -> Plan:
    return make_plan(
        DeploymentSection(num_ranks=num_ranks, num_nodes=num_nodes, gpus_per_rank=1), ["actor"], ray_nodes()
    )


def test_nodes_have_names_and_resources_of_their_own() -> None:
    nodes = ray_nodes()
    assert [(node.num_gpus, node.num_cpus) for node in nodes] == [(4, 4), (4, 4)]
    assert len({node.name for node in nodes}) == 2
    with pytest.raises(PlacementError) as caught:
        plan_of(8, num_nodes=1)
    assert all(f"{node.name}: 4 GPUs, 4 CPUs" in caught.value.legal for node in nodes)


@pytest.mark.parametrize(("num_ranks", "num_nodes"), [(4, 2), (4, 1), (2, None), (8, None)])
def test_ranks_run_on_as_many_nodes_with_gpus_of_their_own_and_the_environment(
    num_ranks: int, num_nodes: int | None
) -> None:
    plan = plan_of(num_ranks, num_nodes=num_nodes)
    environment = worker_environment(LEVEL, {**os.environ, "NCCL_ALGO": "Tree"})
    with (
        reserve(plan, timeout_s=TIMEOUT_S) as reservation,
        start_group(Located, role="policy", size=num_ranks, reservation=reservation, environment=environment) as group,
    ):
        places = cast(list[Any], group.handle.locate())
        assert [local_rank for _, local_rank, _ in places] == [*range(plan.share)] * plan.num_nodes
        nodes = [node for node, _, _ in places]
        assert nodes == [node for node in dict.fromkeys(nodes) for _ in range(plan.share)], "consecutive on a node"
        assert len({*nodes}) == plan.num_nodes
        assert len({(node, *gpus) for node, _, gpus in places}) == num_ranks
        reports = cast(list[Any], group.handle.report())
        check_reports(reports, LEVEL)
        assert {report.values["NCCL_ALGO"] for report in reports} == {"Tree"}
    wait_until_ended(group.process_ids)


def wait_until_ended(process_ids: tuple[int, ...]) -> None:
    """Wait a minute at most for processes to end: the block of a reservation ends its actors."""
    for _ in range(600):
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in process_ids):
            return
        time.sleep(0.1)
    pytest.fail(f"{process_ids} are still there")


def test_an_actor_without_the_levels_environment_refuses_to_start() -> None:
    environment = worker_environment(LEVEL, os.environ)
    with reserve(plan_of(1), timeout_s=TIMEOUT_S) as one, reserve(plan_of(1), timeout_s=TIMEOUT_S) as other:
        groups = (
            start_group(Located, role="role-x", reservation=one, environment=environment),
            start_group(Located, role="role-y", reservation=other),
        )
        reports = [report for group in groups for report in cast(list[Any], group.handle.report())]
        with pytest.raises(LevelError) as caught:
            check_reports(reports, LEVEL)
    assert "process role-y, role role-y, rank 0" in caught.value.what
    assert "CAUSAL_CONV1D_DETERMINISTIC is not set" in caught.value.what
    assert "more" in caught.value.what


def test_a_failure_in_the_block_gives_everything_back() -> None:
    with pytest.raises(ZeroDivisionError), reserve(plan_of(8), timeout_s=TIMEOUT_S):
        until_free(0, 0)
        raise ZeroDivisionError


def test_a_reservation_that_must_wait_says_for_what_and_gives_up() -> None:
    with reserve(plan_of(6, num_nodes=2), timeout_s=TIMEOUT_S):
        until_free(1, 1)
        with pytest.raises(PlacementError) as caught, reserve(plan_of(4, num_nodes=2), timeout_s=1.0):
            pytest.fail("it was reserved")
    assert "not reserved within 1 s: 2 GPUs and 2 CPUs on 2 nodes: " in caught.value.what
    assert caught.value.what.count("has 1 of 4 GPUs and 1 of 4 CPUs free") == 2
    assert "; held by ranks of pid" in caught.value.what


def test_a_reservation_begins_when_another_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "REPORT_S", 0.0)
    first = reserve(plan_of(8), timeout_s=TIMEOUT_S)
    first.__enter__()
    said = []

    def end_first(text: str) -> None:
        said.append(text)
        first.__exit__(None, None, None)

    with reserve(plan_of(4), timeout_s=TIMEOUT_S, say=end_first) as reservation:
        assert reservation.plan.num_nodes == 1
    assert said[0].startswith("waiting for 4 GPUs and 4 CPUs on 1 node: ")


def test_ctrl_c_while_waiting_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "REPORT_S", 0.0)
    with reserve(plan_of(6), timeout_s=TIMEOUT_S):
        waiting = reserve(plan_of(8), timeout_s=TIMEOUT_S, say=lambda _: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt), waiting:
            pytest.fail("it was reserved")
        until_free(1, 1)


KILLED = """
import os, signal, sys
import ray
from rlcore.config import DeploymentSection
from rlcore.distributed.placement import make_plan
from rlcore.distributed.ray_cluster import ray_nodes, reserve
ray.init(address=sys.argv[1], log_to_driver=False)
plan = make_plan(DeploymentSection(num_ranks=8, gpus_per_rank=1), ["actor"], ray_nodes())
with reserve(plan, timeout_s=100):
    print("held", flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_driver_that_is_killed_holds_nothing(cluster: RayCluster) -> None:
    command = [sys.executable, "-c", KILLED, cluster.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        assert any(line.strip() == "held" for line in driver.stdout)
        until_free(0, 0)
        driver.stdin.close()
        assert driver.wait() == -signal.SIGKILL
