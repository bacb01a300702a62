"""Searches for a perturbation that is seen in the bits, and for the smallest part of it that still is.

    baseline ─▶ nothing changed ─▶ probe 1, 2, ... ─▶ nothing changed, several times ─▶ ddmin
                     └──── differs: no perturbation is needed ◀───────┘

    payload keys ─▶ call        hash_seed, threads ─▶ variables
    latency ─▶ recording/latency        crash ─▶ crash.py

Which perturbation is the i-th of a seed depends on nothing else: each factor has random numbers of its own. While a
cause is looked for, a perturbation counts as harmless only after several runs: what comes and goes is not lost. A
search that is cut short keeps the smallest perturbation that was seen to fail.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import blake2b
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.lab.chaos.crash import END
from harness.lab.experiment.command_spec import SpecOptions
from harness.lab.experiment.flat_config import flattened, overridden
from harness.lab.experiment.launcher import Launcher, Run, check_program
from harness.lab.experiment.plain_yaml import read_yaml
from harness.lab.experiment.preparation import out_directory
from harness.lab.experiment.recorded_run import checkpoint_steps_in
from harness.lab.experiment.recording_result import Problem, how_it_ended
from harness.lab.experiment.scenario import ChaosSection, Range, asked_run, make_scenario_spec
from harness.process.clock import Clock
from harness.process.invocation import Invocation, num_cores
from harness.process.scratch import remove_tree
from harness.recording.run_spec import RunSpec, read_rejection
from harness.trace.diff import diff
from harness.trace.format import PHASES
from harness.trace.reader import Trace, excerpt, read_trace
from harness.trace.verdict import CauseCode, Verdict


def is_same(a: object, b: object) -> bool:
    """Whether two plain values are one: 1 is neither True nor 1.0."""
    return type(a) is type(b) and a == b


HASH_SEED, THREADS, LATENCY, CRASH = "hash_seed", "threads", "latency", "crash"
OUTSIDE = (HASH_SEED, THREADS, LATENCY, CRASH)
USUAL_HASH_SEED = 0
"""Of every run that has no other: without one, each process would have another."""
USUAL_QUARTERS = 3
"""In so many of four probes a factor is changed, unless it makes a run dear."""

Perturbation = Mapping[str, Any]
"""By the name of a factor, its value; empty for a run as it always is."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A setting that should not affect results."""

    name: str
    values: Sequence[Any]
    """A range of integers, or some values, the simplest first."""
    usual: Any = None
    """In a run as it always is; None where it is not set there."""
    num_quarters: int = USUAL_QUARTERS
    """In how many of four probes it is changed: what makes a run dear comes less often."""
    about: str = ""
    """What a sentence calls it: the trainer's thread count."""

    @property
    def is_outside(self) -> bool:
        """Whether it is brought from outside the program."""
        return self.name in OUTSIDE

    @property
    def shown_values(self) -> str:
        """1 to 9; 2, off."""
        span = self.values
        return f"{span[0]} to {span[-1]}" if isinstance(span, range) else ", ".join(map(str, span))

    def place_of(self, value: Any) -> int | None:
        """Return the place of a value among those that it can have; None if it cannot have it."""
        if isinstance(self.values, range):
            return self.values.index(value) if type(value) is int and value in self.values else None
        return next((at for at, each in enumerate(self.values) if is_same(each, value)), None)

    def drawn(self, number: int) -> Any:
        """Return the value that a large number picks; never the usual one, if there is another."""
        usual = self.place_of(self.usual) if len(self.values) > 1 else None
        at = number % (len(self.values) - (usual is not None))
        return self.values[at + (usual is not None and at >= usual)]


def outside_factors(num_cores: int, environ: Mapping[str, str]) -> tuple[Factor, ...]:
    """Return what can be changed of any program on this machine; what a crash needs is not known here."""

    def usual(text: str) -> int | None:
        return int(text) if text.isdecimal() else None

    seed, threads = environ.get("PYTHONHASHSEED") or str(USUAL_HASH_SEED), environ.get("OMP_NUM_THREADS", "")
    return (
        Factor(HASH_SEED, range(2**32), usual(seed), about="the hash seed"),
        Factor(THREADS, range(1, max(2, num_cores) + 1), usual(threads), about="the thread count"),
    )


