"""What a factor may be set to: a range of integers, or a list of values from the simplest on. Pure."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.bits.errors import UsageError
from harness.lab.experiments.plain_yaml import read_yaml
from harness.recording.entry_call import FUNCTION
from harness.trace.chain import PHASES

MAX_SIMPLER = 4
"""So many simpler values are tried."""


@dataclass(frozen=True, slots=True)
class Span:
    """Integers from `low` to `high`, both included."""

    low: int
    high: int

    def drawn(self, number: int, usual: Any) -> int:
        """The value that a large number picks; never `usual`, where there is another."""
        is_inside = isinstance(usual, int) and self.low <= usual <= self.high
        if not is_inside or self.low == self.high:
            return self.low + number % (self.high - self.low + 1)
        value = self.low + number % (self.high - self.low)
        return value if value < usual else value + 1

    def simpler(self, value: Any, usual: Any) -> Iterator[int]:
        """Values nearer to the usual one, the nearest first, each twice as far away as the one before.

        Where nothing is usual, from the lowest on.
        """
        middle = usual if isinstance(usual, int) else self.low - 1
        direction = 1 if value > middle else -1
        for away in (2**power for power in range(MAX_SIMPLER)):
            if away < abs(value - middle) and middle + direction * away in self:
                yield middle + direction * away

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Some values, the simplest first."""

    options: tuple[Any, ...]

    def drawn(self, number: int, usual: Any) -> Any:
        """The value that a large number picks; never `usual`, where there is another."""
        others = [option for option in self.options if not is_same(option, usual)] or list(self.options)
        return others[number % len(others)]

    def simpler(self, value: Any, usual: Any) -> Iterator[Any]:
        """Some values that stand before it, the simplest first."""
        if value in self:
            before = self.options[: next(i for i, option in enumerate(self.options) if is_same(option, value))]
            yield from [option for option in before if not is_same(option, usual)][:MAX_SIMPLER]

    def __contains__(self, value: object) -> bool:
        return any(is_same(option, value) for option in self.options)

    def __str__(self) -> str:
        return ", ".join(map(str, self.options))


Values = Span | Choice


def is_same(a: object, b: object) -> bool:
    """Whether two plain values are one: 1 is neither True nor 1.0."""
    return type(a) is type(b) and a == b


HASH_SEED, THREADS, LOAD, CORES, NICE = "hash_seed", "threads", "load", "cores", "nice"
LATENCY, CRASH = "latency", "crash"
OUTSIDE = (HASH_SEED, THREADS, LOAD, CORES, NICE, LATENCY, CRASH)
USUAL_HASH_SEED = 0
"""Of every run that has no other: without one, each process would have another."""
USUAL_QUARTERS = 3
"""In so many of four probes a factor is changed, unless it makes a run dear."""
END = "end"
"""Instead of a phase: the crash comes right after the step is recorded."""

Perturbation = Mapping[str, Any]
"""By the name of a factor, its value; empty for a run as it always is."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Value of another key with which alone a factor has an effect."""

    name: str
    wanted: Any
    usual: Any = None
    """Value in a run as it always is; None where it is not set there."""

    def holds(self, perturbation: Perturbation) -> bool:
        """Return whether a perturbed run has the value."""
        return is_same(perturbation.get(self.name, self.usual), self.wanted)

    def __str__(self) -> str:
        return f"{self.name}={written(self.wanted)}"


@dataclass(frozen=True, slots=True)
class Factor:
    """A setting that should not affect results."""

    name: str
    values: Values
    usual: Any = None
    """In a run as it always is; None where it is not set there."""
    num_quarters: int = USUAL_QUARTERS
    """In how many of four probes it is changed: what makes a run dear comes less often."""
    about: str = ""
    """What a sentence calls it: the trainer's thread count."""
    where: tuple[Condition, ...] = ()
    """Conditions that a run must meet, or the factor has no effect."""

    def is_effective(self, perturbation: Perturbation) -> bool:
        """Return whether it has an effect in a run with this perturbation."""
        return all(each.holds(perturbation) for each in self.where)

    @property
    def is_outside(self) -> bool:
        """Whether it is brought from outside the program."""
        return self.name in OUTSIDE


