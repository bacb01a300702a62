"""`rlharness profile`: the search for the smallest limit, and whole profiles of a stand-in for PyTorch.

The stand-in honours the limit as PyTorch's allocator does. No GPU is involved.
"""

import json
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.exit_codes import ExitCode
from harness.runner.memory_profile import (
    CONTEXT_BYTES,
    RESOLUTION,
    RESOLUTION_BYTES,
    budget_gb,
    marker_of,
    smallest_limit,
)
from tests.support.nvml_stub.build import StubGpu, build, compiler, machine_of, stub_env
from tests.support.suite_runs import Done, run, started, write_suite

GB = 10**9

TORCH = '''
"""A stand-in for PyTorch whose allocator has a limit and no memory."""
from torch import cuda
'''
CUDA = """
import types
TOTAL = 80 * 10**9
_queued, _state = [], {"initialised": False, "fraction": 1.0, "held": 0, "peak": 0}
class OutOfMemoryError(RuntimeError): pass

def device_count(): return 1
def is_available(): return True
def is_initialized(): return _state["initialised"]
def get_device_properties(device): return types.SimpleNamespace(total_memory=TOTAL)
def max_memory_reserved(device): return _state["peak"]
def _lazy_call(call):
    call() if is_initialized() else _queued.append(call)
def set_per_process_memory_fraction(fraction, device):
    assert 0 <= fraction <= 1 and device == 0
    assert is_initialized(), "a limit initialises CUDA before the test does"
    _state["fraction"] = fraction
def allocate(num_bytes):
    if not is_initialized():
        _state["initialised"] = True
        for call in _queued: call()
    if _state["held"] + num_bytes > _state["fraction"] * TOTAL:
        raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num_bytes} bytes.")
    _state["held"] += num_bytes
    _state["peak"] = max(_state["peak"], _state["held"])
def free(num_bytes): _state["held"] -= num_bytes
"""
SUITE = """
import torch
def test_needs_20(): torch.cuda.allocate(12 * 10**9); torch.cuda.allocate(8 * 10**9); torch.cuda.free(20 * 10**9)
def test_adapts():
    try: torch.cuda.allocate(60 * 10**9); torch.cuda.free(60 * 10**9)
    except torch.cuda.OutOfMemoryError: torch.cuda.allocate(5 * 10**9)
def test_fails(): torch.cuda.allocate(1); assert False
def test_needs_none(): pass
"""


@given(st.integers(GB, 200 * GB), st.floats(0, 1), st.integers(0, 250 * GB))
def test_the_search_ends_just_above_the_need(total: int, share: float, guess: int) -> None:
    need = round(share * total)
    search, tried, found = smallest_limit(total, guess), [], 0
    try:
        limit = next(search)
        while True:
            tried.append(limit)
            assert 0 < limit < total
            limit = search.send(limit >= need)
    except StopIteration as end:
        found = end.value
    assert found >= need
    assert found == total or found in tried
    assert found - need <= max(RESOLUTION_BYTES, round(RESOLUTION * found)) + 1
    assert len(set(tried)) == len(tried) <= 14


@given(st.integers(0, 200 * GB), st.one_of(st.none(), st.integers(0, 200 * GB)))
def test_a_budget_covers_the_limit_a_context_and_the_peak(limit: int, peak: int | None) -> None:
    memory_bytes = round(budget_gb(limit, peak) * 1e9)
    assert max(limit + CONTEXT_BYTES, peak or 0) <= memory_bytes < max(limit + CONTEXT_BYTES, peak or 0) + 10**8
    assert budget_gb(limit, peak) == round(budget_gb(limit, peak), 1)


