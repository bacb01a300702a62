"""Placement with a real GPU: a plan on Ray whose worker has the GPU, and an idle role that leaves it.

rlharness run tests/gpu/test_placement_on_gpus.py --gpus auto
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, cast

import pytest
import torch
from torch import nn

from harness.bits.tensor_digests import tensor_digests
from harness.fixtures import StartRayCluster
from rlcore.config import DeploymentSection, OptimizerSection, RuntimeSection
from rlcore.determinism import worker_environment
from rlcore.distributed.dispatch import Collect, Entry, Table
from rlcore.distributed.placement import make_plan
from rlcore.distributed.process_report import GPU, ProcessName, ProcessReport, check_reports, report_of
from rlcore.distributed.worker import Worker
from rlcore.trainers.offload import OffloadedState
from rlcore.trainers.trainer import Trainer

LEVEL = "deterministic"
pytestmark = [
    pytest.mark.gpus(1),
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]


class OnGpu(Worker):
    """A worker that multiplies on its GPU."""

    dispatch_table: ClassVar[Table] = {"report": Entry(collect=Collect.LIST)}

    def report(self) -> ProcessReport:
        assert torch.cuda.device_count() == 1
        product = torch.eye(64, device="cuda") @ torch.ones(64, 64, device="cuda")
        assert product.sum().item() == 64 * 64
        torch.use_deterministic_algorithms(True)
        return report_of(ProcessName("models", ("models",), self.context.rank))


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_a_worker_of_a_plan_has_the_gpu_of_its_slot(ray_cluster: StartRayCluster) -> None:
    from rlcore.distributed.ray_cluster import ray_nodes, reserve
    from rlcore.distributed.worker_group import start_group

    ray_cluster(num_gpus=1, timeout_s=120.0)
    plan = make_plan(DeploymentSection(gpus_per_rank=1), ["models"], ray_nodes())
    environment = worker_environment(LEVEL, os.environ)
    with (
        reserve(plan, timeout_s=120.0) as reservation,
        start_group(OnGpu, role="models", reservation=reservation, environment=environment) as group,
    ):
        reports = cast(list[ProcessReport], group.handle.report())
    check_reports(reports, LEVEL)
    assert reports[0].values[GPU] == torch.cuda.get_device_name()


@pytest.mark.parametrize("is_mapped", [False, True], ids=["host memory", "files"])
def test_an_idle_role_leaves_the_gpu_and_comes_back_with_every_bit(tmp_path: Path, is_mapped: bool) -> None:
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
    trainer = Trainer("policy", model, 1e-3, section=OptimizerSection(learning_rate=1e-3), runtime=RuntimeSection())
    trainer.gradients = [torch.randn_like(parameter) for parameter in model.parameters()]
    trainer.optimizer_step(learning_rate=1e-3, max_norm=None)
    before = tensor_digests(trainer.state())
    held = torch.cuda.memory_allocated()
    state = OffloadedState(model, trainer.masters, trainer.optimizer, trainer.state, tmp_path if is_mapped else None)
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert held - torch.cuda.memory_allocated() > 3 * 4 * 2 * 512 * 2048
    state.wake()
    assert {parameter.device.type for parameter in model.parameters()} == {"cuda"}
    assert tensor_digests(trainer.state()) == before
