"""Needs one GPU."""

import time

import pytest


@pytest.mark.gpus(1)
def test_loss_falls(gpu_ids: tuple[str, ...]) -> None:
    time.sleep(1.5)
    assert len(gpu_ids) == 1  # the runner leased this GPU to this file alone
