"""Leases on the pretended driver: a run within a run, errors that the driver reports, names that are not read."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from harness.bits.exit_codes import ExitCode
from harness.process.claims import Claims
from tests.support.nvml_stub.build import StubGpu, build, compiler, machine_of, stub_env
from tests.support.suite_runs import HARNESS, ROOT, environment, run, write_suite

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


@pytest.mark.full
def test_leases_within_leases_and_errors_of_the_driver(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("no C compiler here: the pretended NVIDIA driver cannot be built")
    stub_file = tmp_path / "machine.txt"
    machine_of(StubGpu(), StubGpu(), StubGpu()).write(stub_file)
    files = {"test_nested.py": RUNS_A_RUNNER, "test_breaks.py": BREAKS_ITS_GPU}
    suite = write_suite(tmp_path / "suite", {name: STUB + text for name, text in files.items()})
    env = {**stub_env(build(tmp_path), stub_file), "PYTHONPATH": str(ROOT)}
    done = run(suite, "run", "--gpus", "auto", env=env)
    done.assert_sound()
    assert done.outcomes == {"test_nested.py": "passed", "test_breaks.py": "failed"}, done.stdout
    (held,) = done.of("gpu_quarantined")
    assert held["reason"] == "the driver reported Xid 79 (it has fallen off the bus)"
    broken = done.results["test_breaks.py"]
    assert broken["reason"] == f"the driver reported meanwhile {held['gpu_id']}: Xid 79 (it has fallen off the bus)"
    assert broken["gpu_ids"] == [held["gpu_id"]]


def test_a_run_waits_for_gpus_that_others_use_and_not_for_those_that_are_not_there(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("no C compiler here: the pretended NVIDIA driver cannot be built")
    stub_file = tmp_path / "machine.txt"
    machine = machine_of(StubGpu(used_mb=9000), StubGpu())
    machine.write(stub_file)
    suite = write_suite(tmp_path / "suite", {"test_two.py": "import pytest\n@pytest.mark.gpus(2)\ndef test(): pass\n"})
    env = {**environment(), **stub_env(build(tmp_path), stub_file), "PYTHONPATH": str(ROOT)}

    @contextmanager
    def started(*words: str) -> "Iterator[subprocess.Popen[str]]":
        command = [*HARNESS, "run", *words]
        with subprocess.Popen(command, cwd=suite, env=env, stdout=PIPE, stderr=PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    with Claims() as other_run:
        assert other_run.try_claim(f"gpu-{machine.gpus[1].uuid}")
        with started("--gpus", "2", "--wait", "250") as waiting, started("--gpus", "auto", "--wait", "250") as stopped:
            assert waiting.stderr is not None and stopped.stderr is not None
            said = waiting.stderr.readline()
            assert "waiting for GPUs, 250 s at most: --gpus 2: 0 of the 2 GPUs this process was given are free" in said
            assert "busy: 9.0 GB in use" in said and "leased by another rlharness run" in said
            assert "waiting for GPUs" in stopped.stderr.readline()
            stopped.send_signal(signal.SIGINT)
            assert stopped.wait() == ExitCode.INTERRUPTED
            other_run.release(f"gpu-{machine.gpus[1].uuid}")
            assert "1 of the 2 GPUs this process was given are free" in waiting.stderr.readline()
            machine.gpus[0].used_mb = 0
            machine.write(stub_file)
            assert "1 passed" in waiting.communicate()[0]
            assert waiting.returncode == 0
    machine.gpus[0].used_mb = 9000
    machine.write(stub_file)
    for words, said in (
        (("--gpus", "3", "--wait", "250"), "1 of the 2 GPUs"),  # which waiting cannot change
        (("--gpus", "2", "--wait", "0.1"), "run --wait S waits for them"),
    ):
        with started(*words) as refused:
            errors = refused.communicate()[1]
            assert (refused.returncode, said in errors) == (4, True), errors
            assert ("waiting" in errors.partition("error:")[0]) == (words[1] == "2")
