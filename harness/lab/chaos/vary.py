"""Settings of a command that must not matter: a run for each value, and what it changes beyond rounding.

    --vary G=1,4 -- python train.py {G}
    base ─▶ itself once more ─▶ nudged by one ulp ─▶ each value ─▶ all harmless values at once ─▶ a smaller combination
                                                        └─ differs: control runs, blind to the other rows of a batch

Each run but the base starts every optimizer step with the base's weights and state, so that nothing grows; what it
measures is in `harness.recording.locked_steps`. This module reads those measurements, and needs no torch.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.files import UNLIMITED, read_regular
from harness.bits.text import count
from harness.lab.chaos.factors import ChaosOptions, environ_of, launched, recording_words
from harness.lab.chaos.search import OutOfTimeError, Runs, check_start, ddmin, make_directory
from harness.lab.experiments.command_spec import make_command_spec, refuse_scenario_options
from harness.lab.experiments.run import Run
from harness.lab.experiments.run_spec import RunSpec
from harness.process.clock import Clock
from harness.process.invocation import Invocation
from harness.process.scratch import remove_tree

LOCKED_STEPS = "harness.recording.locked_steps:LockedSteps"
LOCKED = "locked"
"""Below the directory of a run: its measurements, and the tensors of a base."""
LINES = "steps.jsonl"
TIED = {"dropout": "dropout", "batch_norm": "batch norm"}
_NAME = re.compile(r"[A-Za-z_]\w*")
_ALONE = re.compile(r"(?:[^{}]*=)?\{([A-Za-z_]\w*)\}")
"""An argument that is a placeholder, alone or after an equals sign."""


class Kind(Enum):
    """What a value does."""

    EQUAL = "equal"
    ROUNDING = "rounding"
    FACTOR = "factor"
    SETTINGS = "settings"
    DIFFERENT = "different"
    BY_DESIGN = "by design"
    RANDOM = "random"
    FAILED = "failed"


HARMLESS = (Kind.EQUAL, Kind.ROUNDING)
FAULTS = (Kind.FACTOR, Kind.SETTINGS, Kind.DIFFERENT)


# ------------------------------------------------------------------------------------------------------------ settings


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that must not matter."""

    name: str
    values: tuple[str, ...]
    """The base's value first."""


def parse_settings(texts: Sequence[str], argv: Sequence[str]) -> tuple[Setting, ...]:
    """Return the settings of NAME=BASE,OTHER texts; UsageError if they do not fit the command's placeholders."""
    found: dict[str, Setting] = {}
    for text in texts:
        name, _, values = text.partition("=")
        listed = tuple(values.split(","))
        if not _NAME.fullmatch(name) or len(listed) < 2 or "" in listed or len(set(listed)) < len(listed):
            raise UsageError(
                f"--vary {text}",
                legal="NAME=BASE,OTHER,...: a name, the base value, and at least one other value",
                remedy="--vary G=1,4 -- python train.py --accum {G}",
            )
        if name in found:
            raise UsageError(f"--vary {name} is given twice", legal="each name once, with all its values")
        if not any(f"{{{name}}}" in word for word in argv):
            raise UsageError(
                f"--vary {name}: the command has no {{{name}}}",
                legal=f"a command with {{{name}}} where the value goes",
                remedy=f"-- python train.py --option {{{name}}}",
            )
        found[name] = Setting(name, listed)
    for word in argv:
        alone = _ALONE.fullmatch(word)
        if alone and alone[1] not in found:
            raise UsageError(
                f"{{{alone[1]}}} in the command has no values",
                legal=f"--vary {alone[1]}=BASE,OTHER for it; braces within a longer argument stay as they are",
                remedy=f"add --vary {alone[1]}=BASE,OTHER, or check the spelling: {', '.join(found)}",
            )
    return tuple(found.values())