def parse_moment(value: Any) -> tuple[int, str]:
    """(step, phase) of 2.backward; UsageError for anything else."""
    step, _, phase = str(value).partition(".")
    if not step.isdecimal() or phase not in (*PHASES, END):
        raise UsageError(f"{CRASH}={value}", legal=f"STEP.PHASE, with a phase of {', '.join(PHASES)}, or {END}")
    return int(step), phase


def format_perturbation(perturbation: Perturbation) -> str:
    """hash_seed=7, runtime.concurrency=3; "nothing changed" for none."""
    return ", ".join(f"{name}={written(value)}" for name, value in perturbation.items()) or "nothing changed"


def written(value: Any) -> str:
    """Return a value as `parse_only` reads it."""
    if isinstance(value, str):
        with suppress(UsageError):
            if is_same(read_yaml(value, ""), value):
                return value
    return json.dumps(value, ensure_ascii=False)


def parse_only(texts: Sequence[str], factors: Sequence[Factor]) -> dict[str, Any]:
    """Return the perturbation of FACTOR=VALUE texts; UsageError for an unknown factor, and a value it cannot have.

    The entry checks values of a payload's keys, but a range takes integers; values from outside are checked here.
    """
    by_name = {factor.name: factor for factor in factors}
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in by_name:
            legal = f"FACTOR=VALUE, with one of {', '.join(by_name)}"
            raise UsageError(f"--only {text}", legal=legal, remedy="check the spelling")
        if name == CRASH:
            parse_moment(value)
            found[name] = value
            continue
        factor, found[name] = by_name[name], read_yaml(value, f"--only {text}")
        if factor.is_outside and factor.place_of(found[name]) is None:
            raise UsageError(f"--only {text}", legal=f"{name} from {factor.shown_values}")
        is_number = type(found[name]) is int or is_same(found[name], factor.usual)
        if isinstance(factor.values, range) and not is_number:
            raise UsageError(f"--only {text}", legal=f"an integer: {name} is drawn from {factor.shown_values}")
    return found


def chosen(factors: Sequence[Factor], asked: str | None) -> tuple[Factor, ...]:
    """Return those that --factors names, all where it was not given; UsageError for unknown names, and for none."""
    known = {factor.name: factor for factor in factors}
    names = [name.strip() for name in asked.split(",")] if asked is not None else list(known)
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"there is no factor {unknown[0]!r} here", legal=", ".join(known) or "none")
    return tuple(known[name] for name in dict.fromkeys(names))


def payload_factors(section: ChaosSection, usual: Mapping[str, Any], *, size: str = "") -> tuple[Factor, ...]:
    """Return the factors of a payload in a size, of which `usual` are the values at dotted keys."""
    declared = {**section.factors, **section.sizes.get(size, {})}
    values = {
        key: range(each.min, each.max + 1) if isinstance(each, Range) else tuple(each) for key, each in declared.items()
    }
    return tuple(Factor(key, each, usual.get(key)) for key, each in values.items())


# ---------------------------------------------------------------------------------------------------- what is perturbed

