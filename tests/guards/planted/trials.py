"""One fault against the checks, in the order in which a user has them; the first that finds it ends it.

    engine     what the engine itself refuses
    replay     two runs of one configuration, in two processes with two hash seeds
    chaos      what must not matter is changed: all of it together, then one by one; a crash and a resume
    gate       the honest engine's trace of the same configuration

What two traces are to each other is `harness.trace.diff`'s to say. A fault of mathematics, that is wrong in the same
way whatever is perturbed, is for the gate alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.trace.diff import diff
from harness.trace.manifest import Manifest
from harness.trace.reader import Trace, read_trace
from harness.trace.verdict import Divergence, Kind
from harness.trace.writer import TraceWriter
from tests.guards.planted.fault import LEVEL, RESUME, Fault
from tests.guards.planted.perturbations import CRASH, RANKS, SINGLE, TOGETHER, Perturbation
from tests.guards.planted.settings import CHECKPOINT_EVERY, CRASH_AFTER, payload
from tests.guards.planted.workers import Run, Workers

ENGINE, REPLAY, CHAOS, GATE, NOTHING = "engine", "replay", "chaos", "gate", "nothing"


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of a fault."""

    fault: Fault
    check: str
    """engine, replay, chaos, gate; nothing where no check has found it."""
    how: str = ""
    """The error, or what was perturbed."""
    phases: tuple[str, ...] = ()
    """Where it is said to lie; two where a check compares what two phases made."""
    leaf: str = ""
    step: int | None = None
    """The step that is named; None where there is none."""
    is_reached: bool = False
    """Whether the fault has said that its code ran."""
    what: str = ""
    """What the check said, in full."""

    @property
    def is_localised(self) -> bool:
        """Whether a phase it lies in was named, and the leaf where one has to be; of one without effect, nothing."""
        if self.fault.is_harmless:
            return self.check == NOTHING
        has_leaf = not self.fault.leaves or not self.leaf or any(part in self.leaf for part in self.fault.leaves)
        return bool(set(self.phases) & set(self.fault.phases)) and has_leaf

    @property
    def is_designed(self) -> bool:
        """Whether a check found it: no run ended by an exception of another kind, or did not end."""
        return "broken: " not in self.how and "hung: " not in self.how


@dataclass(frozen=True, slots=True)
class _Seen:
    """A difference, or a refusal, in one of the runs."""

    step: int | None
    phases: tuple[str, ...]
    leaf: str
    how: str
    what: str


def findings(workers: Workers, faults: Sequence[Fault], goldens: Mapping[str, Run]) -> Iterator[Finding]:
    """Try faults, as many side by side as there are workers; findings come in the order of the faults."""

    def found(number: int, fault: Fault) -> Finding:
        return Trial(workers, fault, goldens[fault.setting], number).finding()

    with ThreadPoolExecutor(workers.num_workers) as pool:
        yield from pool.map(found, range(len(faults)), faults)


class Trial:
    """The runs of one fault."""

    def __init__(self, workers: Workers, fault: Fault, golden: Run, first: int) -> None:
        """`first` is the number of the worker of its first run; they count round."""
        self._workers, self._fault, self._golden, self._first = workers, fault, golden, first
        self._runs: list[Run] = []

    def finding(self) -> Finding:
        """Carry it out."""
        check, seen = self._found(self._run())
        return Finding(
            fault=self._fault,
            check=check,
            how=seen.how,
            phases=seen.phases,
            leaf=seen.leaf,
            step=seen.step,
            is_reached=any(run.is_reached for run in self._runs),
            what=seen.what,
        )

    def _found(self, a: Run) -> tuple[str, _Seen]:
        """The first check that sees something, and what it sees."""
        if (seen := _refusal(a)) is not None:
            return ENGINE, seen
        b = self._run(worker=1)
        if (seen := _refusal(b) or _difference(a.trace, b.trace, "the same again")) is not None:
            return REPLAY, seen
        if (seen := next(self._chaos(a), None)) is not None:
            return CHAOS, seen
        if (seen := _difference(self._golden.trace, a.trace, "the honest engine")) is not None:
            return GATE, seen
        return NOTHING, _Seen(None, (), "", "", "")

    def _run(self, values: Mapping[str, Any] | None = None, *, lost_after: int | None = None, worker: int = 0) -> Run:
        asked = payload(self._fault.setting, {"fault.name": self._fault.name, **(values or {})})
        run = self._workers.run(asked, lost_after=lost_after, worker=self._first + worker)
        self._runs.append(run)
        return run

    def _chaos(self, a: Run) -> Iterator[_Seen]:
        """What moves under perturbations: the single one that does it where there is one."""
        if (seen := _of_a_perturbed(a, self._run(TOGETHER.values), TOGETHER)) is not None:
            for each in SINGLE:
                if (alone := _of_a_perturbed(a, self._run(each.values, worker=1), each)) is not None:
                    yield alone
            yield seen
        if self._fault.is_in_ranks and (seen := _of_a_perturbed(a, self._run(RANKS.values), RANKS)) is not None:
            yield seen
        lost = self._run({"output.checkpoint_every": CHECKPOINT_EVERY}, lost_after=CRASH_AFTER)
        if lost.end != "lost":
            yield _of_a_perturbed(a, lost, CRASH) or _Seen(None, (), "", CRASH.name, f"{lost.end}: {lost.what}")
        resumed = self._run({"output.resume": str(lost.directory)}, worker=1)
        if (seen := _of_a_resumed(a, lost, resumed, self._workers.new_directory())) is not None:
            yield seen


