"""Starts Ray and does not stop it: PASSED, and no process of it lives on."""

import os

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray")


def test_starts_ray() -> None:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    assert ray.get(ray.put(7)) == 7