DELAYS = "harness.recording.latency:Latency"
CRASHING_ENTRY = "harness.lab.chaos.crash:run"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
QUARTERS = 4
DEFAULT_COUNT = 20
DEFAULT_REPEATS = 3


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """Options of `rlharness chaos` as typed."""

    scenario: str | None = None
    """None for the command after `--`."""
    scenario_options: SpecOptions = field(default_factory=SpecOptions)
    of_factors: Mapping[str, Any] = field(default_factory=dict)
    """Of --count, --seed, --factors, --repeats and --only those that were given."""
    vary: tuple[str, ...] = ()
    """NAME=BASE,OTHER of --vary, which replaces the factors."""
    has_bits: bool = False
    """Whether no bit may differ, with --vary."""
    num_steps: int | None = None
    """Steps that are run, from the first on; None for all."""
    max_s: float = inf
    """Seconds after which no run begins."""
    timeout_s: float = inf
    """Limit on each run."""
    out: str | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A scenario or a command, and its factors."""

    spec_of: Callable[[Mapping[str, Any]], RunSpec]
    """The run spec of a run with these values at dotted keys of its payload."""
    factors: tuple[Factor, ...]
    typed: tuple[str, ...]
    """The words that name it, after `rlharness chaos`."""
    crash_settings: Mapping[str, Any] | None = None
    """Payload overrides of a run that will crash; None: no run can resume from it."""
    latency: tuple[str, ...] = ()
    """module:function of what waits for something outside; none of a command."""

    @property
    def is_command(self) -> bool:
        """Whether it is a command: one that cannot be ended in order after a step."""
        return self.spec_of({}).call is None

    def run_spec(self, perturbation: Perturbation, last_step: int | None = None) -> RunSpec:
        """Return that of a run under a perturbation, apart from its environment, start and crash."""
        settings = self.crash_settings if CRASH in perturbation else None
        values = {name: value for name, value in perturbation.items() if name not in OUTSIDE}
        delays = {"seed": perturbation.get(LATENCY), "functions": list(self.latency)}
        callbacks = {DELAYS: delays} if LATENCY in perturbation else {}
        return replace(self.spec_of({**values, **(settings or {})}), last_step=last_step, callbacks=callbacks)


def make_subject(invocation: Invocation, options: ChaosOptions) -> Subject:
    """Return the subject of a command line; UsageError for what cannot be run."""
    outside = outside_factors(num_cores(), invocation.environ)
    asked = asked_run(invocation, "chaos", options.scenario, options.scenario_options)
    section = asked.scenario.chaos
    flat = flattened(asked.scenario.payload(asked.size, asked.overrides))
    usual = {key: json.loads(text) for key, text in flat.items() if text != "{}"}
    latency = [Factor(LATENCY, range(1, 10_001), 0, num_quarters=2, about="tool latency")] if section.latency else []
    # Its moments are known after the baseline.
    crash = [] if section.crash is None else [Factor(CRASH, (), num_quarters=1, about="a crash")]

    def spec_of(values: Mapping[str, Any]) -> RunSpec:
        return make_scenario_spec(replace(asked, swept={key: (each,) for key, each in values.items()}))

    return Subject(
        spec_of,
        (*payload_factors(section, usual, size=asked.size), *outside, *latency, *crash),
        (*asked.typed, *recording_words(replace(asked.options, level="") if asked.typed else asked.options)),
        section.crash,
        tuple(section.latency),
    )


def recording_words(options: SpecOptions) -> tuple[str, ...]:
    """Return the words of a command line that say how its runs are recorded."""
    level = ("--level", options.level) if options.level else ()
    return (*level, *(word for metric in options.metrics for word in ("--metric", metric)))


# ------------------------------------------------------------------------------------------------- bringing it to a run


def environ_of(perturbation: Perturbation, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run. Without a hash seed it has the usual one, so that it is the same each time.

    Waiting threads sleep: more threads than cores would spend most of a run spinning.
    """
    seed = perturbation.get(HASH_SEED, environ.get("PYTHONHASHSEED") or USUAL_HASH_SEED)
    threads = dict.fromkeys(THREAD_VARIABLES, str(perturbation[THREADS])) if THREADS in perturbation else {}
    return {"OMP_WAIT_POLICY": "passive", **environ, "PYTHONHASHSEED": str(seed), **threads}


def with_factors(run_spec: RunSpec, perturbation: Perturbation, factors: Sequence[Factor]) -> RunSpec:
    """Return the run spec that records the values of its factors from outside."""
    usual = {each.name: each.usual for each in factors if each.is_outside and each.usual is not None}
    known = {**usual, **perturbation}
    outside = {name: written(known[name]) for name in OUTSIDE if name in known}
    return replace(run_spec, perturbation={**run_spec.perturbation, **outside})


def crashing(run_spec: RunSpec, perturbation: Perturbation) -> RunSpec:
    """Return the run spec of an entry that is killed at the moment that `crash` names."""
    call, (step, phase) = run_spec.call, parse_moment(perturbation[CRASH])
    assert call is not None
    config = {"entry": call.entry, "config": call.config, "step": step, "phase": phase}
    return replace(run_spec, call=replace(call, entry=CRASHING_ENTRY, config=config))