def outside_factors(num_cores: int, environ: Mapping[str, str]) -> tuple[Factor, ...]:
    """Return what can be changed of any program on this machine; what a crash needs is not known here."""

    def usual(text: str) -> int | None:
        return int(text) if text.isdecimal() else None

    seed, threads = environ.get("PYTHONHASHSEED") or str(USUAL_HASH_SEED), environ.get("OMP_NUM_THREADS", "")
    cores = [Factor(CORES, Span(1, num_cores - 1), num_cores, num_quarters=2, about="the number of cores")]
    return (
        Factor(HASH_SEED, Span(0, 2**32 - 1), usual(seed), about="the hash seed"),
        Factor(THREADS, Span(1, max(2, num_cores)), usual(threads), about="the thread count"),
        Factor(LOAD, Span(1, 2 * num_cores), 0, num_quarters=1, about="machine load"),
        Factor(NICE, Span(1, 19), 0, num_quarters=2, about="the priority"),
        *(cores if num_cores > 1 else ()),
    )


def latency_factor() -> Factor:
    """Return delays of a seed, before calls of what a scenario names."""
    return Factor(LATENCY, Span(1, 10_000), 0, num_quarters=2, about="tool latency")


def crash_factor(moments: Sequence[str]) -> Factor:
    """A crash at one of these moments, which are written as `moment` writes them; the earliest first."""
    return Factor(CRASH, Choice(tuple(moments)), num_quarters=1, about="a crash")


def moment(step: int, phase: str) -> str:
    """2.backward: before the first value of a phase is recorded; 2.end: after the step."""
    return f"{step}.{phase}"


def parse_moment(value: Any) -> tuple[int, str]:
    """(step, phase) of 2.backward; UsageError for anything else."""
    step, _, phase = str(value).partition(".")
    if not step.isdecimal() or phase not in (*PHASES, END):
        raise UsageError(
            f"{CRASH}={value}",
            legal=f"STEP.PHASE, with a phase of {', '.join(PHASES)}, or {END}",
            remedy=f"--only {CRASH}=2.backward",
        )
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
        if factor.is_outside and found[name] not in factor.values:
            raise UsageError(f"--only {text}", legal=f"{name} from {factor.values}")
        is_number = type(found[name]) is int or is_same(found[name], factor.usual)
        if isinstance(factor.values, Span) and not is_number:
            raise UsageError(f"--only {text}", legal=f"an integer: {name} is drawn from {factor.values}")
    return found


def chosen(factors: Sequence[Factor], asked: str | None) -> tuple[Factor, ...]:
    """Return those that --factors names, all where it was not given; UsageError for unknown names, and for none."""
    known = {factor.name: factor for factor in factors}
    names = [name.strip() for name in asked.split(",")] if asked is not None else list(known)
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"there is no factor {unknown[0]!r} here", legal=", ".join(known) or "none")
    if not names:
        raise UsageError("there is nothing to perturb", remedy="declare factors under `chaos` in the scenario's file")
    found = tuple(known[name] for name in dict.fromkeys(names))
    values = {each.name: each.values for each in found}

    def missing(factor: Factor) -> Condition | None:
        """Return a condition that does not hold as a run is, and that no factor can make hold."""
        lacking = (each for each in factor.where if not each.holds({}))
        return next((each for each in lacking if each.wanted not in values.get(each.name, ())), None)

    idle = {each.name: condition for each in found if (condition := missing(each))}
    if asked is not None and idle:
        name, condition = next(iter(idle.items()))
        what = f"the factor {name} has no effect in these runs"
        raise UsageError(what, legal=f"runs with {condition}", remedy=f"--set {condition}")
    return tuple(each for each in found if each.name not in idle)


