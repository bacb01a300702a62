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
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.files import UNLIMITED, read_regular
from harness.bits.text import count
from harness.lab.chaos.search import BASELINE, CHAOS, ChaosOptions, Executor, OutOfTimeError, Search, ddmin, environ_of
from harness.lab.experiment.command_spec import make_command_spec
from harness.lab.experiment.flat_config import flattened
from harness.lab.experiment.launcher import Launcher, Run, check_program
from harness.lab.experiment.preparation import out_directory
from harness.lab.experiment.recording_result import Problem
from harness.lab.experiment.scenario import asked_run
from harness.process.clock import Clock
from harness.process.invocation import Invocation
from harness.process.scratch import remove_tree
from harness.recording.run_spec import RunSpec

LOCKED_STEPS = "harness.recording.locked_steps:LockedSteps"
LOCKED = "locked"
"""Below the directory of a run: its measurements, and the tensors of a base."""
LINES = "steps.jsonl"
TIED = {"dropout": "the mask of dropout", "batch_norm": "batch norm"}
_NAME = re.compile(r"[A-Za-z_][\w-]*")
_ALONE = re.compile(r"(?:[^{}]*=)?\{([A-Za-z_][\w-]*)\}")
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


def parse_settings(texts: Sequence[str], argv: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of NAME=BASE,OTHER texts by name; UsageError if they do not fit the command's placeholders."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        listed = tuple(values.split(","))
        if not _NAME.fullmatch(name) or len(listed) < 2 or "" in listed or len(set(listed)) < len(listed):
            raise UsageError(f"--vary {text}", legal="NAME=BASE,OTHER", remedy="--vary G=1,4 -- python train.py {G}")
        if name in found:
            raise UsageError(f"--vary {name} is given twice", legal="each name once, with all its values")
        if not any(f"{{{name}}}" in word for word in argv):
            raise UsageError(
                f"--vary {name}: the command has no {{{name}}}", remedy=f"-- python train.py --option {{{name}}}"
            )
        found[name] = listed
    for word in argv:
        alone = _ALONE.fullmatch(word)
        if alone and alone[1] not in found:
            known = ", ".join(found)
            remedy = f"add --vary {alone[1]}=BASE,OTHER, or check the spelling: {known}"
            raise UsageError(f"{{{alone[1]}}} in the command has no values", remedy=remedy)
    return found


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
Calls = dict[str, list[tuple[int, tuple[int, ...]]]]
"""(step, shape) of each call, by what was called."""


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
    num_steps: tuple[int, int]
    """Of the base, and of the run."""
    line: Line
    """Of the step that differs first; of rounding, the first step in which a bit differs; empty if there is none."""
    worst: tuple[float, str, str] | None = None
    """(multiple of rounding, phase, name) of the largest rounding."""
    moved: tuple[str, int] | None = None
    """(generator, step) where random numbers stand elsewhere first, up to that step, if they may be the cause."""


def compare(base: Ranks, varied: Ranks, unsteady: frozenset[str] = frozenset()) -> Comparison:
    """Compare what both have; of several ranks, return the comparison of the first that differs most.

    `unsteady` are generators that stand elsewhere in each run of the base.
    """
    found = [_compare_rank(base[rank], varied[rank], unsteady) for rank in base if rank in varied]
    return min(found, key=lambda each: (Kind.ROUNDING, Kind.EQUAL).index(each.kind) + 1 if each.kind in HARMLESS else 0)


def _compare_rank(base: list[Line], varied: list[Line], unsteady: frozenset[str]) -> Comparison:
    known = {(line["optimizer"], line["number"]): line for line in base}
    sizes, first, worst, moved = (len(base), len(varied)), None, None, None
    since: dict[str, tuple[int, str]] = {}
    """By generator that stands elsewhere: the first step, and the base's state there."""
    for line in varied:
        if (mine := known.get((line["optimizer"], line["number"]))) is None:
            continue
        states = {name: state for name, state in mine["random"].items() if name not in unsteady}
        elsewhere = {name: state for name, state in states.items() if state != line["random"].get(name)}
        since = {name: (line["number"], state) for name, state in elsewhere.items()} | since
        # where steps have agreed since, and the base has drawn nothing, it is not the cause
        causes = (name for name, (at, state) in since.items() if at == line["number"] or state != states[name])
        moved = next(((name, since[name][0]) for name in causes), None)
        if line["difference"]:
            return Comparison(Kind(line["difference"]["kind"].lower()), sizes, line, worst, moved)
        first = first or (line if line["bit"] else None)
        worst = max(worst or (0.0, "", ""), tuple(line["worst"])) if line["worst"] else worst
    if len(base) != len(varied):
        return Comparison(Kind.DIFFERENT, sizes, {"difference": None}, worst, moved)
    return Comparison(Kind.ROUNDING if first else Kind.EQUAL, sizes, first or {}, worst)


def sentence_of(values: Mapping[str, str], base_values: Mapping[str, str], found: Comparison, *, has_bits: bool) -> str:
    """Return what the comparison shows, as a person says it."""
    name, (num_base, num_varied) = assignment(values), found.num_steps
    counts = f"{count(num_base, 'step')} in the base, {num_varied} with {name}"
    if found.kind is Kind.EQUAL:
        return f"{name} changes no bit of {count(num_base, 'step')}."
    if found.kind is Kind.ROUNDING:
        promise, times = "no bit may differ, yet " if has_bits else "", found.worst[0] if found.worst else 0.0
        where = f"{_step(found.line)} on ({_where(*found.line['bit'])})"
        return f"{promise}{name} changes bits from {where}, at most {times:.2g} times what one ulp of the weights does."
    if (difference := found.line["difference"]) is None:
        end = "the last steps are left out" if num_varied < num_base else "there are more steps at its end"
        return f"{counts}: {end}; steps that both have differ by rounding at most."
    lead = f"{_capital(_step(found.line))}: with {name}"
    if found.kind is Kind.SETTINGS:
        mine, its = ("absent" if each is None else f"{each:.6g}" for each in difference["values"])
        setting = difference["name"].partition(".")[2]
        if setting != "lr":
            return f"{lead} {setting} of the optimizer is {its} against {mine} in the base."
        rate = f"the learning rate is {its} against {mine} in the base"
        return f"{lead} {rate}: the schedule follows something else than optimizer steps."
    if found.kind is Kind.FACTOR:
        what = "all gradients are" if difference["of"] == "gradients" else "the update of all weights is"
        reason = _reason(values, base_values, difference["factor"])
        hidden = "; clipping may hide it in the steps before" if found.line["number"] and not reason else ""
        return f"{lead} {what} {difference['factor']:.4g} times the base's{reason}{hidden}."
    much = f"differs: {difference['problem']}"
    if difference["times"] is not None:
        much = f"differs by {difference['share']:.2g} of its norm, {difference['times']:.1g} times rounding"
    number = found.line["number"]
    before = {0: "", 1: "; step 0 differed by rounding at most"}.get(
        number, f"; steps 0-{number - 1} differed by rounding at most"
    )
    more = "" if num_base == num_varied else f"; {counts}"
    return f"{lead} {_where(difference['phase'], difference['name'])} {much}{before}{more}."


def _reason(values: Mapping[str, str], base_values: Mapping[str, str], factor: float) -> str:
    """Name the setting whose value the factor is."""
    for name, value in values.items():
        with suppress(ValueError, ZeroDivisionError):
            times = float(value) / float(base_values[name])
            if times != 1 and math.isclose(factor, times, rel_tol=1e-3):
                return f": the loss is not divided by {name}"
            if times != 1 and math.isclose(factor, 1 / times, rel_tol=1e-3):
                return f": the loss is divided by {name} once too often"
    return ""


def _step(line: Line) -> str:
    return f"step {line['number']}" + (f" of optimizer {line['optimizer']}" if line["optimizer"] else "")


def _where(phase: str, name: str) -> str:
    texts = {"gradient": "the gradient of {}", "state": "the optimizer's {}", "before": "{} before the step"}
    return texts.get(phase, "{} after the step").format(name)


def calls_of(ranks: Ranks) -> Calls:
    """Return by kind the (step, shape) of each call that a control has seen."""
    found: Calls = {}
    for line in (line for lines in ranks.values() for line in lines):
        for kind, shape in line["calls"]:
            found.setdefault(kind, []).append((line["number"], tuple(shape)))
    return found


def amounts(calls: Calls) -> Counter[tuple[str, int]]:
    """Return how many random numbers each kind of call has drawn in each step."""
    drawn = ((kind, step, shape) for kind, each in calls.items() if kind != "batch_norm" for step, shape in each)
    found: Counter[tuple[str, int]] = Counter()
    for kind, step, shape in drawn:
        found[kind, step] += math.prod(shape)
    return found


def split_noise(base: Calls, varied: Calls) -> tuple[str, ...]:
    """Return the lines of code that draw as many numbers in both, in other pieces."""
    mine, its = amounts(base), amounts(varied)
    moved = [kind for kind in base if kind not in TIED and base[kind] != varied.get(kind)]
    return tuple(
        sorted(kind for kind in moved if all(mine[key] == its[key] for key in {*mine, *its} if key[0] == kind))
    )


def pieces(base: Calls, varied: Calls, tied: Sequence[str]) -> str:
    """Return how the calls of tied kinds differ in the first step in which they do; empty if they do not."""
    found = []
    for kind in tied:
        mine, its = base.get(kind, []), varied.get(kind, [])
        if mine == its:
            continue
        step = next(step for step, _ in (*mine, *its) if _at(mine, step) != _at(its, step))
        shapes = _at(its, step), _at(mine, step)
        if kind == "batch_norm":
            rows = [str(each[0][0]) if each else "no" for each in shapes]
            found.append(f"batch norm normalises over {rows[0]} rows instead of {rows[1]}")
        else:
            found.append(
                f"{_tie(kind)} is drawn in {count(len(shapes[0]), 'piece')} a step instead of {len(shapes[1])}"
            )
    return " and ".join(found)


def _at(calls: Sequence[tuple[int, tuple[int, ...]]], step: int) -> list[tuple[int, ...]]:
    return [shape for at, shape in calls if at == step]


def _tie(kind: str) -> str:
    return TIED.get(kind, f"the noise of {kind}")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# ------------------------------------------------------------------------------------------------------------ the runs


@dataclass(frozen=True, slots=True)
class VaryPlan:
    """A comparison of settings that can begin."""

    settings: Mapping[str, tuple[str, ...]]
    argv: tuple[str, ...]
    """The command, with its placeholders."""
    spec_of: Callable[[tuple[str, ...]], RunSpec]
    """The run spec of a command."""
    options: ChaosOptions
    directory: Path
    """Absolute; holds a directory for each run that is kept."""

    @property
    def base_values(self) -> dict[str, str]:
        """The first value of each setting."""
        return {name: values[0] for name, values in self.settings.items()}

    def command(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command of a run with these values, and the base's of all other settings."""
        return fill(self.argv, {**self.base_values, **values})


def make_vary_plan(invocation: Invocation, options: ChaosOptions, chaos_id: str) -> VaryPlan:
    """Return the plan of a command line with --vary; makes its directory.

    UsageError for what cannot be used; nothing is made then.
    """
    asked = asked_run(invocation, "chaos --vary", options.scenario, options.scenario_options)
    if asked.scenario.command is None:
        raise UsageError(f"--vary and the scenario {options.scenario}", legal="a command, or a scenario that has one")
    varied = {text.partition("=")[0].strip() for text in options.vary}
    values = flattened(asked.scenario.payload(asked.size, asked.overrides))
    argv = asked.scenario.words({key: json.loads(text) for key, text in values.items() if key not in varied})
    recording = replace(asked.options, level=asked.options.level or asked.scenario.determinism)
    if options.of_factors:
        what = f"{', '.join(f'--{name}' for name in options.of_factors)} with --vary"
        raise UsageError(what, remedy="omit it: --vary runs each of its values, and draws nothing")
    settings = parse_settings(options.vary, argv)

    def spec_of(argv: tuple[str, ...]) -> RunSpec:
        return make_command_spec(argv, recording)

    base = spec_of(fill(argv, {name: each[0] for name, each in settings.items()}))
    check_program(base, invocation.cwd, invocation.environ)
    directory = out_directory(invocation.cwd, options.out, CHAOS, chaos_id).path
    return VaryPlan(settings, argv, spec_of, options, directory)


@dataclass(frozen=True)
class Varied(Search):
    """A comparison of settings that has ended."""

    plan: VaryPlan
    verdicts: tuple[Verdict, ...] = ()
    unsteady: str = ""
    """Where the base differs from itself; empty if it repeats itself."""

    @property
    def faults(self) -> tuple[Verdict, ...]:
        """Verdicts of values that change more than they may."""
        kinds = (*FAULTS, Kind.ROUNDING, Kind.BY_DESIGN) if self.plan.options.has_bits else FAULTS
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


class RunFailedError(Exception):
    """A run has not gone to its end, or has taken no step."""

    def __init__(self, run: Run, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.run, self.what, self.remedy = run, what, remedy


class VarySearch(Executor):
    """Makes the runs of a plan, one at a time."""

    def __init__(self, plan: VaryPlan, session: Launcher, environ: Mapping[str, str], clock: Clock) -> None:
        num_planned = 3 + sum(len(values) - 1 for values in plan.settings.values())
        super().__init__(plan.directory, plan.options.max_s, num_planned, session, clock)
        self._plan, self._environ = plan, environ_of({}, environ)
        self._bases: dict[tuple[str, ...] | None, tuple[Ranks, dict[str, Any]]] = {}
        """By the ties of a control, None for none: the lines of a base, and the orders of runs compared with it."""
        self._verdicts: list[Verdict] = []
        self._unsteady: frozenset[str] = frozenset()

    async def search(self) -> Varied:
        """Carry out the plan; return the results so far if it cannot continue."""
        found = Varied(self._plan)
        try:
            found = replace(found, unsteady=await self._compare_base())
            if not found.unsteady:
                await self._compare_values()
        except OutOfTimeError:
            found = replace(found, is_out_of_time=not self._session.interrupted_by)
        except RunFailedError as error:
            found = replace(found, problem=error.what, remedy=error.remedy, output=error.run.output)
        kept = {
            self._plan.directory / BASELINE,
            found.output and found.output.parent,
            *(each.directory for each in self._verdicts),
        }
        for each in self._plan.directory.glob("run-*"):
            remove_tree(str(each / LOCKED if each in kept else each))
        return replace(found, verdicts=tuple(self._verdicts), num_runs=self.num_runs)

    async def _compare_base(self) -> str:
        """Record the base, and compare it with itself; return where it differs."""
        base = await self._base()
        _, again = await self._run("base again", {}, **self._bases[None][1])
        pairs = [pair for rank in base for pair in zip(base[rank], again.get(rank, []), strict=False)]
        names = {
            name for mine, its in pairs for name in mine["random"] if mine["random"][name] != its["random"].get(name)
        }
        self._unsteady = frozenset(names)
        found = compare(base, again)
        if found.kind is Kind.EQUAL:
            return ""
        where = f" ({_where(*found.line['bit'])})" if found.line.get("bit") else ""
        return f"from {_step(found.line)} on{where}" if "number" in found.line else "in their numbers of steps"

    async def _compare_values(self) -> None:
        """Run with each value alone; then with all harmless ones together, and with fewer of them if that differs."""
        harmless: dict[str, str] = {}
        for name, values in self._plan.settings.items():
            for value in values[1:]:
                self._verdicts.append(await self._verdict({name: value}))
                if self._verdicts[-1].kind in HARMLESS:
                    harmless[name] = value
        if len(harmless) < 2:
            return
        smallest = await self._verdict(harmless)

        async def fails(names: tuple[str, ...]) -> bool:
            nonlocal smallest
            if len(names) == 1:  # known from its own run
                return False
            found = await self._verdict({name: harmless[name] for name in names})
            smallest = found if found.kind not in HARMLESS else smallest
            return smallest is found

        if smallest.kind not in HARMLESS:
            await ddmin(tuple(harmless), fails)
        self._verdicts.append(smallest)

    async def _base(self, ties: tuple[str, ...] | None = None) -> Ranks:
        """Record the base, once; `ties` are those of a control, None for none."""
        if ties not in self._bases:
            orders: dict[str, Any] = {} if ties is None else {"ties": list(ties)}
            _, lines = await self._run("base" if ties is None else "control of the base", {}, **orders)
            self._bases[ties] = lines, {**orders, "base": self._locked()}
        return self._bases[ties][0]

    async def _compared(
        self, values: Mapping[str, str], ties: tuple[str, ...] | None = None
    ) -> tuple[Run, Ranks, Comparison]:
        """Run with these values, after rounding is measured once, and compare."""
        title, (base, orders) = "" if ties is None else "control of ", self._bases[ties]
        if "nudged" not in orders:
            await self._run(f"{title}nudged base", {}, seed=0, **orders)
            orders["nudged"] = [self._locked()]
        run, lines = await self._run(f"{title}{assignment(values)}", values, **orders)
        return run, lines, compare(base, lines, self._unsteady)

    async def _verdict(self, values: Mapping[str, str]) -> Verdict:
        """Run with these values, and with controls if that differs by more than rounding."""
        sentence = partial(sentence_of, values, self._plan.base_values, has_bits=self._plan.options.has_bits)
        try:
            run, _, found = await self._compared(values)
            if found.kind in HARMLESS:
                step = found.line.get("number")
                return Verdict(values, found.kind, sentence(found), step, found.worst[0] if found.worst else None)
            kind, text, shown = await self._explain(values, found, sentence)
        except RunFailedError as error:
            what = f"With {assignment(values)} the program fails: {error.what}."
            return Verdict(values, Kind.FAILED, what, directory=error.run.recording.directory)
        times = (shown.line["difference"] or {}).get("times")
        return Verdict(values, kind, text, shown.line.get("number"), times, run.recording.directory)

    async def _explain(
        self, values: Mapping[str, str], found: Comparison, sentence: Callable[[Comparison], str]
    ) -> tuple[Kind, str, Comparison]:
        """Find out with controls whether a difference comes from noise that the setting moves by design."""
        ties: tuple[str, ...] = ()
        calls: tuple[Calls, Calls] = {}, {}
        tied, control = [], found
        while found.moved or calls_of(await self._base(ties)):
            base = await self._base(ties)
            _, lines, control = await self._compared(values, ties)
            calls = calls_of(base), calls_of(lines)
            tied = [*(kind for kind in TIED if kind in calls[0]), *ties]
            if (split := split_noise(*calls)) in ((), ties):
                break
            ties = split
        blind = f"With {' and '.join(map(_tie, tied))} blind to the other rows of a batch"
        if tied and control.kind not in HARMLESS:
            return control.kind, f"{sentence(control)[:-1]} ({blind[0].lower()}{blind[1:]}).", control
        if tied and amounts(calls[0]) == amounts(calls[1]):
            how = pieces(*calls, tied) or f"{' and '.join(map(_tie, tied))} differs between rows"
            end = f"{' and '.join(values)} is not neutral here, and nothing else is wrong"
            return Kind.BY_DESIGN, f"{_capital(how)}; as many numbers. {blind} only rounding is left: {end}.", found
        if tied or found.moved:
            generator, step = found.moved or ("torch", found.line.get("number", 0))
            lead = f"With {assignment(values)} the random numbers of {generator} stand elsewhere from step {step} on."
            more = (
                f" {_capital(pieces(*calls, tied))}, not as many numbers. {blind} only rounding is left."
                if tied
                else ""
            )
            return Kind.RANDOM, f"{lead}{more} Whether the rest is right cannot be determined.", found
        return found.kind, sentence(found), found

    async def _run(self, title: str, values: Mapping[str, str], **orders: Any) -> tuple[Run, Ranks]:
        """Make one run; RunFailedError if it has not gone to its end, OutOfTimeError if nothing more is to begin."""
        self.entitle(title)
        orders |= {"directory": self._locked(self.num_runs + 1), "num_steps": self._plan.options.num_steps}
        run_spec = replace(self._plan.spec_of(self._plan.command(values)), callbacks={LOCKED_STEPS: orders})
        run = await self.start(run_spec, self._environ)
        self._session.display.ended(run)
        ranks, recording = read_ranks(Path(orders["directory"])), run.recording
        if self._session.interrupted_by and recording.exit_code:
            raise OutOfTimeError
        broken = [line["problem"] for lines in ranks.values() for line in lines if "problem" in line]
        if recording.exit_code or not ranks or broken:
            first = next(iter(recording.problems), Problem("no optimizer step was seen"))
            what = broken[0] if broken and not recording.exit_code else first.what
            raise RunFailedError(run, what, first.remedy)
        return run, ranks

    def _locked(self, number: int = 0) -> str:
        return str(self._plan.directory / f"run-{number or self.num_runs}" / LOCKED)


def read_ranks(directory: Path) -> Ranks:
    """Return the lines that each process of a run has written, by rank."""
    files = sorted([directory / LINES, *directory.glob(f"*/{LINES}")], key=lambda path: path.parent.name)
    texts = {path.parent.name: read_regular(path, max_bytes=UNLIMITED).decode() for path in files if path.exists()}
    return {rank: [json.loads(line) for line in text.splitlines()] for rank, text in texts.items()}
