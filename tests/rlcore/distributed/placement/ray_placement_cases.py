"""Plans on a Ray cluster of two nodes of four simulated GPUs. test_ray_placement runs these tests."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, cast

import psutil
import pytest
import ray
import torch
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from harness.fixtures.ray_nodes import RayCluster, start_ray_cluster
from rlcore.determinism import worker_environment
from rlcore.distributed.dispatch import Collect, Entry, Table
from rlcore.distributed.placement import ray_reservation
from rlcore.distributed.placement.plan import Plan, Pool, Role, make_plan
from rlcore.distributed.placement.ray_cluster import ray_nodes, usages
from rlcore.distributed.placement.ray_reservation import Reservation, reserve
from rlcore.distributed.placement.waiting import Usage
from rlcore.distributed.process_report import ProcessName, ProcessReport, check_reports, report_of
from rlcore.distributed.worker import Worker
from rlcore.distributed.worker_group import WorkerGroup, start_group
from rlcore.errors import InvalidValueError, LevelError, PlacementError

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
        return ray.get_runtime_context().get_node_id(), self.context.local_rank, gpus


class Holder:
    """An actor that holds resources."""


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
    until(lambda found: {(each.free_gpus, each.free_cpus, each.holders) for each in found} == {(4, 4, ())})


def until(holds: Callable[[list[Usage]], bool]) -> None:
    """Wait until the nodes' usages are as they should be: nodes report some time after resources are given back."""
    for _ in range(600):
        if holds(list(usages().values())):
            return
        time.sleep(0.1)
    pytest.fail(f"after a minute: {usages()}")


def plan_of(num_slots: int, *, num_nodes: int | None = None) -> Plan:
    pool = Pool(name="train", num_slots=num_slots, num_nodes=num_nodes)
    return make_plan([pool], [Role(name="actor", pool="train")], ray_nodes())


def start(
    reservation: Reservation, process: str, environment: Mapping[str, str] = MappingProxyType({})
) -> WorkerGroup[Located]:
    (found,) = [each for each in reservation.plan.processes if each.name == process]
    size = len(reservation.plan.slots_of(found.pool))
    backend = reservation.backend(process, start_timeout_s=600.0)
    return start_group(Located, role=process, size=size, backend=backend, environment=environment)


def test_nodes_have_names_and_resources_of_their_own() -> None:
    nodes = ray_nodes()
    assert [(node.num_gpus, node.num_cpus) for node in nodes] == [(4, 4), (4, 4)]
    assert len({node.name for node in nodes}) == 2
    with pytest.raises(PlacementError) as caught:
        plan_of(8, num_nodes=1)
    assert all(f"{node.name}: 4 GPUs, 4 CPUs" in caught.value.legal for node in nodes)


def test_ranks_run_where_the_plan_has_them_with_the_environment_of_the_level() -> None:
    pools = Pool(name="train", num_slots=4, num_nodes=2), Pool(name="shared", num_slots=1)
    roles = (
        Role(name="actor", pool="train", process="trainer"),
        Role(name="reference", pool="train", process="trainer"),
        Role(name="reward", pool="shared", gpus=0.5),
        Role(name="rollout", pool="shared", gpus=0.5),
    )
    plan = make_plan(pools, roles, ray_nodes())
    environment = worker_environment(LEVEL, {**os.environ, "NCCL_ALGO": "Tree"})
    ids = {node.name: node.node_id for node in plan.nodes}
    with reserve(plan, timeout_s=TIMEOUT_S) as reservation:
        groups = [start(reservation, process.name, environment) for process in plan.processes]
        places = {group.role: cast(list[Any], group.handle.locate()) for group in groups}
        for process in plan.processes:
            slots = plan.slots_of(process.pool)
            assert [place[:2] for place in places[process.name]] == [(ids[s.node], s.local_rank) for s in slots]
        assert len({(node, *gpus) for node, _, gpus in places["trainer"]}) == 4, "slots have GPUs of their own"
        assert places["reward"] == places["rollout"], "both processes of a slot share its GPU"
        reports = [report for group in groups for report in cast(list[Any], group.handle.report())]
        check_reports(reports, LEVEL, environment)
        assert {report.values["NCCL_ALGO"] for report in reports} == {"Tree"}
        with pytest.raises(InvalidValueError) as caught:
            reservation.backend("trainr")
        assert caught.value.remedy == "did you mean 'trainer'?"
        kept = groups[0].process_ids
    wait_until_ended(kept)


def wait_until_ended(process_ids: tuple[int, ...]) -> None:
    """Wait a minute at most for processes to end: the block of a reservation ends its actors."""
    for _ in range(600):
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in process_ids):
            return
        time.sleep(0.1)
    pytest.fail(f"{process_ids} are still there")