def resuming(run_spec: RunSpec, crashed: Path) -> RunSpec:
    """Return the run spec of a run that resumes from the newest checkpoint of a crashed run."""
    call = run_spec.call
    assert call is not None and call.resume is not None
    config = overridden(call.config, {call.resume["run"]: str(crashed.absolute())}, "chaos")
    return replace(run_spec, call=replace(call, config=config))


# -------------------------------------------------------------------------------------------------------------- drawing


def drawn(factors: Sequence[Factor], seed: int, index: int) -> dict[str, Any]:
    """Return the `index`-th perturbation of a seed: at least one factor, in the order of `factors`."""
    changed = [each for each in factors if number(seed, index, each.name, "whether") % QUARTERS < each.num_quarters]
    changed = changed or [factors[number(seed, index, "which") % len(factors)]]
    return {each.name: each.drawn(number(seed, index, each.name, "value")) for each in changed}


def number(*parts: int | str) -> int:
    """Return a large number that depends on these parts alone."""
    return int.from_bytes(blake2b("\0".join(map(str, parts)).encode(), digest_size=16).digest(), "big")


CHAOS = "chaos"
BASELINE = "run-1"
"""Directory of the baseline; each other run has a number of its own."""
DELAYED = "delayed"
"""A file in a run's directory, once a call of it has been delayed."""
SIGKILLED = 137
"""128 and the signal's number, as a shell has it."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """A search that can begin."""

    subject: Subject
    factors: tuple[Factor, ...]
    """Those that are changed; a crash has no moments yet, the baseline shows them."""
    directory: Path
    """Absolute; holds a directory for each run that is kept."""
    only: Mapping[str, Any] | None = None
    """The one perturbation that is wanted; None: they are drawn."""
    num_probes: int = DEFAULT_COUNT
    seed: int = 0
    num_repeats: int = DEFAULT_REPEATS
    """The most runs of one perturbation while a cause is looked for."""
    num_steps: int | None = None
    """So many steps are run, from the first on; None: all."""
    max_s: float = inf
    """No run begins later."""


def make_plan(invocation: Invocation, options: ChaosOptions, chaos_id: str) -> ChaosPlan:
    """Return the plan of a command line, and make its directory; UsageError for what cannot be used."""
    subject, wanted = make_subject(invocation, options), options.of_factors
    if options.num_steps is not None and options.scenario is None:
        raise UsageError("--steps and a command", remedy="pass the number to the command itself")
    if options.has_bits:
        raise UsageError("--bits without --vary", remedy="omit it: without --vary no bit may differ anyway")
    check_program(subject.run_spec({}), invocation.cwd, invocation.environ)
    factors = chosen(subject.factors, wanted.get("factors"))
    only = parse_only(wanted["only"], subject.factors) if "only" in wanted else None
    return ChaosPlan(
        subject,
        factors,
        out_directory(invocation.cwd, options.out, CHAOS, chaos_id).path,
        only,
        num_probes=wanted.get("count", DEFAULT_COUNT),
        seed=wanted.get("seed", 0),
        num_repeats=wanted.get("repeats", DEFAULT_REPEATS),
        num_steps=options.num_steps,
        max_s=options.max_s,
    )


# ----------------------------------------------------------------------------------------------------------- comparison


class Sign(Enum):
    """Effect of a probe."""

    SAME = "same"
    """Every bit of every step is the baseline's."""
    MOVED = "moved"
    """One is not."""
    BROKE = "broke"
    """A run did not go to its end, which the baseline did; as far as it went it is the same."""
    NOT_APPLIED = "not_applied"
    """Every bit is the baseline's, and a part of the perturbation never happened: nothing is known of it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A probe that has ended."""

    sign: Sign
    step: int | None = None
    """The first that is not the baseline's, or that is not there; None where all are there and the same."""
    verdict: Verdict | None = None
    """Verdict on baseline (A) and run (B), if a bit has moved or the run cannot be compared; else None."""
    problem: str = ""
    """Why a run is not whole, where it broke; what never happened, where that was not applied."""
    directory: Path | None = None
    """Directory of the run that shows it; None where all are the same."""

    @property
    def has_failed(self) -> bool:
        """Whether something was found."""
        return self.sign in (Sign.MOVED, Sign.BROKE)


