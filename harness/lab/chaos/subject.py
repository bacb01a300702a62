"""The subject of a perturbation, a scenario or a command, and its factors."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.bits.errors import UsageError
from harness.lab.chaos.conditions import callbacks_of, payload_values
from harness.lab.chaos.options import ChaosOptions
from harness.lab.experiments.command_spec import make_command_spec, refuse_scenario_options
from harness.lab.experiments.flat_config import Payload
from harness.lab.experiments.perturbation_factors import (
    CRASH,
    Factor,
    Perturbation,
    crash_factor,
    latency_factor,
    outside_factors,
)
from harness.lab.experiments.run_spec import RunSpec
from harness.lab.experiments.scenario import SMOKE
from harness.lab.experiments.scenario_files import A_COMMAND, nothing_to_run
from harness.lab.experiments.scenario_options import RecordingOptions, ScenarioOptions
from harness.lab.experiments.scenario_spec import asked_scenario, make_scenario_spec
from harness.process.invocation import Invocation, num_cores


@dataclass(frozen=True, slots=True)
class Subject:
    """Whatever can be run under a perturbation."""

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
        """That of a run under a perturbation, as far as it is a matter of what is called and of steps."""
        settings = self.crash_settings if CRASH in perturbation else None
        run_spec = self.spec_of({**payload_values(perturbation), **(settings or {})})
        return replace(run_spec, last_step=last_step, callbacks=callbacks_of(perturbation, self.latency))


def make_subject(invocation: Invocation, asked_for: ChaosOptions) -> Subject:
    """Return what is run, of a command line; UsageError for what cannot be run."""
    name, options = asked_for.scenario, asked_for.scenario_options
    if name is None:
        return _command_subject(invocation, options)
    if invocation.trailing:
        raise UsageError(
            f"both the scenario {name} and a command are given",
            legal="one of the two: a scenario, or a command after --",
            remedy="change a scenario with --set KEY=VALUE",
        )
    return _scenario(invocation, name, options)


def _scenario(invocation: Invocation, name: str, options: ScenarioOptions) -> Subject:
    asked = asked_scenario(invocation, name, options, SMOKE, A_COMMAND)
    section = asked.scenario.chaos
    usual = dict(_dotted(asked.scenario.payload(asked.size, asked.overrides)))
    latency = (latency_factor(),) if section.latency else ()
    crash = () if section.crash is None else (crash_factor(()),)

    def spec_of(values: Mapping[str, Any]) -> RunSpec:
        varied = {key: (value,) for key, value in values.items()}
        return make_scenario_spec(replace(asked, swept=varied), options.recording)

    own = section.payload_factors(usual, size=asked.size)
    resume = asked.scenario.resume
    resuming = (resume.run, resume.step) if resume else ()
    return Subject(
        spec_of,
        (*own, *outside_factors(num_cores(), invocation.environ), *latency, *crash),
        (*asked.typed, *metric_words(options.recording)),
        section.crash,
        tuple(section.latency),
        unvaried_of(usual, asked.scenario.runtime_sections, {*section.factors, *resuming}),
    )


def unvaried_of(usual: Mapping[str, Any], free: Collection[str], known: Collection[str]) -> tuple[str, ...]:
    """Return the dotted keys of a payload in sections of runtime settings that are not known to be varied."""
    return tuple(key for key in usual if key.partition(".")[0] in free and key not in known)


def _command_subject(invocation: Invocation, options: ScenarioOptions) -> Subject:
    if not invocation.trailing:
        raise nothing_to_run("chaos", invocation.cwd)
    refuse_scenario_options(options)
    recording = options.recording
    run_spec = make_command_spec(invocation, recording)
    level = ("--level", recording.level) if recording.level else ()
    factors = outside_factors(num_cores(), invocation.environ)
    return Subject(lambda values: run_spec, factors, (*level, *metric_words(recording)))


def metric_words(options: RecordingOptions) -> tuple[str, ...]:
    return tuple(word for metric in options.metrics for word in ("--metric", metric))


def _dotted(payload: Payload, prefix: str = "") -> dict[str, Any]:
    """Every value by its dotted key."""
    found: dict[str, Any] = {}
    for name, value in payload.items():
        found |= _dotted(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found
