"""Recorded runs of one command."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.clock import SystemClock
from harness.core.errors import UsageError
from harness.lab.experiments.entry_call import EntryCall, Rejection
from harness.lab.experiments.launcher import LaunchContext, open_launcher, refuse
from harness.lab.experiments.out_directory import OutDirectory
from harness.lab.experiments.recording_result import Recording
from harness.lab.experiments.run import Run
from harness.lab.experiments.scenario_spec import CHILD, spec_of_call
from harness.render.replay_progress import make_display
from harness.trace.diff import diff
from harness.trace.excerpt import excerpt
from harness.trace.reader import read_trace
from harness.trace.verdict import Kind
from tests.support.suite_runs import environment

CONFIG: Mapping[str, object] = {"seed": 1, "num_steps": 5, "leaks": False, "runtime": {"num_parts": 4}}
WHOLE = spec_of_call(EntryCall("tests.lab.tiny_entry:run", CONFIG, ("runtime",)), "deterministic")


@pytest.mark.full
def test_a_run_is_ended_in_order_after_its_last_step(tmp_path: Path) -> None:
    """The rest of it does not happen, and what happened is whole and the same."""

    async def record() -> tuple[Run, Run]:
        place = LaunchContext(CHILD[0], Path.cwd(), environment(), "session")
        with open_launcher(place, make_display(2, SystemClock(), colour=False, environ={})) as session:
            elsewhere = {**place.environ, "OMP_NUM_THREADS": "1", "MARK": "elsewhere"}
            whole = await session.record(WHOLE, tmp_path, 1)
            cut = await session.record(replace(WHOLE, last_step=1), tmp_path, 2, environ=elsewhere, cwd=tmp_path)
            return whole, cut

    whole, cut = asyncio.run(record())

    assert (whole.recording.num_steps, cut.recording.num_steps) == (5, 2)
    assert cut.recording.is_complete
    assert cut.recording.exit_code == 0
    a, b = (read_trace(run.recording.directory) for run in (whole, cut))
    assert diff(excerpt(a, 0, 1), b).kind is Kind.EQUAL
    assert diff(a, b).kind is Kind.DIVERGED


@pytest.mark.parametrize("has_earlier_run", [False, True])
def test_of_a_run_that_was_refused_nothing_is_left_but_earlier_ones(tmp_path: Path, *, has_earlier_run: bool) -> None:
    directory = tmp_path / "replay"
    out = OutDirectory(directory)
    (directory / "run-2").mkdir(parents=True)
    (directory / "stdin").touch()
    run = Run(2, False, Recording(directory / "run-2", 4, 0, (), 0), 1.0)
    refuse(run, out)
    assert (directory / "run-2").exists(), "nobody has refused it"

    if has_earlier_run:
        (directory / "run-1").mkdir()
    Rejection("the seed is 'x'", "a number", "say so").write(directory / "run-2")
    with pytest.raises(UsageError, match=r"the seed is 'x'\n  legal:  a number\n  remedy: say so"):
        refuse(run, out)
    assert [path.name for path in tmp_path.rglob("run-*")] == ["run-1"] * has_earlier_run
    assert directory.exists() is has_earlier_run