def compare(baseline: Trace, run: Run, num_steps: int, first: int | None = None) -> Outcome:
    """Compare a run of the first `num_steps` steps, or one that resumed at step `first`, with the baseline."""
    first, last = baseline.steps[0] if first is None else first, baseline.steps[:num_steps][-1]
    if not run.recording.ranks:
        return _broke(run, first)
    trace = read_trace(run.recording.directory)
    verdict = diff(excerpt(baseline, first, last), trace)
    if verdict.first is not None:
        return _moved(run, verdict)
    if not run.recording.is_complete:
        return _broke(run, trace.steps[-1] + 1 if trace.steps else first)
    if verdict.reasons:
        return Outcome(Sign.BROKE, first, verdict, directory=run.recording.directory)
    return Outcome(Sign.SAME)


def compare_crashed(baseline: Trace, crashed: Run, resumed: Run, num_steps: int) -> Outcome:
    """Compare a run that has crashed as planned, and the run that resumed from it, with the baseline."""
    steps = baseline.steps[:num_steps]
    trace = read_trace(crashed.recording.directory) if crashed.recording.ranks else None
    done = [step for step in trace.steps if step in steps] if trace is not None else []
    if trace is not None and done:
        verdict = diff(excerpt(baseline, done[0], done[-1]), excerpt(trace, done[0], done[-1]))
        if verdict.first is not None:
            return _moved(crashed, verdict)
    next_step = done[-1] + 1 if done else steps[0]
    if not resumed.recording.ranks:
        return _broke(resumed, len(done))
    first = read_trace(resumed.recording.directory).steps[:1]
    if not first or first[0] not in steps or first[0] > next_step:
        return _broke(resumed, next_step, "the run did not resume from the crashed one")
    return compare(baseline, resumed, num_steps, first[0])


def has_died(baseline: Trace, run: Run, crash: str) -> bool:
    """Return whether a run was killed at the moment at which it was to be."""
    at, phase = parse_moment(crash)
    before = [step for step in baseline.steps if step < at + (phase == END)]
    return run.recording.exit_code == SIGKILLED and run.recording.num_steps == len(before)


def _moved(run: Run, verdict: Verdict) -> Outcome:
    assert verdict.first is not None
    settings = tuple(each for each in verdict.causes if each.code is CauseCode.ENVIRONMENT_DIFFERS)
    told = replace(verdict, causes=settings or verdict.causes)  # a perturbation that was made needs no other cause
    return Outcome(Sign.MOVED, verdict.first.step, told, directory=run.recording.directory)


def _broke(run: Run, step: int, problem: str = "") -> Outcome:
    problems = [problem] if problem else [each.what for each in run.recording.problems]
    problems = problems or [how_it_ended(run.recording.exit_code)]
    return Outcome(Sign.BROKE, step, problem=problems[0], directory=run.recording.directory)


# ------------------------------------------------------------------------------------------------------------- findings


@dataclass(frozen=True, slots=True)
class Tally:
    """How often a perturbation was run, and how often it failed."""

    num_failed: int = 0
    num_runs: int = 0

    def plus(self, *, has_failed: bool) -> "Tally":
        """Return it with one more run."""
        return Tally(self.num_failed + has_failed, self.num_runs + 1)


@dataclass(frozen=True, slots=True)
class Finding:
    """A perturbation that is seen in the bits."""

    perturbation: Mapping[str, Any]
    """The smallest that was found; empty where nothing has to be changed at all."""
    outcome: Outcome
    """Outcome of a run under it."""
    tally: Tally
    """All runs under it."""
    without: Tally
    """All runs with nothing changed."""
    drawn: Mapping[str, Any]
    """The perturbation with which it was first seen."""
    index: int | None = None
    """Number of that one among the drawn ones, from 1 on; None where none was drawn."""
    is_smallest: bool = True
    """Whether the search for a smaller one came to its end."""


