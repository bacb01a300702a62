"""What chaos perturbs, and how a perturbation reaches a run: by its payload, environment, start, or crash.

    payload keys ─▶ call        hash_seed, threads ─▶ variables        nice, cores, load ─▶ launch.py
    latency ─▶ recording/latency        crash ─▶ crash.py

Which perturbation is the i-th of a seed depends on nothing else: each factor has random numbers of its own.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any

from harness.lab.experiments.command_spec import (
    RecordingOptions,
    ScenarioOptions,
    make_command_spec,
    refuse_both,
    refuse_scenario_options,
)
from harness.lab.experiments.flat_config import flattened, overridden
from harness.lab.experiments.perturbation import (
    CORES,
    CRASH,
    HASH_SEED,
    LATENCY,
    LOAD,
    NICE,
    OUTSIDE,
    THREADS,
    USUAL_HASH_SEED,
    Factor,
    Perturbation,
    crash_factor,
    latency_factor,
    outside_factors,
    parse_moment,
    written,
)
from harness.lab.experiments.scenario import SMOKE
from harness.lab.experiments.scenario_files import A_COMMAND, nothing_to_run
from harness.lab.experiments.scenario_spec import asked_scenario, make_scenario_spec
from harness.process.invocation import Invocation, num_cores
from harness.recording.run_spec import RunSpec

LAUNCH = str(Path(__file__).with_name("launch.py"))
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
    scenario_options: ScenarioOptions = field(default_factory=ScenarioOptions)
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
    unvaried: tuple[str, ...] = ()
    """Keys of the payload in sections of runtime settings that no factor varies."""

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
    recording = options.scenario_options.recording
    outside = outside_factors(num_cores(), invocation.environ)
    refuse_both(invocation, [options.scenario] if options.scenario else [])
    if options.scenario is None:
        if not invocation.trailing:
            raise nothing_to_run("chaos", invocation.cwd)
        refuse_scenario_options(options.scenario_options)
        run_spec = make_command_spec(invocation.trailing, recording)
        return Subject(lambda values: run_spec, outside, recording_words(recording))
    asked = asked_scenario(invocation, options.scenario, options.scenario_options, SMOKE, A_COMMAND)
    section, resume = asked.scenario.chaos, asked.scenario.resume
    flat = flattened(asked.scenario.payload(asked.size, asked.overrides))
    usual = {key: json.loads(text) for key, text in flat.items() if text != "{}"}
    latency = (latency_factor(),) if section.latency else ()
    crash = () if section.crash is None else (crash_factor(()),)
    known = {*section.factors, *((resume.run, resume.step) if resume else ())}
    free = asked.scenario.runtime_sections

    def spec_of(values: Mapping[str, Any]) -> RunSpec:
        return make_scenario_spec(replace(asked, swept={key: (each,) for key, each in values.items()}), recording)

    return Subject(
        spec_of,
        (*section.payload_factors(usual, size=asked.size), *outside, *latency, *crash),
        (*asked.typed, *recording_words(replace(recording, level=""))),
        section.crash,
        tuple(section.latency),
        tuple(key for key in usual if key.partition(".")[0] in free and key not in known),
    )


def recording_words(options: RecordingOptions) -> tuple[str, ...]:
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


def launched(run_spec: RunSpec, perturbation: Perturbation, factors: Sequence[Factor] = ()) -> RunSpec:
    """Return the run spec with its program started by `launch.py`, and with the values of its factors from outside."""
    usual = {each.name: each.usual for each in factors if each.is_outside and each.usual is not None}
    known = {**usual, **perturbation}
    how = (str(perturbation.get(NICE, 0)), str(perturbation.get(CORES, 0)))
    outside = {name: written(known[name]) for name in OUTSIDE if name in known}
    return replace(
        run_spec,
        argv=(sys.executable, LAUNCH, *how, *run_spec.argv),
        perturbation={**run_spec.perturbation, **outside},
    )


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


def busy_argv(perturbation: Perturbation) -> tuple[str, ...]:
    """Return the command of the load beside a run; empty for none."""
    return (sys.executable, "-I", "-S", LAUNCH, str(perturbation[LOAD])) if LOAD in perturbation else ()


# -------------------------------------------------------------------------------------------------------------- drawing


def drawn(factors: Sequence[Factor], seed: int, index: int) -> dict[str, Any]:
    """Return the `index`-th perturbation of a seed: at least one factor, in the order of `factors`.

    A factor that has no effect with the values drawn for the others is left out.
    """

    def values(changed: Sequence[Factor]) -> dict[str, Any]:
        return {each.name: each.values.drawn(number(seed, index, each.name, "value"), each.usual) for each in changed}

    changed = [each for each in factors if number(seed, index, each.name, "whether") % QUARTERS < each.num_quarters]
    first = values(changed)
    if changed := [each for each in changed if each.is_effective(first)]:
        return values(changed)
    unconditional = [each for each in factors if each.is_effective({})]
    return values([unconditional[number(seed, index, "which") % len(unconditional)]])


def number(*parts: int | str) -> int:
    """Return a large number that depends on these parts alone."""
    return int.from_bytes(blake2b("\0".join(map(str, parts)).encode(), digest_size=16).digest(), "big")
