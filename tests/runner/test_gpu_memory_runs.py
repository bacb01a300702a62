"""Measured GPU memory in whole runs, over the pretended NVIDIA driver, which lists real processes with memory."""

import json
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from tests.support.nvml_stub.build import StubGpu, build, compiler, machine_of, stub_env
from tests.support.nvml_stub.holding import HOLDING
from tests.support.suite_runs import Done, run, write_suite

pytestmark = pytest.mark.timeout(120)
GB = 10**9


def file_of(budget_gb: float, *held_mb: int) -> str:
    """A file whose tests hold these amounts, one after the other, with a budget on a shared GPU."""
    lines = ["import pytest", "from holding import held"]
    lines.append(f"pytestmark = pytest.mark.gpus(1, memory_gb={budget_gb}, shared=True)")
    for number, mb in enumerate(held_mb):
        lines.append(f"def test_{number}():\n    with held({mb}): pass")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if compiler() is None:
        pytest.skip("no C compiler here: the pretended NVIDIA driver cannot be built")
    return build(tmp_path_factory.mktemp("nvml"))


def run_on(directory: Path, library: Path, files: dict[str, str], *args: str, gpu: StubGpu | None = None) -> Done:
    machine_of(gpu or StubGpu(used_mb=0)).write(directory / "machine.txt")
    directory.joinpath("machine.txt.asked").touch()
    suite = write_suite(directory / "suite", {"holding.py": HOLDING, **files})
    suite.joinpath("pyproject.toml").write_text("[tool.rlharness]\n")
    env = stub_env(library, directory / "machine.txt")
    return run(suite, "run", "--gpus", "auto", *args, env=env)


def test_files_that_share_a_gpu_are_measured_each_by_itself_and_the_greedy_one_is_named(
    tmp_path: Path, library: Path
) -> None:
    files = {"test_small.py": file_of(12, 3000), "test_greedy.py": file_of(12, 4000, 14200)}
    done = run_on(tmp_path, library, files)
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    done.assert_sound()
    small, greedy = done.results["test_small.py"], done.results["test_greedy.py"]
    assert (small["gpu_memory"]["peak_bytes"], small["gpu_memory"]["tests"]) == (
        3 * GB,
        {"test_small.py::test_0": 3 * GB},
    )
    assert greedy["gpu_memory"]["peak_bytes"] == 14_200_000_000
    assert greedy["gpu_memory"]["test"] == "test_greedy.py::test_1"
    assert greedy["gpu_memory"]["tests"] == {"test_greedy.py::test_0": 4 * GB, "test_greedy.py::test_1": 14_200_000_000}
    assert "used more GPU memory than their budget (1)" in done.stdout
    assert "test_greedy.py: 14.2 GB at its peak, budget 12 GB, while test_1 ran" in done.stdout
    page = Path(done.of("run_started")[0]["directory"], "run.html").read_text()
    assert "more GPU memory than its budget: test_greedy.py: 14.2 GB" in page
    known = json.loads(run(tmp_path / "suite", "history", "test_greedy.py", "--json").stdout)["trends"]
    assert {each["name"]: each["peak_gpu_bytes"] for each in known} == {
        "test_greedy.py": 14_200_000_000,
        "test_greedy.py::test_0": 4 * GB,
        "test_greedy.py::test_1": 14_200_000_000,
    }
    assert "GPU memory" in run(tmp_path / "suite", "history").stdout


@pytest.mark.parametrize("isolate", ["test", "interpreter"])
@pytest.mark.full
def test_every_isolation_mode_measures(tmp_path: Path, library: Path, isolate: str) -> None:
    done = run_on(tmp_path, library, {"test_a.py": file_of(12, 3000, 5000)}, "--isolate", isolate, "--json")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    (unit,) = json.loads(done.stdout)["units"]
    assert unit["gpu_memory"]["tests"] == {"test_a.py::test_0": 3 * GB, "test_a.py::test_1": 5 * GB}
    assert not unit["is_over_budget"]


@pytest.mark.full
def test_memory_that_the_driver_does_not_report_is_not_measured(tmp_path: Path, library: Path) -> None:
    done = run_on(tmp_path, library, {"test_a.py": file_of(12, -1)})
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert done.results["test_a.py"]["gpu_memory"] == {
        "peak_bytes": None,
        "why": "not_reported",
        "test": "",
        "tests": {},
    }
    assert "the GPU memory of 1 unit was not measured: the driver reports no memory by process here" in done.stdout
    (trend,) = json.loads(run(tmp_path / "suite", "history", "test_a.py::test_0", "--json").stdout)["trends"]
    assert trend["peak_gpu_bytes"] is None
