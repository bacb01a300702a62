"""Find how much GPU memory a test needs: it runs again and again, with a smaller and smaller limit.

    no limit ─▶ passes ─▶ bisection between the largest limit that is too small and the smallest that is enough
             ─▶ once more with the smallest ─▶ budget: the limit, or what the driver showed, with room for a context

Each probe is one supervised attempt with an interpreter of its own and GPUs of its own. Nothing is recorded.
"""

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil
from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError, InventoryError, UsageError
from harness.core.exit_codes import ExitCode
from harness.core.malformed import MALFORMED
from harness.core.need import Need
from harness.core.regular_file import read_text
from harness.runner import events
from harness.runner.attempts.unit_result import why_uncollected
from harness.runner.attempts.unit_run import UnitRunner
from harness.runner.options import RunOptions
from harness.runner.planning import Planned, collect_and_plan
from harness.runner.probing import search_with_probes
from harness.runner.reruns.retries import Retries
from harness.runner.run_context import RunContext, RunGpus
from harness.runner.schedule.leases import Lease
from harness.runner.sessions import memory_limit
from harness.runner.units import Outcome, Unit, UnitResult

RESOLUTION_BYTES = 64 * 10**6
RESOLUTION = 0.02
"""Share of the limit to which it is found, where that is more than RESOLUTION_BYTES."""
CONTEXT_BYTES = 700 * 10**6
"""Room for a CUDA context, which no limit covers; what the driver shows counts instead where that is more."""


class ProfileKind(StrEnum):
    """Answer to the question how much memory a test needs."""

    FOUND = "found"
    FAILS_ANYWAY = "fails_anyway"  # without a limit too
    NOT_LIMITED = "not_limited"  # PyTorch did not initialise CUDA in its process
    UNSTABLE = "unstable"  # equal limits gave different outcomes


