"""`--gpus` in plain pytest and under pytest-xdist: who has which GPUs, what is skipped, refused and returned."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.process.claims import Claims
from tests.support.nvml_stub.build import StubGpu, build, compiler, machine_of, stub_env
from tests.support.suite_runs import ROOT, environment, stub_gpus, write_suite


@pytest.fixture(autouse=True)
def _turn() -> Iterator[None]:
    with stub_gpus.held():
        yield


CONFTEST = """
import os
HERE = os.path.dirname(os.path.abspath(__file__))
AT_IMPORT = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
"""
TEST = """
import os, time, conftest, pytest
@pytest.mark.parametrize("number", range(4))
def test_gpus(number):
    gpus = os.environ["CUDA_VISIBLE_DEVICES"]
    assert gpus == conftest.AT_IMPORT
    with open(os.path.join(conftest.HERE, "seen"), "a") as file:
        file.write(f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}={gpus}\\n")
    time.sleep(0.2)
@pytest.mark.gpus(2)
def test_on_two(): assert len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) == 2
"""
PLUGIN = ("-p", "harness.runner.pytest_gpus")


def pytest_run(suite: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run pytest as a user does, with the plugin."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "xdist", *PLUGIN, *args]
    environ = environment(PYTHONPATH=str(ROOT), **env)
    return subprocess.run(command, cwd=suite, env=environ, capture_output=True, text=True, timeout=120, check=False)


def seen(suite: Path) -> dict[str, str]:
    """The GPUs of each worker; one worker has the same in all its tests."""
    pairs = {(line.partition("=")[0], line.partition("=")[2]) for line in (suite / "seen").read_text().split()}
    found = dict(pairs)
    assert len(found) == len(pairs)
    return found


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return write_suite(tmp_path / "suite", {"conftest.py": CONFTEST, "test_a.py": TEST})


@pytest.mark.full
def test_plain_pytest_has_its_gpus_before_conftest_files(suite: Path) -> None:
    done = pytest_run(suite, "--gpus", "sim:2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
    assert len(seen(suite)["main"].split(",")) == 2


@pytest.mark.full
def test_workers_have_gpus_of_their_own_and_wider_tests_are_skipped(suite: Path) -> None:
    done = pytest_run(suite, "--gpus", "sim:4", "-n", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed, 1 skipped" in done.stdout
    assert "needs 2 GPUs; this process has 1" in done.stdout
    found = seen(suite)
    assert set(found) == {"gw0", "gw1"} and len(set(found.values())) == 2


@pytest.mark.full
def test_a_worker_may_have_several_gpus(suite: Path) -> None:
    done = pytest_run(suite, "--gpus", "sim:4", "-n", "2", "--gpus-per-worker", "2")
    assert "5 passed" in done.stdout, done.stdout + done.stderr
    gpus = [gpu for found in seen(suite).values() for gpu in found.split(",")]
    assert len(gpus) == len(set(gpus)) == 4


@pytest.mark.full
def test_more_workers_than_gpus_are_refused(suite: Path) -> None:
    done = pytest_run(suite, "--gpus", "sim:2", "-n", "3")
    assert done.returncode != 0
    assert "use at most -n 2" in done.stdout + done.stderr
    assert not (suite / "seen").exists()


@pytest.mark.full
@pytest.mark.skipif(compiler() is None, reason="no C compiler (cc, gcc or clang) on PATH")
def test_gpus_that_another_run_has_claimed_are_left_to_it(suite: Path, tmp_path: Path) -> None:
    library, stub_file = build(tmp_path), tmp_path / "machine"
    machine = machine_of(StubGpu(), StubGpu(), StubGpu())
    machine.write(stub_file)
    ids = [gpu.uuid for gpu in machine.gpus]
    env = stub_env(library, stub_file)
    with Claims() as claims:
        assert claims.try_claim(f"gpu-{ids[0]}")
        done = pytest_run(suite, "--gpus", "auto", "-n", "2", **env)
        assert "4 passed" in done.stdout, done.stdout + done.stderr
        assert set(seen(suite).values()) == set(ids[1:])
        refused = pytest_run(suite, "--gpus", "auto", "-n", "3", **env)
        assert "2 of the 3 GPUs" in refused.stdout + refused.stderr
        assert all(claims.try_claim(f"gpu-{gpu}") for gpu in ids[1:])  # all have come back


def test_a_unit_of_rlharness_run_keeps_its_lease(suite: Path) -> None:
    done = pytest_run(suite, "--gpus", "sim:2", RLHARNESS_ATTEMPT="run-0001", CUDA_VISIBLE_DEVICES="GPU-lease")
    assert seen(suite)["main"] == "GPU-lease", done.stdout


NEEDS = """
import pytest
@pytest.mark.gpus(1, memory_gb=40)
def test_fits(): pass
@pytest.mark.gpus(1, memory_gb=500)
def test_memory(): raise AssertionError("it ran")
@pytest.mark.gpus(1, model="H200")
def test_model(): raise AssertionError("it ran")
@pytest.mark.gpus(1, min_capability=10.0)
def test_capability(): raise AssertionError("it ran")
@pytest.mark.gpus(2, memory_gb=80)
def test_one_of_two_is_small(): raise AssertionError("it ran")
"""


@pytest.mark.full
@pytest.mark.parametrize("workers", [("--gpus", "sim:1xA,1xB:40"), ("--gpus", "sim:4:40", "-n", "2")])
def test_tests_whose_need_the_gpus_do_not_meet_are_skipped_with_the_reason(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    done = pytest_run(write_suite(tmp_path, {"test_a.py": NEEDS}), *workers)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 4 skipped" in done.stdout
    assert "needs 1 GPU, >= 500 GB each; memory: 0 of 1 have 500 GB" in done.stdout
    assert "needs 1 GPU, model H200; model: 0 of 1" in done.stdout
    assert "needs 1 GPU, capability >= 10.0; capability: 0 of 1" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_auto_on_a_machine_without_gpus_gives_none(suite: Path, workers: tuple[str, ...]) -> None:
    done = pytest_run(suite, "--gpus", "auto", *workers, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed, 1 skipped" in done.stdout
    assert set(seen(suite).values()) == {""}
