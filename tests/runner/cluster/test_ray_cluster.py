"""Ray starts the agents, one on each node, and nothing else: tests start Ray clusters of their own."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.fixtures.ray_nodes import RayCluster, start_ray_cluster
from tests.runner.cluster.test_cluster_runs import LIMIT_S
from tests.support.suite_runs import HARNESS, Done, environment, write_suite

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

SUITE = {
    "test_own_ray.py": (
        "import ray\n\n\n@ray.remote(num_cpus=0)\ndef one():\n    return 1\n\n\ndef test_a():\n"
        "    ray.init(num_cpus=1, include_dashboard=False)\n"
        "    assert len(ray.nodes()) == 1 and ray.get(one.remote()) == 1\n    ray.shutdown()\n"
    ),
    "test_environment.py": (
        "import os\ndef test_a():\n    assert 'RAY_ADDRESS' not in os.environ and 'RAY_JOB_ID' not in os.environ\n"
    ),
    "test_gpus.py": "import pytest\n@pytest.mark.gpus(2)\ndef test_a(gpu_ids): assert len(gpu_ids) == 2\n",
}


@pytest.fixture
def ray_cluster() -> Iterator[RayCluster]:
    """Two nodes, which this process does not join."""
    pytest.importorskip("ray")
    cluster = start_ray_cluster(2, num_cpus=2, connect=False, timeout_s=200)
    yield cluster
    cluster.close()


def test_each_node_of_a_ray_cluster_has_an_agent(tmp_path: Path, ray_cluster: RayCluster) -> None:
    write_suite(tmp_path, SUITE)
    options = ("--cluster", ray_cluster.address, "--gpus", "sim:2", "--timeout", "280", "--plain")
    done = subprocess.run(
        [*HARNESS, "run", *options],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    run = Done(tmp_path, done.returncode, done.stdout, done.stderr)
    assert run.code == 0, run.stdout + run.stderr
    run.assert_sound()
    assert set(run.outcomes.values()) == {"passed"}
    assert len(run.of("run_started")[0]["nodes"]) == 2
