"""What a run or plan stands on: that it is all given back, and a driver that does not answer."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.core.invocation import Invocation
from harness.machine.meter import NoMeter
from harness.process.claims import Claims
from harness.process.supervisor import process_tree
from harness.runner.options import RunOptions
from harness.runner.run_context import open_run_context, read_run_gpus
from tests.support.fake_clock import FakeClock
from tests.support.nvml_stub.build import compiler, stub_env
from tests.support.suite_runs import QUICK, environment, write_suite


def options(root: Path, **others: object) -> RunOptions:
    scratch = root / "tmp"
    scratch.mkdir(exist_ok=True)
    invocation = Invocation(root, {"TMPDIR": str(scratch), "XDG_CACHE_HOME": str(root / "cache")})
    return RunOptions(invocation, root, gpus="sim:2", containment="subreaper", **others)  # type: ignore[arg-type]


def histories(root: Path) -> list[Path]:
    """The files that runs and plans of `options` have made to remember durations."""
    return sorted((root / "cache" / "rlharness" / "history").iterdir())


async def on_stage(given: RunOptions, *, is_run: bool, failed: tuple[str, ...] = ()) -> Path:
    """Set the stage and clear it; its scratch root, in which these units and a good one have had directories."""
    with Claims() as claims:
        gpus = await read_run_gpus(given, claims)
        assert [gpu.gpu_id for gpu in gpus.inventory.gpus] == ["SIM-0", "SIM-1"]
        assert isinstance(gpus.meter, NoMeter)
        async with open_run_context(given, FakeClock(), gpus, claims, is_run=is_run) as context:
            assert context.run_id.startswith("20260101-000000-")
            for name in ("c", "collection", *failed):
                (context.scratch / name / "x").mkdir(parents=True)
            return context.scratch


@pytest.mark.parametrize("is_run", [True, False])
def test_everything_is_given_back_and_only_a_run_makes_a_history(tmp_path: Path, is_run: bool) -> None:
    before = {process.pid for process in process_tree.children(os.getpid())}
    scratch = asyncio.run(on_stage(options(tmp_path), is_run=is_run))
    assert not scratch.exists()
    assert len(histories(tmp_path)) == is_run
    assert not (tmp_path / ".rlharness").exists()
    assert {process.pid for process in process_tree.children(os.getpid())} <= before


@pytest.mark.full
def test_a_plan_reads_a_history_that_is_there_unless_it_is_to_be_free_of_it(tmp_path: Path) -> None:
    asyncio.run(on_stage(options(tmp_path), is_run=True))
    (history,) = histories(tmp_path)
    history.write_text("no database")
    asyncio.run(on_stage(options(tmp_path, history_free=True), is_run=True))
    assert history.read_text() == "no database"
    asyncio.run(on_stage(options(tmp_path), is_run=False))
    assert history.with_name(f"{history.name}.broken-1").read_text() == "no database"


def test_directories_of_failed_units_stay_on_request(tmp_path: Path) -> None:
    scratch = asyncio.run(on_stage(options(tmp_path, keep_tmp=True), is_run=True, failed=("0003",)))
    assert [path.name for path in scratch.iterdir()] == ["0003"]
    assert not asyncio.run(on_stage(options(tmp_path, keep_tmp=True), is_run=True)).exists()


def test_a_text_of_gpus_that_means_nothing_is_refused(tmp_path: Path) -> None:
    async def ask() -> None:
        with Claims() as claims:
            await read_run_gpus(RunOptions(Invocation(tmp_path, {}), tmp_path, gpus="many"), claims)

    with pytest.raises(UsageError, match="many"):
        asyncio.run(ask())


HANGS = """
#include <unistd.h>
int nvmlInitWithFlags(unsigned int flags) { for (;;) pause(); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
"""
IMPATIENT = """
import sys
from harness.runner import run_context
from harness.cli.main import main
run_context.INVENTORY_S = 0.2
sys.exit(main())
"""


def test_a_driver_that_does_not_answer_is_said(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("no C compiler here: the hanging NVIDIA driver cannot be built")
    write_suite(tmp_path, {"test_a.py": QUICK, "driver.c": HANGS})
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([str(compiler()), "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    command = [sys.executable, "-c", IMPATIENT, "run", "--gpus", "auto"]
    env = environment(**stub_env(library, library))
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 4
    assert "error: --gpus auto: the GPU driver did not answer within 0.2 s\n  legal:  " in done.stderr
    assert "run the files that need no GPU with --gpus none" in done.stderr
