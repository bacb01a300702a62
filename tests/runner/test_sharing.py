"""Runs and plans in which files share GPUs, checked from inside the tests by locks and counters."""

import json
import random
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from tests.support.suite_runs import QUICK, run, write_suite

LEDGER = '''
import contextlib, fcntl, json, os, time

MEMORY_GB = 80.0

@contextlib.contextmanager
def held(need_gb, seconds):
    """Enter the need in the ledger of every leased GPU, fail if its memory is exceeded, and remove it again."""
    gpus = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    totals = [change(gpu, need_gb) for gpu in gpus]
    try:
        assert all(total <= MEMORY_GB + 1e-6 for total in totals), f"{gpus} hold {totals} GB"
        time.sleep(seconds)
        yield totals
    finally:
        for gpu in gpus:
            change(gpu, -need_gb)

def change(gpu, by_gb):
    with open(f"ledger-{gpu}", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        lines = file.read().splitlines()
        total = (float(lines[-1]) if lines else 0.0) + by_gb
        file.write(f"{total:.6f}\\n")
        return total
'''


def file_of_budget(memory_gb: float, seconds: float) -> str:
    return (
        f"import pytest, ledger\n@pytest.mark.gpus(1, memory_gb={memory_gb}, shared=True)\n"
        f"def test_it():\n    with ledger.held({memory_gb}, {seconds}): pass\n"
    )


def file_of_gpus(num_gpus: int, seconds: float) -> str:
    return (
        f"import pytest, ledger\n@pytest.mark.gpus({num_gpus})\n"
        f"def test_it():\n    with ledger.held(ledger.MEMORY_GB, {seconds}): pass\n"
    )


def mixed_suite(seed: int, num_files: int) -> dict[str, str]:
    rng = random.Random(seed)
    files = {"ledger.py": LEDGER}
    for number in range(num_files):
        seconds = round(rng.uniform(0.1, 0.4), 2)
        source = (
            file_of_gpus(rng.randint(1, 2), seconds)
            if number % 4 == 0
            else file_of_budget(rng.choice([3.0, 8.0, 12.5, 20.0, 33.3, 40.0]), seconds)
        )
        files[f"test_{number:02}.py"] = source
    return files


def totals_in(directory: Path) -> dict[str, list[float]]:
    return {path.name: [float(line) for line in path.read_text().split()] for path in directory.glob("ledger-*")}


@pytest.mark.full
@pytest.mark.timeout(120)
def test_budgets_and_whole_gpus_never_exceed_a_gpu(tmp_path: Path) -> None:
    write_suite(tmp_path, mixed_suite(1, 24))
    done = run(tmp_path, "run", "--gpus", "sim:4:80")
    assert (done.code, set(done.outcomes.values())) == (ExitCode.OK, {"passed"}), done.stdout + done.stderr
    totals = totals_in(tmp_path)
    assert max(max(each) for each in totals.values()) <= 80.0
    assert all(each[-1] == 0 for each in totals.values()), "everything was given back"
    leased = [(event["path"], event["gpu_ids"], event["t"]) for event in done.of("attempt_started")]
    assert len(leased) == 24


@pytest.mark.timeout(60)
def test_two_files_are_on_one_gpu_at_the_same_time(tmp_path: Path) -> None:
    """Each waits for the other, so that they pass only side by side."""
    source = (
        "import os, pathlib, pytest, time\n@pytest.mark.gpus(1, memory_gb=30, shared=True)\ndef test_it():\n"
        "    pathlib.Path(f'seen-{os.getpid()}').touch()\n    end = time.monotonic() + 30\n"
        "    while len(list(pathlib.Path().glob('seen-*'))) < 2:\n"
        "        assert time.monotonic() < end\n        time.sleep(0.02)\n"
    )
    write_suite(tmp_path, {"test_a.py": source, "test_b.py": source})
    done = run(tmp_path, "run", "--gpus", "sim:1:80")
    assert (done.code, done.outcomes) == (ExitCode.OK, {"test_a.py": "passed", "test_b.py": "passed"}), done.stdout


def needs_in_plan(directory: Path, *args: str) -> list[list[str]]:
    done = run(directory, "plan", "--json", *args)
    assert done.code == ExitCode.OK, done.stderr
    return [unit["gpu_ids"] for unit in json.loads(done.stdout)["units"] if unit["start_s"] == 0]


@pytest.mark.full
def test_defaults_for_files_without_a_need(tmp_path: Path) -> None:
    write_suite(tmp_path, {f"test_{number}.py": QUICK for number in range(4)})
    assert needs_in_plan(tmp_path, "--gpus", "sim:2:80", "--cpu-units", "4") == [[]] * 4
    pairs = [["SIM-0"], ["SIM-0"], ["SIM-1"], ["SIM-1"]]
    assert sorted(needs_in_plan(tmp_path, "--gpus", "sim:2:80", "--workers-per-gpu", "2")) == pairs
    (tmp_path / "pyproject.toml").write_text("[tool.rlharness.needs]\n'test_0.py' = 0\n")
    assert needs_in_plan(tmp_path, "--gpus", "sim:2:80", "--workers-per-gpu", "2").count([]) == 1
