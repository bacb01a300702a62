"""A GPU whose memory has errors runs no tests: at the beginning of a run, and after a test that has broken it."""

from pathlib import Path

import pytest

from tests.support.nvml_stub.build import StubGpu, build, compiler, machine_of, stub_env
from tests.support.suite_runs import run, write_suite

BREAKS = """
import os, pytest
pytestmark = pytest.mark.gpus(1)
def test_breaks_its_gpu():
    path = os.environ["NVML_STUB_FILE"]
    open(path + ".new", "w").write(open(path).read() + "memory 0 3 0 0 0\\n")
    os.replace(path + ".new", path)
"""


def test_a_gpu_with_a_fault_is_not_leased_again(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("no C compiler here: the pretended NVIDIA driver cannot be built")
    library = build(tmp_path)
    stub_file = tmp_path / "machine.txt"
    machine_of(StubGpu(), StubGpu(remap_failed=True)).write(stub_file)
    suite = write_suite(tmp_path / "suite", {"test_a.py": BREAKS, "test_b.py": BREAKS})
    done = run(suite, "run", "--gpus", "auto", "--allow-missing-gpus", env=stub_env(library, stub_file))
    done.assert_sound()
    (left_out,) = done.of("run_started")[0]["left_out"]
    assert "could not be remapped (remedy: have it replaced)" in left_out
    assert sorted(done.outcomes.values()) == ["not_run", "passed"], "whichever was first has broken the GPU"
    (held,) = done.of("gpu_quarantined")
    assert "found before the lease: its memory has had 3 uncorrected errors" in held["reason"]
    assert "nvidia-smi --gpu-reset -i GPU-a" in held["reason"]