def fill(argv: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command with values in place of their {NAME}; {{NAME}} and all other braces stay as they are."""
    names = "|".join(values)
    return tuple(re.sub(rf"(?<!\{{)\{{({names})\}}(?!\}})", lambda match: values[match[1]], word) for word in argv)


def assignment(values: Mapping[str, str]) -> str:
    """G=4 with cache=on."""
    return " with ".join(f"{name}={value}" for name, value in values.items())


# ------------------------------------------------------------------------------------------------------------ verdicts

Line = dict[str, Any]
Ranks = dict[str, list[Line]]
"""Lines of each process, by its rank."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The effect of some values."""

    values: Mapping[str, str]
    """Those that are not the base's."""
    kind: Kind
    sentence: str
    step: int | None = None
    """Where the difference begins."""
    times: float | None = None
    """The difference, or the largest one, in multiples of rounding; None if it has none."""
    directory: Path | None = None
    """Of the run; None if it is not kept."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Measurements of a run against those of the base, as far as the first difference."""

    kind: Kind
    line: Line
    """Of the step that differs first; of rounding, the first step in which a bit differs."""
    worst: tuple[float, str, str] | None
    """(multiple of rounding, phase, name) of the largest rounding."""
    moved: tuple[str, int] | None
    """(generator, step) where random numbers stand elsewhere first, up to that step."""
    num_steps: tuple[int, int]
    """Of the base, and of the run."""


def compare(base: Ranks, varied: Ranks, unsteady: frozenset[str] = frozenset()) -> Comparison:
    """Compare what both have; of several ranks, return the comparison of the first that differs most.

    `unsteady` are generators that stand elsewhere in each run of the base.
    """
    found = [_compare_rank(base[rank], varied[rank], unsteady) for rank in base if rank in varied]
    return min(found, key=lambda each: (Kind.ROUNDING, Kind.EQUAL).index(each.kind) + 1 if each.kind in HARMLESS else 0)


def _compare_rank(base: list[Line], varied: list[Line], unsteady: frozenset[str]) -> Comparison:
    known = {(line["optimizer"], line["number"]): line for line in base}
    first, worst, moved, sizes = None, None, None, (len(base), len(varied))
    for line in varied:
        mine = known.get((line["optimizer"], line["number"]))
        if mine is None:
            continue
        elsewhere = [
            each for each in mine["random"] if each not in unsteady and mine["random"][each] != line["random"].get(each)
        ]
        moved = moved or ((elsewhere[0], line["number"]) if elsewhere else None)
        if line["difference"]:
            return Comparison(Kind(line["difference"]["kind"].lower()), line, worst, moved, sizes)
        first = first or (line if line["bit"] else None)
        if line["worst"]:
            worst = max(worst or (0.0, "", ""), tuple(line["worst"]))
    if len(base) != len(varied):
        return Comparison(Kind.DIFFERENT, {"difference": None}, worst, moved, sizes)
    return Comparison(Kind.ROUNDING if first else Kind.EQUAL, first or {}, worst, moved, sizes)


def sentence_of(values: Mapping[str, str], base_values: Mapping[str, str], found: Comparison, *, has_bits: bool) -> str:
    """Return what the comparison shows, as a person says it."""
    name, (num_base, num_varied) = assignment(values), found.num_steps
    if found.kind is Kind.EQUAL:
        return f"{name} changes no bit of {count(num_base, 'step')}."
    if found.kind is Kind.ROUNDING:
        worst = found.worst[0] if found.worst else 0.0
        promise = "no bit may differ, yet " if has_bits else ""
        return (
            f"{promise}{name} changes bits from {_step(found.line)} on ({_where(*found.line['bit'])}), at most"
            f" {worst:.2g} times what one ulp of the weights does."
        )
    counts = f"{count(num_base, 'step')} in the base, {num_varied} with {name}"
    difference = found.line["difference"]
    if difference is None:
        end = "its last steps are left out" if num_varied < num_base else "it has more steps at its end"
        return f"{counts}: {end}; the steps that both have differ by rounding at most."
    at = _step(found.line)
    lead = f"{at[0].upper()}{at[1:]}: with {name}"
    if found.kind is Kind.SETTINGS:
        mine, its = (("none" if each is None else f"{each:.6g}") for each in difference["values"])
        setting = difference["name"].split(".", 1)[1]
        is_rate = setting == "lr"
        what = "the learning rate" if is_rate else f"{setting} of the optimizer"
        told = f"{lead} {what} is {its} against {mine} in the base"
        return told + (": the schedule follows something else than optimizer steps." if is_rate else ".")
    if found.kind is Kind.FACTOR:
        factor = difference["factor"]
        what = "all gradients are" if difference["of"] == "gradients" else "the update of all weights is"
        return f"{lead} {what} {factor:.4g} times the base's{_reason(values, base_values, factor)}."
    much = (
        f"differs by {difference['share']:.2g} of its norm, {difference['times']:.1g} times rounding"
        if difference["times"]
        else f"differs: {difference['problem']}"
    )
    number = found.line["number"]
    before = (
        "" if not number else f"; {f'steps 0-{number - 1}' if number > 1 else 'step 0'} differed by rounding at most"
    )
    more = "" if num_base == num_varied else f"; {counts}"
    return f"{lead} {_where(difference['phase'], difference['name'])} {much}{before}{more}."


def _reason(values: Mapping[str, str], base_values: Mapping[str, str], factor: float) -> str:
    """Name the setting whose value the factor is."""
    for name, value in values.items():
        try:
            times = float(value) / float(base_values[name])
        except (ValueError, ZeroDivisionError):
            continue
        if times != 1 and math.isclose(factor, times, rel_tol=1e-3):
            return f": the loss is not divided by {name}"
        if times != 1 and math.isclose(factor, 1 / times, rel_tol=1e-3):
            return f": the loss is divided by {name} once too often"
    return ""


def _step(line: Line) -> str:
    return f"step {line['number']}" + (f" of optimizer {line['optimizer']}" if line["optimizer"] else "")


def _where(phase: str, name: str) -> str:
    return {"gradient": "the gradient of {}", "state": "the optimizer's {}", "before": "{} before the step"}.get(
        phase, "{} after the step"
    ).format(name)


def calls_of(ranks: Ranks) -> dict[str, list[list[Any]]]:
    """Return by kind the [step, shape] of each call that a control has seen."""
    found: dict[str, list[list[Any]]] = {}
    for lines in ranks.values():
        for line in lines:
            for kind, shape in line["calls"]:
                found.setdefault(kind, []).append([line["number"], shape])
    return found


def amounts(calls: Mapping[str, list[list[Any]]]) -> Counter[tuple[str, int]]:
    """Return how many random numbers each kind of call has drawn in each step."""
    found: Counter[tuple[str, int]] = Counter()
    for kind, each in calls.items():
        for step, shape in each if kind != "batch_norm" else ():
            found[kind, step] += math.prod(shape)
    return found


def split_noise(base: Mapping[str, list[list[Any]]], varied: Mapping[str, list[list[Any]]]) -> list[str]:
    """Return the lines of code that draw as many numbers in both, in other pieces."""
    mine, its = amounts(base), amounts(varied)
    kinds = [kind for kind in base if kind not in TIED and base[kind] != varied.get(kind)]
    return [kind for kind in kinds if all(mine[key] == its[key] for key in {*mine, *its} if key[0] == kind)]


def pieces(base: Mapping[str, list[list[Any]]], varied: Mapping[str, list[list[Any]]], ties: Sequence[str]) -> str:
    """Return how the calls of tied kinds differ in the first step: dropout draws in 4 pieces instead of 1."""
    found = []
    for kind in (*TIED, *ties):
        mine, its = (each.get(kind, []) for each in (base, varied))
        if mine == its:
            continue
        step = next(a or b for a, b in zip(mine + [None] * len(its), its + [None] * len(mine), strict=True) if a != b)[
            0
        ]
        shapes = [[shape for at, shape in each if at == step] for each in (its, mine)]
        if kind == "batch_norm":
            rows = [shapes[0][0][0] if shapes[0] else 0, shapes[1][0][0] if shapes[1] else 0]
            found.append(f"batch norm normalises over {rows[0]} rows instead of {rows[1]}")
        else:
            found.append(f"{kind} draws in {count(len(shapes[0]), 'piece')} a step instead of {len(shapes[1])}")
    return " and ".join(found)


# ------------------------------------------------------------------------------------------------------------ the runs


@dataclass(frozen=True, slots=True)
class VaryPlan:
    """A comparison of settings that can begin."""

    settings: tuple[Setting, ...]
    argv: tuple[str, ...]
    """The command, with its placeholders."""
    spec_of: Callable[[tuple[str, ...]], RunSpec]
    """The run spec of a command."""
    directory: Path
    """Absolute; holds a directory for each run that is kept."""
    typed: tuple[str, ...]
    """Words of the command line that say how its runs are recorded."""
    num_steps: int | None
    has_bits: bool
    """Whether no bit may differ."""
    max_s: float
    timeout_s: float
    stdin: Path

    @property
    def base_values(self) -> dict[str, str]:
        """The first value of each setting."""
        return {each.name: each.values[0] for each in self.settings}

    def command(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command of a run with these values, and the base's of all other settings."""
        return fill(self.argv, {**self.base_values, **values})


@dataclass(frozen=True, slots=True)
class Varied:
    """A comparison of settings that has ended."""

    plan: VaryPlan
    verdicts: tuple[Verdict, ...] = ()
    num_runs: int = 0
    problem: str = ""
    """Why there is no base."""
    remedy: str = ""
    output: Path | None = None
    """What the run printed that should have been the base."""
    unsteady: str = ""
    """Where the base differs from itself; empty if it repeats itself."""
    interrupted_by: str = ""
    is_out_of_time: bool = False

    @property
    def faults(self) -> tuple[Verdict, ...]:
        """Verdicts of values that change more than they may."""
        kinds = (*FAULTS, Kind.ROUNDING, Kind.BY_DESIGN) if self.plan.has_bits else FAULTS
        return tuple(each for each in self.verdicts if each.kind in kinds)

    @property
    def exit_code(self) -> ExitCode:
        """What was found weighs most; then runs that failed; then what cannot be known."""
        kinds = {each.kind for each in self.verdicts}
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        if self.faults:
            return ExitCode.DIVERGED
        if self.problem or Kind.FAILED in kinds or self.is_out_of_time:
            return ExitCode.INCOMPLETE_RECORDING
        return ExitCode.NOT_COMPARABLE if self.unsteady or Kind.RANDOM in kinds else ExitCode.OK


class VaryListener(Protocol):
    """Hears of each run."""

    def begins(self, title: str) -> None:
        """A run starts."""

    def ended(self, run: Run) -> None:
        """It has ended."""


class RunFailedError(Exception):
    """A run without which nothing can be compared has not gone to its end."""

    def __init__(self, run: Run, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.run, self.what, self.remedy = run, what, remedy


class VarySearch:
    """Makes the runs of a plan, one at a time."""

    def __init__(
        self, plan: VaryPlan, session: Runs, environ: Mapping[str, str], clock: Clock, listener: VaryListener
    ) -> None:
        self._plan, self._session, self._clock, self._listener = plan, session, clock, listener
        self._environ = environ_of({}, environ)
        self._began_s = clock.monotonic_s()
        self._num_runs = 0
        self._bases: dict[tuple[str, ...] | None, tuple[Ranks, dict[str, Any]]] = {}
        """By the ties of a control, None for none: the lines of a base, and the orders of runs compared with it."""
        self._verdicts: list[Verdict] = []
        self._unsteady: frozenset[str] = frozenset()

    async def search(self) -> Varied:
        """Carry out the plan; return the results so far if it cannot continue."""
        result = partial(Varied, self._plan)
        try:
            difference = await self._compare_base()
            if not difference:
                await self._compare_values()
            found = result(unsteady=difference)
        except OutOfTimeError:
            found = result(is_out_of_time=not self._session.interrupted_by)
        except RunFailedError as error:
            found = result(problem=error.what, remedy=error.remedy, output=error.run.output)
        for each in self._plan.directory.glob(f"run-*/{LOCKED}"):
            remove_tree(str(each))
        return replace(found, verdicts=tuple(self._verdicts), num_runs=self._num_runs)

    async def _compare_base(self) -> str:
        """Record the base, and compare it with itself; return where it differs."""
        base = await self._base()
        again = (await self._run("base again", {}, **self._bases[None][1]))[1]
        found = compare(base, again)
        pairs = [pair for rank in base for pair in zip(base[rank], again.get(rank, []), strict=False)]
        self._unsteady = frozenset(
            name for mine, its in pairs for name in mine["random"] if mine["random"][name] != its["random"].get(name)
        )
        if found.kind is Kind.EQUAL:
            return ""
        if found.kind is Kind.ROUNDING:
            return f"from {_step(found.line)} on ({_where(*found.line['bit'])})"
        return f"from {_step(found.line)} on" if found.line["difference"] else "in its number of steps"

    async def _compare_values(self) -> None:
        harmless: dict[str, str] = {}
        for setting in self._plan.settings:
            for value in setting.values[1:]:
                verdict = await self._verdict({setting.name: value})
                self._verdicts.append(verdict)
                if verdict.kind in HARMLESS:
                    harmless[setting.name] = value
        if len(harmless) < 2:
            return
        together = await self._verdict(harmless)
        known = {tuple(harmless): together}
        search = ddmin(tuple(harmless)) if together.kind not in HARMLESS else iter(())
        smallest = tuple(harmless)
        try:
            names = next(search)
            while True:
                if len(names) > 1 and names not in known:
                    known[names] = await self._verdict({name: harmless[name] for name in names})
                smallest = names if (fails := names in known and known[names].kind not in HARMLESS) else smallest
                names = search.send(fails)
        except StopIteration:
            self._verdicts.append(known[smallest])

    async def _base(self, ties: tuple[str, ...] | None = None) -> Ranks:
        """Record the base, once; `ties` are those of a control, None for none."""
        if ties not in self._bases:
            orders: dict[str, Any] = {} if ties is None else {"ties": list(ties)}
            lines = (await self._run("base" if ties is None else "control of the base", {}, **orders))[1]
            self._bases[ties] = lines, {**orders, "base": self._directory(self._num_runs)}
        return self._bases[ties][0]

    async def _orders(self, ties: tuple[str, ...] | None = None) -> Mapping[str, Any]:
        """Return the orders of a run that is compared with a base, after measuring rounding once."""
        orders = self._bases[ties][1]
        if "nudged" not in orders:
            title = "nudged base" if ties is None else "nudged control of the base"
            await self._run(title, {}, seed=0, **orders)
            orders["nudged"] = [self._directory(self._num_runs)]
        return orders

    async def _verdict(self, values: Mapping[str, str]) -> Verdict:
        """Run with these values, and with controls if that differs by more than rounding."""
        try:
            run, lines = await self._run(assignment(values), values, **await self._orders())
            found = compare(await self._base(), lines, self._unsteady)
            if found.kind in HARMLESS:
                remove_tree(str(run.recording.directory))
            return await self._explained(values, run, found)
        except RunFailedError as error:
            what = f"With {assignment(values)} the program fails: {error.what}."
            return Verdict(values, Kind.FAILED, what, directory=error.run.recording.directory)

    async def _explained(self, values: Mapping[str, str], run: Run, found: Comparison) -> Verdict:
        def verdict(kind: Kind, sentence: str, shown: Comparison = found) -> Verdict:
            difference = shown.line.get("difference") or {}
            times = difference.get("times") or (shown.worst[0] if shown.worst and not difference else None)
            kept = None if kind in HARMLESS else run.recording.directory
            return Verdict(values, kind, sentence, shown.line.get("number"), times, kept)

        sentence = partial(sentence_of, values, self._plan.base_values, has_bits=self._plan.has_bits)
        if found.kind in HARMLESS:
            return verdict(found.kind, sentence(found))
        tied, calls, control = await self._control(values, found)
        more = ""
        if tied:
            blind = f"With {' and '.join(tied)} blind to the other rows of a batch"
            if control.kind not in HARMLESS:
                return verdict(control.kind, f"{sentence(control)[:-1]} ({blind[0].lower()}{blind[1:]}).", control)
            if amounts(calls[0]) == amounts(calls[1]):
                how = pieces(*calls, tied) or f"{' and '.join(tied)} lets rows of a batch differ"
                names = " and ".join(values)
                return verdict(
                    Kind.BY_DESIGN,
                    f"{how[0].upper()}{how[1:]}; as many numbers. {blind} only rounding is left: {names} is not neutral"
                    " here, and nothing else is wrong.",
                )
            more = f" {pieces(*calls, tied)[:1].upper()}{pieces(*calls, tied)[1:]}, and draws more numbers, or fewer. {blind} only rounding is left."
        if tied or found.moved:
            generator, step = found.moved or ("random.torch", found.line.get("number", 0))
            return verdict(
                Kind.RANDOM,
                f"With {assignment(values)} the random numbers of {generator.removeprefix('random.')} stand elsewhere"
                f" from step {step} on.{more} Whether the rest is right cannot be determined.",
            )
        return verdict(found.kind, sentence(found))

    async def _control(
        self, values: Mapping[str, str], found: Comparison
    ) -> tuple[list[str], list[dict[str, list[list[Any]]]], Comparison]:
        """Compare base and values once more, blind to the other rows of a batch; (what was tied, calls, comparison)."""
        ties: tuple[str, ...] = ()
        while True:
            base = await self._base(ties)
            if not found.moved and not calls_of(base):
                return [], [], found
            _, lines = await self._run(f"control of {assignment(values)}", values, **await self._orders(ties))
            calls, control = [calls_of(base), calls_of(lines)], compare(base, lines, self._unsteady)
            split = tuple(sorted(split_noise(*calls)))
            if split in ((), ties):
                return [*(word for kind, word in TIED.items() if kind in calls[0]), *ties], calls, control
            ties = split

    async def _run(self, title: str, values: Mapping[str, str], **orders: Any) -> tuple[Run, Ranks]:
        """Make one run; RunFailedError if it has not gone to its end, OutOfTimeError if nothing more is to begin."""
        if self._session.interrupted_by or self._clock.monotonic_s() - self._began_s > self._plan.max_s:
            raise OutOfTimeError
        self._num_runs += 1
        self._listener.begins(title)
        orders |= {"directory": self._directory(self._num_runs), "num_steps": self._plan.num_steps}
        run_spec = replace(self._plan.spec_of(self._plan.command(values)), callbacks={LOCKED_STEPS: orders})
        run = await self._session.record(
            launched(run_spec, {}), self._plan.directory, self._num_runs, environ=self._environ
        )
        self._listener.ended(run)
        ranks = read_ranks(Path(orders["directory"]))
        problems = [line["problem"] for lines in ranks.values() for line in lines if "problem" in line]
        recording = run.recording
        if self._session.interrupted_by and recording.exit_code:
            raise OutOfTimeError
        if recording.exit_code or not ranks or problems:
            first = next(iter(recording.problems), None)
            what, remedy = (first.what, first.remedy) if first else ("no optimizer step was seen", "")
            raise RunFailedError(run, problems[0] if problems and not recording.exit_code else what, remedy)
        return run, ranks

    def _directory(self, number: int) -> str:
        return str(self._plan.directory / f"run-{number}" / LOCKED)


def read_ranks(directory: Path) -> Ranks:
    """Return the lines that each process of a run has written, by rank."""
    files = sorted([directory / LINES, *directory.glob(f"*/{LINES}")], key=lambda path: path.parent.name)
    texts = {path.parent.name: read_regular(path, max_bytes=UNLIMITED).decode() for path in files if path.exists()}
    return {rank: [json.loads(line) for line in text.splitlines()] for rank, text in texts.items()}


def make_vary_plan(
    invocation: Invocation, options: ChaosOptions, chaos_id: str, given: Callable[[], bytes] = bytes
) -> VaryPlan:
    """Return the plan of a command line with --vary; makes its directory.

    UsageError for what cannot be used; nothing is made then.
    """
    if options.scenario is not None:
        raise UsageError(
            f"--vary and the scenario {options.scenario}",
            legal="--vary of a command after --",
            remedy=f"rlharness replay {options.scenario} --sweep KEY=V1,V2 compares runtime settings of a scenario",
        )
    refuse_scenario_options(options.scenario_options)
    if unused := [f"--{name}" for name in options.of_factors]:
        raise UsageError(
            f"{', '.join(unused)} with --vary",
            legal="--vary, --bits, --steps, --max-seconds, --timeout, --level and --out",
            remedy="omit it: --vary runs each of its values, and draws nothing",
        )
    settings = parse_settings(options.vary, invocation.trailing)
    recording = options.scenario_options.recording

    def spec_of(argv: tuple[str, ...]) -> RunSpec:
        return make_command_spec(replace(invocation, trailing=argv), recording)

    check_start(invocation, spec_of(fill(invocation.trailing, {each.name: each.values[0] for each in settings})))
    directory, stdin = make_directory(invocation, options, chaos_id, given())
    return VaryPlan(
        settings=settings,
        argv=invocation.trailing,
        spec_of=spec_of,
        directory=directory,
        typed=(*(("--level", recording.level) if recording.level else ()), *recording_words(recording)),
        num_steps=options.num_steps,
        has_bits=options.has_bits,
        max_s=options.max_s,
        timeout_s=options.timeout_s,
        stdin=stdin,
    )
