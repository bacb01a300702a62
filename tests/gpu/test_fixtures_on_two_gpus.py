"""Ranks on two real GPUs: `rlharness run tests/gpu --gpus auto` runs this file where there are two."""

from typing import Any

import pytest

from harness.fixtures import StartRanks

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices are visible")


def summed_on_the_card() -> tuple[int, str]:
    total = torch.full((4,), dist.get_rank() + 1, device="cuda")
    dist.all_reduce(total)
    return int(total[0]), str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


@pytest.mark.gpus(2)
def test_every_rank_reduces_on_a_card_of_its_own(distributed: StartRanks, gpu_ids: tuple[str, ...]) -> None:
    results: Any = distributed(2, env={"CUDA_VISIBLE_DEVICES": ",".join(gpu_ids)}).run(summed_on_the_card)
    assert [total for total, _ in results] == [3, 3]
    assert len({gpu for _, gpu in results}) == 2