@dataclass(frozen=True, slots=True)
class LimitProbe:
    """One attempt at the test."""

    limit_bytes: int
    """Limit of PyTorch's allocator on each GPU; 0 for none."""
    passed: bool
    reason: str
    duration_s: float
    is_set: bool
    """Whether PyTorch initialised CUDA, and so had the limit."""
    reserved_bytes: int
    """Most memory that PyTorch's allocator held on one GPU; 0 if unknown."""
    peak_bytes: int | None
    """Most memory of its processes on one GPU, as the driver showed it; None where not measured."""


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """How much memory a test needs."""

    kind: ProfileKind
    test: str
    num_gpus: int
    gpu: str
    """The GPU of the probes."""
    limit_bytes: int = 0
    """Smallest limit with which the test passed; 0 for none."""
    memory_gb: float = 0.0
    """Memory to ask for, in GB, with room for a CUDA context; 0 for none."""
    marker: str = ""
    """Marker to write."""
    probes: tuple[LimitProbe, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """0 where the need was found."""
        return ExitCode.OK if self.kind is ProfileKind.FOUND else ExitCode.TESTS_FAILED


def smallest_limit(high: int, guess: int = 0) -> Generator[int, bool, int]:
    """Search the smallest limit that is enough: yields limits, is sent whether each is enough, returns the smallest.

    `high` is known to be enough, and `guess` is tried first. Every limit is tried once, each below the last that was
    enough. The result was tried, or is `high`; what is less by the resolution was tried and too small.
    """
    low = 0
    limit = guess if 0 < guess < high else (low + high) // 2
    while high - low > max(RESOLUTION_BYTES, round(RESOLUTION * high)):
        if (yield limit):
            high = limit
        else:
            low = limit
        limit = (low + high) // 2
    return high


def budget_gb(limit_bytes: int, peak_bytes: int | None) -> float:
    """Return the memory to ask for, in GB rounded up to one digit."""
    return ceil(max(limit_bytes + CONTEXT_BYTES, peak_bytes or 0) / 10**8) / 10


def marker_of(num_gpus: int, memory_gb: float, gpu_memory_gb: float) -> str:
    """Return the marker for a test that needs so much memory on each of its GPUs."""
    is_shared = num_gpus == 1 and memory_gb <= gpu_memory_gb
    return f"@pytest.mark.gpus({num_gpus}, memory_gb={memory_gb:g}{', shared=True' if is_shared else ''})"


async def profile_memory(options: RunOptions, test: str, on_probe: Callable[[LimitProbe], None]) -> MemoryProfile | str:
    """Find the need of `test`, a file or node id as on the command line.

    Returns the name of the signal if one came first. Raises HarnessError for an error of the user.
    """
    return await search_with_probes(options, lambda context: _profile(context, test, on_probe), _check_gpus)


def _check_gpus(gpus: RunGpus) -> None:
    if gpus.inventory.pretended or not gpus.inventory.gpus:
        found = "simulated GPUs have no memory" if gpus.inventory.pretended else gpus.inventory.note or "0 GPUs"
        raise InventoryError(
            f"rlharness profile needs a GPU: {found}",
            legal="a free GPU of this machine",
            remedy="run it on a machine with a GPU, and give it one with --gpus auto",
        )


async def _profile(context: RunContext, test: str, on_probe: Callable[[LimitProbe], None]) -> MemoryProfile:
    planned = await collect_and_plan(context, lambda num_done, num_total: None, finds_node_ids=True)
    unit = _unit_of(planned, test)
    lease = planned.table.lease(unit.need)
    if lease is None:
        raise UsageError(
            f"rlharness profile {test}: {planned.table.why_never(unit.need)}",
            legal="a test whose need this machine can meet",
            remedy="run it on a machine with such GPUs",
        )
    runner = UnitRunner(
        options=context.options,
        collected=planned.collected,
        attempts=context.supervisors,
        watch=context.gpus.watch(context.clock),
        ports=context.ports,
        run_id=context.run_id,
        run_directory=context.scratch / "profile",
        scratch=context.scratch,
        t=context.clock.monotonic_s,
        retries=Retries(0, runs_rests=False),
    )
    return await LimitProber(runner, unit, lease, on_probe).search(test)


def _unit_of(planned: Planned, test: str) -> Unit:
    """Return the unit of the one file, with GPUs of its own."""
    units, not_found = planned.collected.units, planned.collected.not_found
    if len(units) != 1 or not units[0].can_run or not_found:
        what = f"it names {len(units)} test files"
        if len(units) == 1:
            what = why_uncollected(units[0]) or "; ".join("; ".join(not_found.values()).splitlines())
        raise UsageError(
            f"rlharness profile {test}: {what}",
            legal="one test file, or the node id of a test",
            remedy="name one that rlharness plan lists",
        )
    need = units[0].need
    return replace(units[0], need=Need(max(1, need.gpus), model=need.model, min_capability=need.min_capability))


@dataclass(slots=True)
class LimitProber:
    """Runs the test with one limit after another."""

    runner: UnitRunner
    unit: Unit
    lease: Lease
    on_probe: Callable[[LimitProbe], None]
    probes: list[LimitProbe] = field(default_factory=list)
    _result: UnitResult | None = None

    async def search(self, test: str) -> MemoryProfile:
        """Return the need of the test."""
        gpu = min(self.lease.gpus, key=lambda each: each.memory_gb)
        answer = MemoryProfile(ProfileKind.FAILS_ANYWAY, test, len(self.lease.gpus), str(gpu))
        first = await self.probe(0)
        if not first.passed or not first.is_set:
            kind = ProfileKind.FAILS_ANYWAY if not first.passed else ProfileKind.NOT_LIMITED
            return replace(answer, kind=kind, probes=tuple(self.probes))
        search = smallest_limit(round(gpu.memory_gb * 1e9), first.reserved_bytes)
        try:
            limit_bytes = next(search)
            while True:
                limit_bytes = search.send((await self.probe(limit_bytes)).passed)
        except StopIteration as end:
            limit_bytes = end.value
        last = await self.probe(limit_bytes)
        if not last.passed:
            return replace(answer, kind=ProfileKind.UNSTABLE, probes=tuple(self.probes))
        memory_gb = budget_gb(limit_bytes, last.peak_bytes)
        marker = marker_of(answer.num_gpus, memory_gb, gpu.memory_gb)
        return replace(
            answer,
            kind=ProfileKind.FOUND,
            limit_bytes=limit_bytes,
            memory_gb=memory_gb,
            marker=marker,
            probes=tuple(self.probes),
        )

    async def probe(self, limit_bytes: int) -> LimitProbe:
        """Run the test with a limit in bytes; 0 for none."""
        runner, options = self.runner, self.runner.options
        invocation = options.invocation
        environ = {**invocation.environ, memory_limit.LIMIT: str(limit_bytes)}
        trailing = ("-p", memory_limit.__name__, *invocation.trailing)
        runner.options = replace(options, invocation=replace(invocation, environ=environ, trailing=trailing))
        runner.post = self._take
        try:
            await runner.run(len(self.probes), self.unit, self.lease)
        finally:
            runner.options = options
        result = self._result
        assert result is not None
        said = _read_report(Path(result.directory, memory_limit.REPORT))
        probe = LimitProbe(
            limit_bytes,
            result.outcome is Outcome.PASSED and not result.tests.all_skipped,
            "every test was skipped" if result.tests.all_skipped else result.reason,
            result.duration_s,
            bool(said.get("is_set")),
            int(said.get("reserved_bytes", 0)),
            result.gpu_memory.peak_bytes if result.gpu_memory is not None else None,
        )
        self.probes.append(probe)
        self.on_probe(probe)
        return probe

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.UnitFinished):
            self._result = event.result
        elif isinstance(event, events.GpuQuarantined):
            raise HarnessError(
                f"{event.gpu_id} was not free again after {event.path}: {event.reason}",
                remedy="end what holds the GPU, and run this command again",
            )


def _read_report(path: Path) -> dict[str, Any]:
    """What the plugin has left; nothing where its process was ended first."""
    try:
        said = json.loads(read_text(path))
    except (OSError, *MALFORMED):
        return {}
    return said if isinstance(said, dict) else {}
