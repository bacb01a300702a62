"""Runs of small programs as forks of a process that holds torch: real steps, without the seconds of a start."""

import asyncio
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from harness.lab.chaos.search import ChaosOptions
from harness.lab.chaos.vary import Varied, VarySearch, make_vary_plan
from harness.lab.experiment.launcher import OUTPUT, Launcher, Run
from harness.lab.experiment.recording_result import Problem, Recording
from harness.process.invocation import Invocation
from harness.recording.run_spec import RunSpec
from harness.render.run_lines import RunLines
from tests.support.fake_clock import FakeClock


class ForkedRuns:
    """A launcher of programs named as `python FILE ARGUMENT...`."""

    interrupted_by = ""
    display = RunLines(say=lambda line: None)

    def __init__(self, cwd: Path, environ: Mapping[str, str]) -> None:
        self._cwd, self._environ = cwd, environ
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torch", "torch._dynamo", "harness.recording.locked_steps"])

    async def record(self, run_spec: RunSpec, parent: Path, number: int, *, environ: Mapping[str, str]) -> Run:
        directory = parent / f"run-{number}"
        directory.mkdir(parents=True)
        (orders,) = run_spec.callbacks.values()
        argv = run_spec.argv[1:]
        process = self._context.Process(target=_run, args=(argv, orders, self._cwd, self._environ, directory / OUTPUT))
        process.start()
        process.join()
        code = process.exitcode or 0
        problems = (Problem(f"the program ended with exit code {code}"),) if code else ()
        return Run(number, False, Recording(directory, code, 1, (0,), 1, problems), 0.1)


def _run(argv: tuple[str, ...], orders: dict[str, Any], cwd: Path, environ: Mapping[str, str], output: Path) -> None:
    from harness.recording.locked_steps import LockedSteps

    os.chdir(cwd)
    os.environ.update(environ)
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        multiprocessing.set_start_method("fork", force=True)  # of the program, as in a process of its own
        LockedSteps(**orders)
        sys.argv = [*argv]
        runpy.run_path(argv[0], run_name="__main__")


def varied(cwd: Path, program: Path, vary: list[str], words: list[str], *, fix: bool, **options: Any) -> Varied:
    """Compare settings of a program; `fix` is whether it is healthy."""
    invocation = Invocation(cwd, dict(os.environ), ("python", str(program), *words))
    plan = make_vary_plan(invocation, ChaosOptions(vary=tuple(vary), out=str(cwd / "out"), **options), "1")
    runs = ForkedRuns(cwd, {"FIX": "1" if fix else ""})
    return asyncio.run(VarySearch(plan, cast(Launcher, runs), dict(os.environ), FakeClock()).search())
