"""Leases on the pretended driver: a run within a run, errors that the driver reports, names that are not read."""

from pathlib import Path

import pytest

from tests.support.nvml_stub.build import StubGpu, build, compiler, machine_of, stub_env
from tests.support.suite_runs import ROOT, run, write_suite

STUB = f"""
import json, os, subprocess, sys
import pytest
sys.path.insert(0, {str(ROOT)!r})
from tests.support.nvml_stub.holding import HOLDING
exec(HOLDING)
pytestmark = pytest.mark.gpus(1)

def number_in(lines):
    return [line.split()[1] for line in lines if line.startswith("gpu ")].index(os.environ["CUDA_VISIBLE_DEVICES"])
"""
RUNS_A_RUNNER = """
INNER = '''
import os, pytest
@pytest.mark.gpus(1)
def test_has_the_gpu_of_the_lease_around():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == os.environ["OUTER"]
'''

def test_a_run_within_a_run_leases_its_gpu_though_this_process_is_on_it(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]")
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(INNER)
    with change() as lines:
        line = f"process {number_in(lines)} -1 {os.getpid()} 900 compute"
        lines.append(line)
    done = subprocess.run(
        [sys.executable, "-m", "harness", "run", "--gpus", "auto", "--json", "--isolate", "interpreter"],
        cwd=tmp_path, env={**os.environ, "OUTER": os.environ["CUDA_VISIBLE_DEVICES"]}, capture_output=True, text=True,
    )
    with change() as lines:
        lines.remove(line)
    summary = json.loads(done.stdout)
    assert [unit["outcome"] for unit in summary["units"]] == ["passed", "passed"], done.stdout
    assert (done.returncode, summary["quarantined"]) == (0, [])
"""
BREAKS_ITS_GPU = """
def test_fails_as_its_gpu_falls_off_the_bus():
    with change() as lines:
        lines.append(f"xid {number_in(lines)} 79")
    raise OSError("unspecified launch failure")
"""
READS_NUMBERS = """
def test_reads_the_number_of_its_gpu():
    int(os.environ["CUDA_VISIBLE_DEVICES"])
"""


def test_leases_within_leases_errors_of_the_driver_and_names_that_are_not_read(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("no C compiler here: the pretended NVIDIA driver cannot be built")
    stub_file = tmp_path / "machine.txt"
    machine_of(StubGpu(), StubGpu(), StubGpu()).write(stub_file)
    files = {"test_nested.py": RUNS_A_RUNNER, "test_breaks.py": BREAKS_ITS_GPU, "test_numbers.py": READS_NUMBERS}
    suite = write_suite(tmp_path / "suite", {name: STUB + text for name, text in files.items()})
    env = {**stub_env(build(tmp_path), stub_file), "PYTHONPATH": str(ROOT)}
    done = run(suite, "run", "--gpus", "auto", env=env)
    done.assert_sound()
    assert done.outcomes == {"test_nested.py": "passed", "test_breaks.py": "failed", "test_numbers.py": "failed"}, (
        done.stdout
    )
    (held,) = done.of("gpu_quarantined")
    assert held["reason"] == "the driver reported Xid 79 (it has fallen off the bus)"
    broken = done.results["test_breaks.py"]
    assert broken["reason"] == f"the driver reported meanwhile {held['gpu_id']}: Xid 79 (it has fallen off the bus)"
    assert broken["gpu_ids"] == [held["gpu_id"]]
    (note,) = [note for note in done.of("run_finished")[0]["notes"] if "device-ids" in note]
    assert note.startswith("test_numbers.py: a library reads numbers in CUDA_VISIBLE_DEVICES")
