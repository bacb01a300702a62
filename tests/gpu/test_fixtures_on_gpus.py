"""The fixtures on real GPUs; one command on a machine that has some: `rlharness run tests/gpu --gpus auto`."""

import os

import pytest

from harness.fixtures import StartRanks, StartRayCluster

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible")


def summed_on_the_card() -> tuple[int, str]:
    total = torch.full((4,), dist.get_rank() + 1, device="cuda")
    dist.all_reduce(total)
    return int(total[0]), str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


def card_of_the_worker() -> tuple[str, str]:
    return os.environ["CUDA_VISIBLE_DEVICES"], str(torch.cuda.get_device_properties(0).uuid)


@pytest.mark.gpus(1)
def test_one_rank_reduces_by_nccl(distributed: StartRanks, gpu_ids: tuple[str, ...]) -> None:
    group = distributed(1, env={"CUDA_VISIBLE_DEVICES": gpu_ids[0]})
    assert group.backend == "cpu:gloo,cuda:nccl"
    assert group.run(summed_on_the_card)[0][0] == 1


@pytest.mark.gpus(1)
def test_a_ray_worker_is_given_the_card_of_the_lease(ray_cluster: StartRayCluster, gpu_ids: tuple[str, ...]) -> None:
    ray = pytest.importorskip("ray")
    ray_cluster(num_gpus=1)
    visible, _ = ray.get(ray.remote(num_gpus=1)(card_of_the_worker).remote(), timeout=120)
    assert visible == gpu_ids[0]