@dataclass(frozen=True, slots=True)
class NotApplied:
    """A perturbation of which a part never happened: neither found nor cleared."""

    perturbation: Mapping[str, Any]
    why: str


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search that has ended."""

    num_runs: int = 0
    problem: str = ""
    """Why there is no baseline."""
    remedy: str = ""
    output: Path | None = None
    """Output of the run that should have been the baseline."""
    interrupted_by: str = ""
    """The name of a signal; empty where none has asked for the end."""
    is_out_of_time: bool = False


@dataclass(frozen=True)
class Chaos(Search):
    """A search for a perturbation that changes bits."""

    plan: ChaosPlan
    finding: Finding | None = None
    num_probes: int = 0
    """Drawn ones that were run and applied."""
    not_applied: tuple[NotApplied, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """What was found weighs most; then that the search did not come to its end."""
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        if self.finding is not None:
            return ExitCode.DIVERGED if self.finding.outcome.sign is Sign.MOVED else ExitCode.INCOMPLETE_RECORDING
        return ExitCode.INCOMPLETE_RECORDING if self.problem or not self.num_probes else ExitCode.OK


# ------------------------------------------------------------------------------------------------------------- the runs


class OutOfTimeError(Exception):
    """No further run is started: a signal has asked for the end, or time is up."""


class Executor:
    """Starts the runs of a plan, one at a time, and counts them."""

    def __init__(self, directory: Path, max_s: float, num_planned: int, session: Launcher, clock: Clock) -> None:
        self._directory, self._max_s, self._session, self._clock = directory, max_s, session, clock
        self._began_s, self._num_planned, self._num_titles = clock.monotonic_s(), num_planned, 0
        self.num_runs = 0

    def entitle(self, what: str) -> None:
        """Title the run that begins next, or both of a crash; those that search for a cause exceed the plan."""
        self._num_titles += 1
        number = f"run {self._num_titles} of {max(self._num_titles, self._num_planned)}"
        self._session.display.title = f"{number}: {what}"

    async def start(self, run_spec: RunSpec, environ: Mapping[str, str]) -> Run:
        """Make one run; OutOfTimeError if nothing more is to begin."""
        if self._session.interrupted_by or self._clock.monotonic_s() - self._began_s > self._max_s:
            raise OutOfTimeError
        self.num_runs += 1
        return await self._session.record(run_spec, self._directory, self.num_runs, environ=environ)


class ChaosExecutor(Executor):
    """Makes runs, one at a time, and keeps the traces of those that are not the baseline's."""

    baseline: Trace
    """The trace of the run with nothing changed, once that is recorded."""

    def __init__(self, plan: ChaosPlan, session: Launcher, environ: Mapping[str, str], clock: Clock) -> None:
        num_probes = plan.num_probes if plan.only is None else plan.num_repeats
        super().__init__(plan.directory, plan.max_s, 2 + num_probes, session, clock)
        self._plan, self._environ = plan, environ

    async def record_baseline(self) -> Run:
        """Make the run with which all others are compared; its trace is there where it is whole.

        OutOfTimeError where a signal has ended it.
        """
        self.entitle(format_perturbation({}))
        (run,) = await self._record({})
        if self._session.interrupted_by and not run.recording.is_complete:
            raise OutOfTimeError
        if run.recording.is_complete and run.recording.num_steps:
            self.baseline = read_trace(run.recording.directory)
        return run

    async def probe(self, perturbation: Perturbation) -> Outcome:
        """Run under a perturbation, and compare.

        UsageError where the entry refuses what it is given, OutOfTimeError where nothing more is to begin.
        """
        self.entitle(format_perturbation(perturbation))
        num_steps = len(self.baseline.steps)
        runs = await self._record(perturbation)
        if len(runs) > 1:
            outcome = compare_crashed(self.baseline, runs[0], runs[1], num_steps)
        else:
            outcome = compare(self.baseline, runs[0], num_steps)
        if outcome.sign is Sign.SAME and (missed := self._missed(perturbation, runs)):
            outcome = Outcome(Sign.NOT_APPLIED, problem=missed)
        if self._session.interrupted_by and outcome.sign is Sign.BROKE:
            raise OutOfTimeError
        if not outcome.has_failed:
            for run in runs:
                remove_tree(str(run.recording.directory))
        step = "" if outcome.step is None else f" at step {outcome.step}"
        self._session.display.end(f"{self._session.display.title}: {outcome.sign.value}{step}")
        return outcome

    async def _record(self, perturbation: Perturbation) -> list[Run]:
        """Make the run, or the one that crashes and the one that resumes from it."""
        last_step = None if self._plan.num_steps is None else self._plan.num_steps - 1
        run_spec = self._plan.subject.run_spec(perturbation, last_step)
        if CRASH not in perturbation:
            return [await self._start(run_spec, perturbation)]
        crashed = await self._start(crashing(run_spec, perturbation), perturbation)
        if not has_died(self.baseline, crashed, perturbation[CRASH]):
            return [crashed]
        if checkpoint_steps_in(crashed.recording.directory):
            run_spec = resuming(run_spec, crashed.recording.directory)
        return [crashed, await self._start(run_spec, perturbation, is_first=False)]

    def _missed(self, perturbation: Perturbation, runs: Sequence[Run]) -> str:
        """Return what of a perturbation never happened in its runs; empty where all of it did."""
        if CRASH in perturbation and len(runs) == 1:
            return f"the crash never came: a run has no moment {perturbation[CRASH]}"
        if LATENCY in perturbation and not any((run.recording.directory / DELAYED).exists() for run in runs):
            return f"no call of {', '.join(self._plan.subject.latency)} was delayed"
        return ""

    async def _start(self, run_spec: RunSpec, perturbation: Perturbation, *, is_first: bool = True) -> Run:
        """Make one run; UsageError if its entry refuses to begin, and nothing of the run is left then."""
        mark = str(self._plan.directory / f"run-{self.num_runs + 1}" / DELAYED)
        callbacks = {name: {**fields, "mark": mark} for name, fields in run_spec.callbacks.items()}
        run_spec = with_factors(replace(run_spec, callbacks=callbacks), perturbation, self._plan.subject.factors)
        run = await self.start(run_spec, environ_of(perturbation, self._environ))
        if is_first and (refusal := read_rejection(run.recording.directory)):
            remove_tree(str(run.recording.directory))
            cause = f" with {format_perturbation(perturbation)}" if perturbation else ""
            what = f"the entry refuses to begin{cause}: {refusal.what}"
            raise UsageError(what, legal=refusal.legal, remedy=refusal.remedy)
        return run


