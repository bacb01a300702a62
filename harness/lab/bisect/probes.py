"""The probes of a bisection: each run once, the good end twice, since bits that come and go cannot be bisected."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.bits.errors import HarnessError
from harness.bits.exit_codes import ExitCode
from harness.bits.redaction import redact_argv
from harness.bits.text import path_text
from harness.lab.bisect.candidates import Candidates, UnavailableError, refuse_interrupted
from harness.lab.bisect.criterion import Criterion
from harness.lab.bisect.result import Bisection, Probe
from harness.lab.bisect.search import Outcome, Search
from harness.lab.experiments.entry_call import read_rejection
from harness.lab.experiments.launcher import Executor
from harness.lab.experiments.run import OUTPUT, TitledDisplay
from harness.lab.experiments.run_spec import RunSpec
from harness.lab.experiments.worktrees import Side, check_imports, check_origin
from harness.process.program_output import output_tail
from harness.trace.diff import diff
from harness.trace.reader import Trace, read_trace


class NothingToFindError(HarnessError):
    """The two ends are not what they were said to be: nothing lies between them that could be found."""

    exit_code = ExitCode.NOT_COMPARABLE


class EndsError(HarnessError):
    """An end that cannot be run."""

    exit_code = ExitCode.INCOMPLETE_RECORDING


class RevisionSearch:
    """One bisection."""

    def __init__(
        self,
        session: Executor,
        lines: TitledDisplay,
        candidates: Candidates,
        criterion: Criterion,
        directory: Path,
        *,
        checkout_root: Path | None = None,
    ) -> None:
        self._session = session
        self._lines = lines
        self._candidates = candidates
        self._criterion = criterion
        self._directory = directory
        self._checkout_root = checkout_root
        self._good: Trace | None = None

    async def first_bad(self, scenario: str, run_spec: RunSpec) -> Bisection:
        """Search. HarnessError where the ends do not allow it; what is known so far where a signal asks for the end."""
        candidates = self._candidates
        good = await self._good_end(run_spec)
        bad = await self._probe(candidates.bad, "bad", run_spec)
        self._check_end(bad)
        search = Search.of(candidates.parents, candidates.bad)
        probes: list[Probe] = []
        while (name := search.next_probe) is not None and not self._session.interrupted_by:
            probe = await self._probe(name, f"{search.num_left} to go", run_spec)
            if self._session.interrupted_by:
                break
            probes.append(probe)
            search = search.after(name, probe.outcome)
        return self._told(scenario, search, good, bad, probes)

    async def _good_end(self, run_spec: RunSpec) -> Probe:
        """The good end, which is shown to agree with itself."""
        name = self._candidates.good
        try:
            async with self._candidates.at(name) as side:
                good = await self._run(name, "good", run_spec, side)
                self._take(good)
                again = await self._run(name, "good, once more", run_spec, side, suffix="-again")
        except UnavailableError as error:
            self._check_end(Probe(name, self._candidates.describe(name), Outcome.SKIP, error.what))
            raise
        if again.outcome is not Outcome.GOOD:
            refuse_interrupted(self._session.interrupted_by)
            words = run_spec.typed or ("--", *run_spec.argv)
            replay = shlex.join(redact_argv(["rlharness", "replay", *words]))
            raise NothingToFindError(
                f"two runs of {good.label} differ: {again.reason}",
                legal="a run that gives the same bits twice",
                remedy=f"{replay} shows the first difference; --level deterministic may remove it; --by reward"
                " --tolerance X tolerates it",
            )
        return good

    def _take(self, good: Probe) -> None:
        """The run with which all others are compared. HarnessError where it cannot be that."""
        if good.outcome is Outcome.SKIP:
            self._check_end(good)
        assert good.directory is not None
        self._good = read_trace(good.directory)
        self._criterion.check(self._good)
        if (judged := self._criterion.classify(self._good, self._good)).outcome is not Outcome.GOOD:
            found = "is bad" if judged.outcome is Outcome.BAD else "cannot be compared"
            raise NothingToFindError(
                f"{good.label}, which should be good, {found}: {judged.reason}",
                legal="a good end for which --by does not hold",
                remedy="name an earlier one",
            )

    def _check_end(self, end: Probe) -> None:
        refuse_interrupted(self._session.interrupted_by)
        if end.outcome is Outcome.SKIP:
            said = f"; what it printed: {path_text(end.directory / OUTPUT)}" if end.directory else ""
            raise EndsError(
                f"{end.label} cannot be run: {end.reason}",
                legal="two ends that can be run",
                remedy=f"name another end, at which it runs{said}",
            )
        if end.outcome is Outcome.GOOD:
            remedy = "search between other versions, or another package"
            if self._checkout_root:
                remedy = "every revision runs the scenario or command of the working tree: it may have changed itself"
            raise NothingToFindError(
                f"{end.label}, which should be bad, equals the good one: {end.reason}",
                legal="a bad end that differs from the good one",
                remedy=remedy,
            )

    async def _probe(self, name: str, title: str, run_spec: RunSpec) -> Probe:
        """Run one candidate where it is had, and judge it."""
        try:
            async with self._candidates.at(name) as side:
                return await self._run(name, title, run_spec, side)
        except UnavailableError as error:
            told = self._candidates.describe(name)
            self._lines.end(f"{told} ({title}): skipped: {error.what}")
            return Probe(name, told, Outcome.SKIP, error.what)

    async def _run(self, name: str, title: str, run_spec: RunSpec, side: Side, *, suffix: str = "") -> Probe:
        """Run one candidate, and judge it; the first one is good."""
        told = self._candidates.describe(name)
        self._lines.title = f"{told} ({title})"
        if self._checkout_root is not None:
            check_origin(side, run_spec.call, self._checkout_root)
        place = self._directory / f"{told.split()[0] if self._checkout_root else name}{suffix}"
        run = await self._session.record(run_spec, place, environ=side.environ_of(run_spec), cwd=side.cwd)
        self._lines.ended(run)
        directory = run.recording.directory
        if refusal := read_rejection(directory):
            return Probe(name, told, Outcome.SKIP, f"its entry refuses to begin: {refusal.what}", directory)
        if not run.recording.is_complete or not run.recording.num_steps:
            problem = run.recording.problems[0].what if run.recording.problems else "no step was recorded"
            return Probe(name, told, Outcome.SKIP, ": ".join([problem, *output_tail(run.output)[-1:]]), directory)
        if self._checkout_root is not None and run_spec.call is None:
            check_imports(run, side, self._checkout_root)
        trace = read_trace(directory)
        chains = tuple(_chains(trace))
        if self._good is None:
            return Probe(name, told, Outcome.GOOD, "", directory, chains)
        judged = self._criterion.classify(self._good, trace)
        self._lines.end(f"{self._lines.title}: {judged.outcome.value}, {judged.reason}")
        return Probe(name, told, judged.outcome, judged.reason, directory, chains)

    def _told(self, scenario: str, search: Search[str], good: Probe, bad: Probe, probes: list[Probe]) -> Bisection:
        by_name = {probe.name: probe for probe in (good, *probes, bad)}
        found = by_name[search.bad]
        parents = self._candidates.parents.get(search.bad, ())
        before = [by_name[name] for name in parents if name in by_name and by_name[name].outcome is Outcome.GOOD]
        last_good = before[0] if before else good
        assert found.directory is not None and last_good.directory is not None
        left = [
            by_name.get(name) or Probe(name, self._candidates.describe(name), Outcome.SKIP, "not looked at")
            for name in search.candidates
        ]
        return Bisection(
            scenario=scenario,
            criterion=self._criterion,
            good=good,
            bad=bad,
            probes=tuple(probes),
            candidates=tuple(left),
            found=found,
            last_good=last_good,
            verdict=diff(read_trace(last_good.directory), read_trace(found.directory)),
            directory=self._directory,
            notes=(*_of_merge(parents, before), *_moved_again(found, bad, probes)),
            interrupted_by=self._session.interrupted_by,
        )


def _of_merge(parents: Sequence[str], good: Sequence[Probe]) -> Iterator[str]:
    """That a merge is to blame, and neither of the sides that it brings together."""
    if len(parents) > 1 and len(good) == len(parents):
        yield f"it is a merge, and {', '.join(probe.label for probe in good)} are good: only together they are not"


def _moved_again(found: Probe, bad: Probe, probes: list[Probe]) -> Iterator[str]:
    """That the first bad one is not all that happened between the two ends, as far as probes have shown it."""
    if found.chains != bad.chains:
        yield f"after it, bits have moved again: those of {bad.label} are others"
    others = [
        probe.label
        for probe in probes
        if probe.outcome is Outcome.BAD and probe.chains not in (found.chains, bad.chains)
    ]
    if others:
        yield f"and with {', '.join(others)} they were others still: what moved bits may have come in several commits"


def _chains(trace: Trace) -> Iterator[str]:
    for _, log in sorted(trace.ranks.items()):
        yield "".join(head.root.hex() for head in log.heads.values())