FactorKey = Annotated[str, Field(pattern=r"^[^.\s]+(\.[^.\s]+)+$")]


def is_importable(package: str) -> bool:
    """Return whether there is such a package, without importing it."""
    return find_spec(package) is not None


class Range(BaseModel):
    """Integers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    min: int
    max: int

    @model_validator(mode="after")
    def _has_several(self) -> Self:
        if self.min >= self.max:
            raise ValueError(f"min {self.min} is not below max {self.max}")
        return self


Declared = Range | Annotated[list[Any], Field(min_length=1)]
"""The values of a factor."""


class ChaosSection(BaseModel):
    """The section `chaos` of a scenario."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    factors: dict[FactorKey, Declared] = Field(default_factory=dict)
    """By dotted key, in a section of runtime settings: a range of integers, or a list of values, the simplest first."""
    sizes: dict[str, dict[FactorKey, Declared]] = Field(default_factory=dict)
    """Values of some of the factors in a size, where those of `factors` have no effect, or none that is legal."""
    names: dict[FactorKey, Annotated[str, Field(min_length=1, pattern=r"^[^\n]*$")]] = Field(default_factory=dict)
    """What sentences call some of the factors: the trainer's thread count."""
    packages: dict[FactorKey, Annotated[str, Field(pattern=r"^\w+$")]] = Field(default_factory=dict)
    """Packages that some of the factors need; such a factor is left out where its package is not installed."""
    where: dict[FactorKey, dict[FactorKey, Any]] = Field(default_factory=dict)
    """Values of other keys with which alone some of the factors have an effect; without them they are not drawn."""
    latency: list[Annotated[str, Field(pattern=FUNCTION)]] = Field(default_factory=list)
    """module:function of calls that wait for something outside: tools, reward models. Delays precede its calls."""
    crash: dict[FactorKey, Any] | None = None
    """Overrides of a run that will crash, which let another run resume from it; None: no crash."""

    def faults(self, free: Collection[str], *, sizes: Collection[str], can_resume: bool) -> Iterator[str]:
        """What in it does not go with the rest of the file."""
        for size in self.sizes.keys() - sizes:
            yield f"chaos.sizes: {size} is not one of the sizes, which are {', '.join(sizes) or 'none'}"
        for key in (*self.factors, *(self.crash or ())):
            if key.partition(".")[0] not in free:
                yield f"chaos: {key} is not in a section of runtime settings: another value makes another run"
        of_sizes = {f"sizes.{size}": values for size, values in self.sizes.items()}
        named: Mapping[str, Mapping[str, Any]] = {"names": self.names, "packages": self.packages, "where": self.where}
        for section, keys in {**named, **of_sizes}.items():
            for key in keys:
                if key not in self.factors:
                    legal = ", ".join(self.factors) or "none"
                    yield f"chaos.{section}: {key} is not one of its factors, which are {legal}"
        if self.crash is not None and not can_resume:
            yield "chaos.crash needs resume: another run has to resume from the crashed one"

    def payload_factors(
        self, usual: Mapping[str, Any], is_installed: Callable[[str], bool] = is_importable, *, size: str = ""
    ) -> tuple[Factor, ...]:
        """Return the factors of a payload in a size, of which `usual` are the values at dotted keys.

        Without those whose package is not installed; one with a package comes less often: its import takes seconds.
        """
        return tuple(
            Factor(
                key,
                Span(values.min, values.max) if isinstance(values, Range) else Choice(tuple(values)),
                usual.get(key),
                num_quarters=2 if key in self.packages else USUAL_QUARTERS,
                about=self.names.get(key, ""),
                where=tuple(Condition(name, x, usual.get(name)) for name, x in self.where.get(key, {}).items()),
            )
            for key, values in {**self.factors, **self.sizes.get(size, {})}.items()
            if key not in self.packages or is_installed(self.packages[key])
        )
