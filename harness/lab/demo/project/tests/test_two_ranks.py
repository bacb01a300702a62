"""Needs two GPUs at once: the runner starts this file when two are free."""

import time

import pytest


@pytest.mark.gpus(2)
def test_ranks_agree(gpu_ids: tuple[str, ...]) -> None:
    time.sleep(2.0)
    assert len(gpu_ids) == 2