# ----------------------------------------------------------------------------------------------------------- the search


async def ddmin(items: Sequence[T], fails: Callable[[tuple[T, ...]], Awaitable[bool]]) -> tuple[T, ...]:
    """Return a subset of items that fail together, none of which can be left out; in their order."""
    current, num_parts = tuple(items), 2
    answers: dict[tuple[T, ...], bool] = {}
    while len(current) > 1:
        edges = [len(current) * at // num_parts for at in range(num_parts + 1)]
        parts = [current[first:last] for first, last in pairwise(edges)]
        rests = [tuple(each for each in current if each not in part) for part in parts] if num_parts > 2 else []
        for candidate in (*parts, *rests):
            if candidate not in answers:
                answers[candidate] = await fails(candidate)
            if answers[candidate]:
                current, num_parts = candidate, 2 if candidate in parts else max(num_parts - 1, 2)
                break
        else:
            if num_parts == len(current):
                return current
            num_parts = min(2 * num_parts, len(current))
    return current


class PerturbationSearch:
    """One search."""

    def __init__(self, plan: ChaosPlan, executor: ChaosExecutor) -> None:
        self._plan, self._executor = plan, executor
        self._chaos, self._without = Chaos(plan), Tally()
        self._tallies: dict[str, Tally] = {}
        """By the text of a perturbation and of its steps."""

    async def search(self) -> Chaos:
        """Carry out the plan; return the results so far if it cannot continue.

        UsageError where nothing can be changed, or the entry refuses what it is given.
        """
        try:
            run = await self._executor.record_baseline()
            if run.recording.is_complete and run.recording.num_steps:
                await self._search()
            else:
                problem = next(iter(run.recording.problems), Problem("no step was recorded"))
                self._note(problem=problem.what, remedy=problem.remedy, output=run.output)
        except OutOfTimeError:
            self._note(is_out_of_time=True)
        return replace(self._chaos, num_runs=self._executor.num_runs)

    def _note(self, **fields: Any) -> None:
        self._chaos = replace(self._chaos, **fields)

    @property
    def _finding(self) -> Finding:
        assert self._chaos.finding is not None
        return self._chaos.finding

    async def _search(self) -> None:
        plan, baseline = self._plan, self._executor.baseline
        factors = with_moments(plan.factors, baseline, is_cut=plan.num_steps is not None)
        if not factors:
            what = f"nothing to perturb: a run of {len(baseline.steps)} steps is too short for a crash"
            raise UsageError(what, remedy="run more steps, or omit --factors")
        if await self._fails_unchanged(1):
            return
        wanted = [dict(plan.only)] * plan.num_repeats if plan.only is not None else []
        probes = wanted or [drawn(factors, plan.seed, index) for index in range(1, plan.num_probes + 1)]
        tally, seen = Tally(), list[dict[str, Any]]()
        for index, perturbation in enumerate(probes, 1):
            if perturbation in seen and not wanted:  # few factors have few values
                continue
            seen.append(perturbation)
            outcome = await self._executor.probe(perturbation)
            if outcome.sign is Sign.NOT_APPLIED:
                self._note(not_applied=(*self._chaos.not_applied, NotApplied(perturbation, outcome.problem)))
                if wanted:
                    return
                continue
            self._note(num_probes=1 if wanted else self._chaos.num_probes + 1)
            tally = tally.plus(has_failed=outcome.has_failed)
            if not outcome.has_failed:
                continue
            found = Finding(perturbation, outcome, tally, self._without, perturbation)
            self._note(finding=found)
            if not wanted:
                self._note(finding=replace(found, tally=Tally(1, 1), index=index, is_smallest=False))
                await self._explain()
            return

    async def _fails_unchanged(self, num_runs: int) -> bool:
        """Return whether the run differs from itself, in so many more runs; that is a finding too."""
        for _ in range(num_runs):
            outcome = await self._executor.probe({})
            self._without = self._without.plus(has_failed=outcome.has_failed)
            while outcome.has_failed:
                self._note(finding=Finding({}, outcome, self._without, self._without, {}))
                if self._without.num_runs >= self._plan.num_repeats:
                    return True
                again = await self._executor.probe({})
                self._without = self._without.plus(has_failed=again.has_failed)
        return False

    async def _explain(self) -> None:
        """Look for the smallest part of a perturbation that still fails in the same way, then run it several times."""
        whole = self._finding.perturbation
        if await self._fails_unchanged(self._plan.num_repeats):
            return
        self._note(finding=replace(self._finding, without=self._without))
        await ddmin(tuple(whole), lambda names: self._fails({name: whole[name] for name in names}))
        while self._finding.tally.num_runs < self._plan.num_repeats:
            await self._run(self._finding.perturbation, self._finding.tally)
        self._note(finding=replace(self._finding, is_smallest=True))

    async def _fails(self, perturbation: Perturbation) -> bool:
        """Return whether a perturbation fails in one of several runs; it is the smallest so far, then."""
        tally = Tally()
        for _ in range(self._plan.num_repeats):
            tally = await self._run(perturbation, tally)
            if tally.num_failed:
                return True
        return False

    async def _run(self, perturbation: Perturbation, tally: Tally) -> Tally:
        """Make one run; if it fails in the same way as the first one, it is the finding. Return its tally."""
        outcome = await self._executor.probe(perturbation)
        is_alike = outcome.sign is self._finding.outcome.sign
        tally = tally.plus(has_failed=is_alike)
        if is_alike:
            self._note(finding=replace(self._finding, perturbation=perturbation, outcome=outcome))
        if perturbation == self._finding.perturbation:
            self._note(finding=replace(self._finding, tally=tally))
        return tally


def with_moments(factors: Sequence[Factor], baseline: Trace, *, is_cut: bool = False) -> tuple[Factor, ...]:
    """Return the factors, a crash with its moments: each phase of each step but the first, before all checkpoints.

    A run that is cut is ended with its last step: nothing comes right after that.
    """
    moments = []
    for step in baseline.steps[1:]:
        phases = dict.fromkeys(value.phase for value in baseline.columns(step, min(baseline.logs(step))).values())
        moments += [f"{step}.{phase}" for phase in (*phases, END)]
    known = (
        replace(each, values=moments[: -1 if is_cut else None]) if each.name == CRASH else each for each in factors
    )
    return tuple(each for each in known if each.values)
