"""Measured GPU memory in whole runs, over the pretended NVIDIA driver, which lists real processes with memory."""

import json
from pathlib import Path

import pytest

from harness.core.exit_codes import ExitCode
from harness.runner.memory_series import peak
from harness.runner.records.run_record import RECORD, read_run_record
from harness.runner.records.timeline import rows_of
from tests.support.nvml_stub.build import StubGpu, build, compiler, machine_of, stub_env
from tests.support.nvml_stub.holding import HOLDING
from tests.support.suite_runs import Done, run, write_suite

pytestmark = pytest.mark.timeout(120)
GB = 10**9


def file_of(budget_gb: float, *held_mb: int, most_mb: int | None = None) -> str:
    """A file whose tests hold these amounts, one after the other, with a budget on a shared GPU."""
    lines = ["import pytest", "from holding import held"]
    lines.append(f"pytestmark = pytest.mark.gpus(1, memory_gb={budget_gb}, shared=True)")
    for number, mb in enumerate(held_mb):
        lines.append(f"def test_{number}():\n    with held({mb}, most_mb={most_mb}): pass")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if compiler() is None:
        pytest.skip("no C compiler here: the pretended NVIDIA driver cannot be built")
    return build(tmp_path_factory.mktemp("nvml"))


def run_on(
    directory: Path, library: Path, files: dict[str, str], *args: str, gpu: StubGpu | None = None, config: str = ""
) -> Done:
    machine_of(gpu or StubGpu(used_mb=0)).write(directory / "machine.txt")
    directory.joinpath("machine.txt.asked").touch()
    suite = write_suite(directory / "suite", {"holding.py": HOLDING, **files})
    suite.joinpath("pyproject.toml").write_text(f"[tool.rlharness]\n{config}")
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
    assert "14.2 GB of GPU memory at its peak in test_1 of a budget of 12 GB" in page
    assert "more GPU memory than its budget: test_greedy.py: 14.2 GB" in page
    known = json.loads(run(tmp_path / "suite", "history", "test_greedy.py", "--json").stdout)["trends"]
    assert {each["name"]: each["peak_gpu_bytes"] for each in known} == {
        "test_greedy.py": 14_200_000_000,
        "test_greedy.py::test_0": 4 * GB,
        "test_greedy.py::test_1": 14_200_000_000,
    }
    assert "GPU memory" in run(tmp_path / "suite", "history").stdout


@pytest.mark.parametrize("isolate", ["test", "worker", "interpreter"])
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


@pytest.mark.full
def test_accounting_mode_knows_peaks_between_samples(tmp_path: Path, library: Path) -> None:
    files = {"test_a.py": file_of(12, 3000, most_mb=17_000)}
    done = run_on(tmp_path, library, files, gpu=StubGpu(accounted_mb={}))
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert done.results["test_a.py"]["gpu_memory"]["peak_bytes"] == 17 * GB
    assert "test_a.py: 17.0 GB at its peak, budget 12 GB" in done.stdout


FREE = "from holding import held\ndef test_it():\n    with held({mb}): pass\n"


@pytest.mark.full
def test_auto_shares_gpus_once_a_run_has_measured(tmp_path: Path, library: Path) -> None:
    files = {f"test_{mb}.py": FREE.format(mb=mb) for mb in (3000, 5000)}
    auto = ("--workers-per-gpu", "auto", "--cpu-units", "4")
    done = run_on(tmp_path, library, files, *auto)
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    (note,) = done.of("collection_finished")[0]["notes"]
    assert note.startswith("--workers-per-gpu auto: 1 file on each GPU, because the history has no measured GPU memory")
    assert {path: each["unit"]["need"]["shared"] for path, each in done.results.items()} == dict.fromkeys(files, False)
    done = run_on(tmp_path, library, files, *auto)
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    (note,) = done.of("collection_finished")[0]["notes"]
    assert "4 files on each GPU of 80 GB, from the measured peaks of 2 files: budgets of 20 GB" in note
    assert {path: each["unit"]["need"]["memory_gb"] for path, each in done.results.items()} == dict.fromkeys(
        files, 20.0
    )


@pytest.mark.full
def test_memory_that_rises_and_falls_is_recorded_over_time(tmp_path: Path, library: Path) -> None:
    files = {"test_a.py": file_of(12, 9000, *(1000,) * 4)}  # the last for more than an interval
    setup = '[tool.rlharness.setup]\nbuild = { command = "true", gpus = 1 }\n'
    done = run_on(tmp_path, library, files, "--trace-events", "trace.json", config=setup)
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    done.assert_sound()
    (gpu_id,) = {gpu_id for each in done.of("gpu_memory_sampled") for gpu_id in each["in_use_bytes"]}
    values = [each["in_use_bytes"][gpu_id] for each in done.of("gpu_memory_sampled")]
    known = [value for value in values if value]
    assert known.index(9 * GB) < known.index(GB)
    assert values[-1] is None, "the lease has ended"
    assert len(values) < 20
    kinds = [each["event"] for each in done.events]
    assert kinds.index("gpu_memory_sampled") < kinds.index("unit_finished")
    record = read_run_record(Path(done.of("run_started")[0]["directory"]) / RECORD)
    assert peak(record.memory[gpu_id]) == 9 * GB
    (row,) = rows_of(record)
    assert [(each.path, each.is_setup) for each in row.files] == [("setup:build", True), ("test_a.py", False)]
    exported = json.loads((tmp_path / "suite" / "trace.json").read_text())["traceEvents"]
    assert [each["args"]["GB"] for each in exported if each["name"] == "memory in use"] == [
        (value or 0) / GB for value in values
    ]


@pytest.mark.full
def test_memory_that_the_driver_does_not_report_has_no_series(tmp_path: Path, library: Path) -> None:
    done = run_on(tmp_path, library, {"test_a.py": file_of(12, -1)})
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    values = [value for each in done.of("gpu_memory_sampled") for value in each["in_use_bytes"].values()]
    assert not any(values), "only what was sampled before and after the process"


@pytest.mark.full
def test_simulated_gpus_have_no_series(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, {"test_a.py": "import pytest\n@pytest.mark.gpus(1)\ndef test_a(): pass\n"})
    assert not run(suite, "run", "--gpus=sim:1").of("gpu_memory_sampled")