def _of_a_perturbed(a: Run, run: Run, perturbation: Perturbation) -> _Seen | None:
    refused = _refusal(run)
    if refused is not None:
        return _Seen(refused.step, refused.phases, refused.leaf, f"{perturbation.name}: {refused.how}", refused.what)
    return _difference(a.trace, run.trace, perturbation.name)


def _of_a_resumed(a: Run, lost: Run, resumed: Run, scratch: Path) -> _Seen | None:
    """The steps of the run that was lost, and those of the one that went on, against all of `a`."""
    if (seen := _difference(a.trace, lost.trace, "crash")) is not None:
        return seen
    if (refused := _refusal(resumed)) is not None:
        return _Seen(refused.step, refused.phases, refused.leaf, f"{CRASH.name}: {refused.how}", refused.what)
    whole, later = read_trace(a.trace), read_trace(resumed.trace)
    return _difference(steps_from(whole, min(later.steps), scratch), resumed.trace, CRASH.name)


def differing(a: Run, perturbed: list[Run], scratch: Path) -> str:
    """What is not alike in an honest run and the same perturbed: one run, or one that is lost and one that goes on."""
    if len(perturbed) == 1:
        seen = _refusal(perturbed[0]) or _difference(a.trace, perturbed[0].trace, "perturbed")
    else:
        lost, resumed = perturbed
        seen = None if lost.end == "lost" else _Seen(None, (), "", lost.end, lost.what)
        seen = seen or _of_a_resumed(a, lost, resumed, scratch)
    return "" if seen is None else f"{seen.how}: {seen.what}"


def steps_from(trace: Trace, first: int, directory: Path) -> Path:
    """A trace of the later steps of one rank's, as a run has it that goes on."""
    assert trace.manifest is not None
    begun = Manifest(trace.manifest.fingerprint, level=trace.manifest.level)
    with TraceWriter(directory / "later", begun, say=lambda line: None) as writer:
        for step in trace.steps:
            if step >= first:
                writer.append(step, trace.columns(step, 0).values())
    return directory / "later"


def _refusal(run: Run) -> _Seen | None:
    """Why a run did not come to its end; None where it did, or was lost as was asked for."""
    if run.end in ("whole", "lost"):
        return None
    phases = run.phases or {"CheckpointError": (RESUME,), "LevelError": (LEVEL,)}.get(run.error, ())
    how = run.error if run.end == "refused" else f"{run.end}: {run.error}"
    return _Seen(run.step, phases, "", how, run.what)


def _difference(a: Path, b: Path, how: str) -> _Seen | None:
    """The first place where two traces are not alike; None where they are, as far as the shorter one goes."""
    verdict = diff(read_trace(a), read_trace(b))
    if verdict.kind is Kind.NOT_COMPARABLE:
        return _Seen(None, (), "", how, "; ".join(map(str, verdict.reasons)))
    first = verdict.first
    if first is None:
        return None
    leaf = first.a or first.b
    return _Seen(
        first.step, () if leaf is None else (leaf.phase,), "" if leaf is None else leaf.name, how, _told(first)
    )


def _told(first: Divergence) -> str:
    leaf = first.a or first.b
    place = "the step" if leaf is None else f"{leaf.phase} {leaf.name}"
    return f"step {first.step}, {place}, {first.num_different} of {first.num_values} leaves"
