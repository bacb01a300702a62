"""Factors that should not affect the results of a program, and the syntax of their values. Pure.

A factor with a dot in its name is a key of a scenario's payload; the others are brought from outside the program:

| factor | means |
|---|---|
| `hash_seed` | PYTHONHASHSEED: the order of sets of strings |
| `threads` | OMP_NUM_THREADS, and what MKL and OpenBLAS call it |
| `load` | processes that keep cores busy beside the run |
| `cores` | how many cores the run may use |
| `nice` | how many steps its priority is lowered by |
| `latency` | the seed of delays before calls of the functions that the scenario names: tools, reward models |
| `crash` | a SIGKILL at a step and phase; the run resumes from its last checkpoint |
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.bits.errors import UsageError
from harness.lab.experiments.perturbation_values import Choice, Span, Values, is_same
from harness.lab.experiments.plain_yaml import read_yaml
from harness.trace.chain import PHASES

HASH_SEED, THREADS, LOAD, CORES, NICE = "hash_seed", "threads", "load", "cores", "nice"
LATENCY, CRASH = "latency", "crash"
OUTSIDE = (HASH_SEED, THREADS, LOAD, CORES, NICE, LATENCY, CRASH)
USUAL_HASH_SEED = 0
"""Of every run that has no other: without one, each process would have another."""
MAX_HASH_SEED = 2**32 - 1
MAX_NICE = 19
MAX_LATENCY_SEED = 10_000
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

    def may_take(self, value: Any) -> bool:
        """Whether the entry can be asked for a value: where integers are declared, for one, or for what is usual."""
        return not isinstance(self.values, Span) or type(value) is int or is_same(value, self.usual)


def outside_factors(num_cores: int, environ: Mapping[str, str]) -> tuple[Factor, ...]:
    """What can be changed of any program on this machine; what a crash needs is not known here."""
    seed = environ.get("PYTHONHASHSEED") or str(USUAL_HASH_SEED)
    threads = environ.get("OMP_NUM_THREADS", "")
    found = [
        Factor(HASH_SEED, Span(0, MAX_HASH_SEED), _number(seed), about="the hash seed"),
        Factor(THREADS, Span(1, max(2, num_cores)), _number(threads), about="the thread count"),
        Factor(LOAD, Span(1, 2 * num_cores), 0, num_quarters=1, about="machine load"),
        Factor(NICE, Span(1, MAX_NICE), 0, num_quarters=2, about="the priority"),
    ]
    if num_cores > 1:
        cores = Span(1, num_cores - 1)
        found.append(Factor(CORES, cores, num_cores, num_quarters=2, about="the number of cores"))
    return tuple(found)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def latency_factor() -> Factor:
    """Delays of a seed, before calls of what a scenario names."""
    return Factor(LATENCY, Span(1, MAX_LATENCY_SEED), 0, num_quarters=2, about="tool latency")


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
    """A value as `parse_only` reads it."""
    return value if isinstance(value, str) and _is_plain(value) else json.dumps(value, ensure_ascii=False)


def _is_plain(text: str) -> bool:
    try:
        return is_same(read_yaml(text, ""), text)
    except UsageError:
        return False


def parse_only(texts: Sequence[str], factors: Sequence[Factor]) -> dict[str, Any]:
    """The perturbation of FACTOR=VALUE texts; UsageError for a factor that is not there, and a value it cannot have.

    The entry checks values of a payload's keys, but a range takes integers; values from outside are checked here.
    """
    by_name = {factor.name: factor for factor in factors}
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in by_name:
            raise UsageError(
                f"--only {text}",
                legal=f"FACTOR=VALUE, with one of {', '.join(by_name)}",
                remedy="check the spelling",
            )
        if name == CRASH:
            parse_moment(value)
            found[name] = value
            continue
        found[name] = read_yaml(value, f"--only {text}")
        if by_name[name].is_outside and found[name] not in by_name[name].values:
            raise UsageError(f"--only {text}", legal=f"{name} from {by_name[name].values}")
        if not by_name[name].may_take(found[name]):
            raise UsageError(f"--only {text}", legal=f"an integer: {name} is drawn from {by_name[name].values}")
    return found


def chosen(factors: Sequence[Factor], asked: str | None) -> tuple[Factor, ...]:
    """Those that --factors names, all where it was not given; UsageError for names that are not there, and for none."""
    names = [name.strip() for name in asked.split(",")] if asked is not None else [each.name for each in factors]
    known = {factor.name: factor for factor in factors}
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"there is no factor {unknown[0]!r} here", legal=", ".join(known) or "none")
    if not names:
        raise UsageError(
            "there is nothing to perturb", legal="factors", remedy="declare some under `chaos` in the scenario's file"
        )
    found = tuple(known[name] for name in dict.fromkeys(names))
    idle = [each for each in found if not _can_have_effect(each, found)]
    if asked is not None and idle:
        condition = next(each for each in idle[0].where if not each.holds({}))
        raise UsageError(
            f"the factor {idle[0].name} has no effect in these runs",
            legal=f"runs with {condition}",
            remedy=f"--set {condition}",
        )
    return tuple(each for each in found if each not in idle)


def _can_have_effect(factor: Factor, factors: Sequence[Factor]) -> bool:
    """Whether its conditions hold as a run is, or another factor may take the values that they want."""
    values = {each.name: each.values for each in factors}
    return all(each.holds({}) or (each.name in values and each.wanted in values[each.name]) for each in factor.where)