def test_an_actor_without_the_levels_environment_refuses_to_start() -> None:
    environment = worker_environment(LEVEL, os.environ)
    pools = [Pool(name=name, num_slots=1) for name in ("x", "y")]
    plan = make_plan(pools, [Role(name=f"role-{pool.name}", pool=pool.name) for pool in pools], ray_nodes())
    with reserve(plan, timeout_s=TIMEOUT_S) as reservation:
        groups = start(reservation, "role-x", environment), start(reservation, "role-y")
        reports = [report for group in groups for report in cast(list[Any], group.handle.report())]
        with pytest.raises(LevelError) as caught:
            check_reports(reports, LEVEL, environment)
    assert "process role-y, role role-y, rank 0" in caught.value.what
    assert "CAUSAL_CONV1D_DETERMINISTIC is not set" in caught.value.what
    assert "more" in caught.value.what


def test_a_failure_in_the_block_gives_everything_back() -> None:
    with pytest.raises(ZeroDivisionError), reserve(plan_of(8), timeout_s=TIMEOUT_S):
        until(lambda found: {each.free_gpus for each in found} == {0})
        raise ZeroDivisionError


def test_a_reservation_that_must_wait_says_for_what_and_gives_up() -> None:
    with reserve(plan_of(6, num_nodes=2), timeout_s=TIMEOUT_S) as first:
        scheduling = PlacementGroupSchedulingStrategy(first.groups["train"], 0)
        actor = ray.remote(Holder).options(num_cpus=1, scheduling_strategy=scheduling).remote()
        handle: Any = actor
        ray.get(handle.__ray_ready__.remote())
        small = Pool(name="small", num_slots=1)
        both = make_plan(
            [small, Pool(name="serve", num_slots=4, num_nodes=2)],
            [Role(name="reward", pool="small"), Role(name="rollout", pool="serve")],
            ray_nodes(),
        )
        with pytest.raises(PlacementError) as caught, reserve(both, timeout_s=1.0):
            pytest.fail("it was reserved")
        until(lambda found: {each.free_gpus for each in found} == {1})  # its small pool, which it had, was given back
    assert "not reserved within 1 s: pool serve: bundles 0-1 need 2 GPUs and 2 CPUs on" in caught.value.what
    assert "which has 0 of 4 GPUs and 0 of 4 CPUs free; held by placement group 'pool " in caught.value.what
    assert "(3 GPUs, 3 CPUs)" in caught.value.what
    assert "actor Holder (pid" in caught.value.what


def test_a_reservation_begins_when_another_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_reservation, "REPORT_S", 0.0)
    first = reserve(plan_of(8), timeout_s=TIMEOUT_S)
    first.__enter__()
    said = []

    def end_first(text: str) -> None:
        said.append(text)
        first.__exit__(None, None, None)

    with reserve(plan_of(4), timeout_s=TIMEOUT_S, say=end_first) as reservation:
        assert reservation.backend("actor").num_gpus == 1
    assert said[0].startswith("waiting for pool train: bundles 0-3 need 4 GPUs and 4 CPUs on ")


def test_ctrl_c_while_waiting_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_reservation, "REPORT_S", 0.0)
    with reserve(plan_of(6), timeout_s=TIMEOUT_S):
        waiting = reserve(plan_of(8), timeout_s=TIMEOUT_S, say=lambda _: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt), waiting:
            pytest.fail("it was reserved")
        until(lambda found: sum(each.free_gpus for each in found) == 2)


KILLED = """
import os, signal, sys
import ray
from rlcore.distributed.placement.plan import Pool, Role, make_plan
from rlcore.distributed.placement.ray_cluster import ray_nodes
from rlcore.distributed.placement.ray_reservation import reserve
ray.init(address=sys.argv[1], log_to_driver=False)
plan = make_plan([Pool(name="train", num_slots=8)], [Role(name="actor", pool="train")], ray_nodes())
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
        until(lambda found: sum(each.free_gpus for each in found) == 0)
        driver.stdin.close()
        assert driver.wait() == -signal.SIGKILL


def test_a_node_that_leaves_ends_the_wait(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_reservation, "REPORT_S", 0.0)
    before = {node.node_id for node in ray_nodes()}
    index = cluster.add_node()
    plan = plan_of(12)
    (added,) = [node for node in plan.nodes if node.node_id not in before]
    on_added = make_plan([Pool(name="other", num_slots=4)], [Role(name="other", pool="other")], [added])
    removals = iter([lambda: cluster.remove_node(index)])
    waiting = reserve(plan, timeout_s=TIMEOUT_S, say=lambda _: next(removals, lambda: None)())
    with reserve(on_added, timeout_s=TIMEOUT_S), pytest.raises(PlacementError) as caught, waiting:
        pytest.fail("it was reserved")
    assert caught.value.what == f"pool train: node {added.name} has left the cluster"