def test_a_marker_shares_one_gpu_and_not_several() -> None:
    assert marker_of(1, 12.3, 80.0) == "@pytest.mark.gpus(1, memory_gb=12.3, shared=True)"
    assert marker_of(2, 12.0, 80.0) == "@pytest.mark.gpus(2, memory_gb=12)"
    assert marker_of(1, 80.5, 80.0) == "@pytest.mark.gpus(1, memory_gb=80.5)"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if compiler() is None:
        pytest.skip("no C compiler here: the pretended NVIDIA driver cannot be built")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    machine_of(StubGpu(used_mb=0)).write(tmp_path / "machine.txt")
    return write_suite(tmp_path / "suite", {"torch/__init__.py": TORCH, "torch/cuda.py": CUDA, "test_it.py": SUITE})


def profile(suite: Path, library: Path, *args: str) -> Done:
    return run(suite, "profile", *args, env=stub_env(library, suite.parent / "machine.txt"))


@pytest.mark.full
@pytest.mark.timeout(120)
def test_the_need_of_a_test_is_found_and_its_marker_printed(suite: Path, library: Path) -> None:
    done = profile(suite, library, "test_it.py::test_needs_20", "--json")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["kind"] == "found"
    assert 20 * GB <= found["limit_bytes"] <= 20 * GB * (1 + RESOLUTION)
    assert found["memory_gb"] == 20.7
    assert found["marker"] == "@pytest.mark.gpus(1, memory_gb=20.7, shared=True)"
    first, guessed, *others, last = found["probes"]
    assert (first["limit_bytes"], first["passed"], first["reserved_bytes"]) == (0, True, 20 * GB)
    assert (guessed["limit_bytes"], guessed["passed"]) == (20 * GB, True), "what it held without a limit is enough"
    assert others and not all(each["passed"] for each in others)
    assert all(each["passed"] == (each["limit_bytes"] >= 20 * GB) for each in others)
    assert (last["limit_bytes"], last["passed"]) == (found["limit_bytes"], True)
    assert "probe 1: passes without a limit" in done.stderr
    assert not list(suite.glob(".rlharness/runs/*")), "a probe is no run"


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_test_that_adapts_to_the_limit_needs_less_than_it_takes(suite: Path, library: Path) -> None:
    done = profile(suite, library, "test_it.py::test_adapts")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert "test_it.py::test_adapts needs 5." in done.stdout
    assert "marker: @pytest.mark.gpus(1, memory_gb=5." in done.stdout


@pytest.mark.full
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("test", "kind"), [("test_fails", "fails_anyway"), ("test_needs_none", "not_limited")])
def test_no_need_is_claimed_without_a_limit_that_holds(suite: Path, library: Path, test: str, kind: str) -> None:
    done = profile(suite, library, f"test_it.py::{test}", "--json")
    assert done.code == ExitCode.TESTS_FAILED, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["kind"], found["marker"], len(found["probes"])) == (kind, "", 1)


@pytest.mark.parametrize("gpus", ["sim:2", pytest.param("none", marks=pytest.mark.full)])
def test_without_a_gpu_it_says_what_is_missing(suite: Path, gpus: str) -> None:
    done = run(suite, "profile", "test_it.py", "--gpus", gpus)
    assert done.code == ExitCode.USAGE_ERROR
    assert "rlharness profile needs a GPU" in done.stderr
    assert "remedy: run it on a machine with a GPU" in done.stderr


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_name_of_no_test_and_of_many_is_refused(suite: Path, library: Path) -> None:
    write_suite(suite, {"test_other.py": "def test_it(): pass\n"})
    assert "it names 2 test files" in profile(suite, library, ".").stderr
    done = profile(suite, library, "test_it.py::test_gone")
    assert (done.code, "not found" in done.stderr) == (ExitCode.USAGE_ERROR, True)


@pytest.mark.full
@pytest.mark.timeout(120)
def test_ctrl_c_ends_a_probe_and_the_search(suite: Path, library: Path) -> None:
    write_suite(
        suite, {"test_it.py": "import pathlib, time\ndef test_it(): pathlib.Path('begun').touch(); time.sleep(600)\n"}
    )
    env = stub_env(library, suite.parent / "machine.txt")
    with started(suite, "profile", "test_it.py", env=env) as process:
        while not suite.joinpath("begun").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "interrupted by SIGINT before there was an answer" in stderr
