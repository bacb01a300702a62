"""Needs one GPU with at least 40 GB."""

import time

import pytest


@pytest.mark.gpus(1, memory_gb=40)
def test_save_and_load(gpu_ids: tuple[str, ...]) -> None:
    time.sleep(1.0)
    assert len(gpu_ids) == 1
