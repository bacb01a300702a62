"""Runs on GPUs of AMD, over the pretended ROCm of tests/support/amdsmi_stub."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.exit_codes import ExitCode
from tests.support.amdsmi_stub.build import AmdMachine, StubAmdGpu, build, machine_of, stub_env, uuid_of
from tests.support.suite_runs import Done, environment, run, write_suite

pytestmark = pytest.mark.full

SEES = """
import json, os, pytest
@pytest.mark.gpus(NUMBER)
def test_sees(gpu_ids, request):
    names = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    seen = {name: os.environ.get(name) for name in names}
    with open(request.node.path.stem + ".json", "w") as file:
        json.dump([list(gpu_ids), seen], file)
"""
TWO, NONE = SEES.replace("NUMBER", "2"), SEES.replace("NUMBER", "0")


def run_on(tmp_path: Path, machine: AmdMachine, files: dict[str, str], *arguments: str, **environ: str) -> Done:
    """A run of `files` on `machine`, whose stub file is tmp_path/machine."""
    machine.write(tmp_path / "machine")
    suite = write_suite(tmp_path / "suite", files)
    env = stub_env(build(tmp_path / "rocm"), tmp_path / "machine") | environ
    return run(suite, "run", "--gpus", *(arguments or ("auto",)), env=env)


def seen(done: Done, name: str) -> tuple[list[str], dict[str, str | None]]:
    names, environ = json.loads((done.directory / f"{name}.json").read_text())
    return names, environ


def variables(hip: str, rocr: str | None) -> dict[str, str | None]:
    return {"HIP_VISIBLE_DEVICES": hip, "CUDA_VISIBLE_DEVICES": hip, "ROCR_VISIBLE_DEVICES": rocr}


def eight() -> AmdMachine:
    return machine_of(*(StubAmdGpu() for _ in range(8)))


def test_a_lease_of_two_of_eight_gpus_is_what_the_test_sees(tmp_path: Path) -> None:
    done = run_on(
        tmp_path, eight(), {"test_two.py": TWO, "test_none.py": NONE}, "5,3", HIP_VISIBLE_DEVICES="0,1,2,7,6,5"
    )
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    done.assert_sound()
    # Positions 5 and 3 of the inherited list are HIP's GPUs 5 and 7.
    assert set(done.results["test_two.py"]["gpu_ids"]) == {uuid_of(5), uuid_of(7)}
    names, environ = seen(done, "test_two")
    assert sorted(names) == ["5", "7"]
    assert environ == variables(",".join(names), None)
    assert seen(done, "test_none") == ([], variables("-1", None))


@pytest.mark.full
def test_numbers_count_within_the_inherited_list_of_rocm(tmp_path: Path) -> None:
    done = run_on(tmp_path, eight(), {"test_two.py": TWO}, ROCR_VISIBLE_DEVICES="6,2,4", HIP_VISIBLE_DEVICES="2,1")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert set(done.results["test_two.py"]["gpu_ids"]) == {uuid_of(2), uuid_of(4)}
    names, environ = seen(done, "test_two")
    assert sorted(names) == ["1", "2"]
    assert environ == variables(",".join(names), "6,2,4")


LEAKS = """
import json, os, pytest
@pytest.mark.gpus(1)
def test_leaves_memory():
    path = os.environ["AMDSMI_STUB_FILE"]
    machine = json.load(open(path))
    machine["gpus"][0]["used_mib"] = 9000
    with open(path + ".new", "w") as file:
        json.dump(machine, file)
    os.replace(path + ".new", path)
"""


@pytest.mark.full
def test_a_gpu_whose_memory_does_not_come_back_is_quarantined(tmp_path: Path) -> None:
    done = run_on(tmp_path, machine_of(StubAmdGpu()), {"test_leaks.py": LEAKS})
    assert done.code == ExitCode.GPU_QUARANTINED, done.stdout + done.stderr
    done.assert_sound()
    (held,) = done.of("gpu_quarantined")
    assert held["gpu_id"] == uuid_of(0)
    assert "9.1 GB above its baseline, held by no process that the driver lists" in held["reason"]


IMPATIENT = """
import sys
from harness.runner import run_context
from harness.cli.main import main
run_context.INVENTORY_S = 0.5
sys.exit(main())
"""


def test_a_driver_that_does_not_answer_is_said(tmp_path: Path) -> None:
    machine_of(StubAmdGpu(), failures=[("amdsmi_get_gpu_vram_usage", 0, "HANGS")]).write(tmp_path / "machine")
    env = environment(**stub_env(build(tmp_path / "rocm"), tmp_path / "machine"))
    suite = write_suite(tmp_path / "suite", {"test_none.py": NONE})
    command = [sys.executable, "-c", IMPATIENT, "run", "--gpus", "auto"]
    done = subprocess.run(command, cwd=suite, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == ExitCode.USAGE_ERROR, done.stderr
    assert "the GPU driver did not answer within 0.5 s" in done.stderr
