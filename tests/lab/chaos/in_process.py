"""Recorded runs of entries in the test's own process: real traces of real entries, without the seconds of a process."""

import asyncio
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import patch

from harness.clock import FakeClock
from harness.inject.orders import ORDERS, Orders
from harness.inject.process import ProcessLog
from harness.inject.recorder import Recorder
from harness.lab.chaos.bench import Bench
from harness.lab.chaos.finding import Chaos
from harness.lab.chaos.hunt import Hunt
from harness.lab.chaos.plan import ChaosPlan
from harness.lab.chaos.subject import make_subject
from harness.lab.envelope import Envelope, prepare
from harness.lab.recording import finish
from harness.lab.scenario_main import call_entry
from harness.lab.session import Session
from harness.lab.supervised import Run
from harness.runner.options import Invocation

DISTRIBUTIONS = cache(metadata.packages_distributions)
"""They are the same for each run of a process, and take a tenth of a second."""
NONE = {"size": None, "overrides": (), "vary": (), "level": None, "metric": ()}


class InProcess(Session):
    """A session whose runs are calls."""

    def __init__(self) -> None:
        self.told: list[Mapping[str, str]] = []

    @property
    def interrupted_by(self) -> str:
        return ""

    async def record(
        self,
        envelope: Envelope,
        parent: Path,
        number: int = 1,
        *,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Run:
        self.told.append(envelope.perturbation)
        prepared = prepare(envelope, parent / f"run-{number}", {})
        log = ProcessLog(Orders.parse((prepared.directory / ORDERS).read_text("utf-8")))
        recorder = Recorder(log, last_step=envelope.last_step)
        code = call_entry(prepared.directory, envelope.level, recorder, has_begun=lambda: log.rank is not None)
        log.close()
        return Run(number, False, finish(prepared.directory, envelope, code), 0.1)


class Silence:
    """A listener that says nothing."""

    def begins(self, perturbation: Mapping[str, Any]) -> None: ...

    def ended(self, outcome: Any, duration_s: float) -> None: ...


def searched(cwd: Path, scenario: str, **options: Any) -> Chaos:
    """A search over a scenario of the project in `cwd`, factors of its payload only."""
    subject = make_subject(Invocation(cwd, {}), {**NONE, "scenario": scenario})
    factors = tuple(factor for factor in subject.factors if not factor.is_outside)
    plan = ChaosPlan(subject, factors, cwd / "out", **options)
    bench = Bench(plan, InProcess(), {}, FakeClock(), Silence())
    with patch.object(metadata, "packages_distributions", DISTRIBUTIONS):
        return asyncio.run(Hunt(plan, bench).search())
