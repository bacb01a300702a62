"""Recorded runs of entries in the test's own process: real traces of real entries, without the seconds of a process."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from harness.lab.chaos.search import (
    LATENCY,
    Chaos,
    ChaosExecutor,
    ChaosOptions,
    ChaosPlan,
    PerturbationSearch,
    make_subject,
)
from harness.lab.experiment.launcher import Launcher, Run
from harness.lab.experiment.preparation import prepare
from harness.lab.experiment.recording_result import finish
from harness.lab.experiment.scenario_main import call_entry
from harness.process.invocation import Invocation
from harness.recording.latency import found
from harness.recording.process import ProcessLog
from harness.recording.recorder import Recorder, make_callbacks
from harness.recording.run_spec import RUN, RunSpec
from harness.render.run_lines import RunLines
from tests.support.fake_clock import FakeClock

DISTRIBUTIONS = cache(metadata.packages_distributions)
"""They are the same for each run of a process, and take a tenth of a second."""


class InProcess:
    """Runs that are calls."""

    interrupted_by = ""
    display = RunLines(say=lambda line: None)

    async def record(self, run_spec: RunSpec, parent: Path, number: int, *, environ: Mapping[str, str]) -> Run:
        out, _ = prepare(run_spec, parent / f"run-{number}", {})
        log = ProcessLog(RunSpec.parse((out.path / RUN).read_text("utf-8")))
        with _ended_with_the_run(run_spec):
            recorder = Recorder(log, last_step=run_spec.last_step, callbacks=make_callbacks(run_spec.callbacks))
            code = call_entry(out.path, run_spec.level, recorder, has_begun=lambda: log.rank is not None)
        if code == 0:
            log.note_return()
        log.close()
        return Run(number, False, finish(out.path, run_spec, code), 0.1)


@contextmanager
def _ended_with_the_run(run_spec: RunSpec) -> Iterator[None]:
    """Delays are for the life of a process: here for that of a run."""
    functions = [name for fields in run_spec.callbacks.values() for name in fields["functions"]]
    honest = [(*found(name), name.partition(":")[2]) for name in functions]
    try:
        yield
    finally:
        for module, function, name in honest:
            setattr(module, name, function)


def searched(cwd: Path, scenario: str, **options: Any) -> Chaos:
    """A search over a scenario of the project in `cwd`, factors of its payload and of its process only."""
    subject = make_subject(Invocation(cwd, {}), ChaosOptions(scenario))
    factors = tuple(factor for factor in subject.factors if not factor.is_outside or factor.name == LATENCY)
    plan = ChaosPlan(subject, factors, cwd / "out", **options)
    bench = ChaosExecutor(plan, cast(Launcher, InProcess()), {}, FakeClock())
    with patch.object(metadata, "packages_distributions", DISTRIBUTIONS):
        return asyncio.run(PerturbationSearch(plan, bench).search())
