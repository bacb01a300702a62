"""The run spec of a scenario: its payload in a size and with overrides, and the identity in it.

file ─▶ scenario ─size─▶ payload ─--set, --sweep─▶ payload ─▶ identity │ runtime settings
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.redaction import REDACTED, redact_fields
from harness.bits.text import count, one_line
from harness.lab.experiments.command_spec import (
    RecordingOptions,
    ScenarioOptions,
    checked_metric,
    command_identity,
    make_command_spec,
    parse_steps,
)
from harness.lab.experiments.flat_config import flattened, has_key, is_section, meant, parts
from harness.lab.experiments.plain_yaml import read_yaml
from harness.lab.experiments.scenario import Scenario
from harness.lab.experiments.scenario_files import find_scenario
from harness.process.invocation import Invocation, shadowing
from harness.recording.entry_call import EntryCall
from harness.recording.run_spec import RunSpec
from harness.trace.renames import ENTRY, LEVEL

CHILD = (sys.executable, "-m", "harness.lab.experiments.scenario_main")


@dataclass(frozen=True, slots=True)
class Asked:
    """A scenario as a command line asks for it."""

    name: str
    scenario: Scenario
    size: str
    typed: tuple[str, ...]
    """The words that say all this, as they were typed."""
    overrides: Mapping[str, Any]
    swept: Mapping[str, tuple[Any, ...]]
    """By dotted key, the value of each run in turn."""

    @property
    def num_variants(self) -> int:
        """How many runs it takes until each value was there."""
        return max(map(len, self.swept.values()), default=1)

    def overrides_of(self, variant: int) -> dict[str, Any]:
        """Return the overrides of a run's size; `variant` counts from 0 and cycles."""
        return {**self.overrides, **{key: values[variant % len(values)] for key, values in self.swept.items()}}


def asked_scenario(
    invocation: Invocation, name: str, options: ScenarioOptions, default_size: str, *others: str
) -> Asked:
    """The scenario that was named; UsageError where there is none, or it cannot be run here as it was asked for.

    `others` are the alternatives to it.
    """
    asked = asked_of(name, find_scenario(name, invocation.cwd, *others).read(), options, default_size)
    say_misspelt(asked, invocation.note)
    if asked.scenario.entry is not None:
        check_entries(invocation)
    check_machine(invocation, asked.scenario)
    return asked


def asked_of(name: str, scenario: Scenario, options: ScenarioOptions, default_size: str) -> Asked:
    """A scenario as options ask for it; UsageError for a size that it has not, and options that cannot be used."""
    size = scenario.chosen_size(options.size, default_size)
    swept = dict(_swept(text, scenario) for text in options.sweep)
    level = options.recording.level
    given = {"size": (size,) if size in scenario.sizes else (), "set": options.overrides}
    given |= {"sweep": options.sweep, "level": (level,) if level else ()}
    typed = (name, *(word for option, texts in given.items() for text in texts for word in (f"--{option}", text)))
    return Asked(name, scenario, size, typed, dict(map(override_of, options.overrides)), swept)


def say_misspelt(asked: Asked, note: Callable[[str], None]) -> None:
    """Note keys that may be misspelt; none is refused, since the entry may know them."""
    for line in asked.scenario.misspelt({"--set": tuple(asked.overrides), "--sweep": tuple(asked.swept)}):
        note(f"note: {one_line(line)}")


def make_scenario_spec(asked: Asked, options: RecordingOptions, variant: int = 0) -> RunSpec:
    """The run spec of one run of a scenario; UsageError for overrides and options that cannot be used."""
    scenario, level = asked.scenario, options.level or asked.scenario.determinism
    payload = scenario.payload(asked.size, asked.overrides_of(variant))
    if scenario.entry is None:
        bound, free = parts(payload, scenario.runtime_sections)
        spec = replace(
            make_command_spec(scenario.words(payload), options),
            identity=command_identity(scenario.words(bound)),
            level=level,
            perturbation=redact_fields(flattened(free)),
            resume_argv=scenario.words(payload, scenario.resume_command) if scenario.resume_command else (),
        )
    else:
        resume = None if scenario.resume is None else scenario.resume.model_dump()
        spec = replace(
            spec_of_call(EntryCall(scenario.entry, payload, tuple(scenario.runtime_sections), resume), level),
            metrics=tuple(map(checked_metric, options.metrics)),
            keep=parse_steps(options.keep),
            op_step=options.op_step,
        )
    return replace(spec, typed=asked.typed if not asked.swept else _with_values(asked, variant))


def spec_of_call(call: EntryCall, level: str) -> RunSpec:
    """The run spec in which an entry is called at a level."""
    bound, free = parts(call.config, call.runtime_sections)
    return RunSpec(
        argv=CHILD,
        # Names that no key of a payload has.
        identity=redact_fields({ENTRY: call.entry, LEVEL: level, **flattened(bound)}),
        level=level,
        call=call,
        perturbation=redact_fields(flattened(free)),
    )


def _with_values(asked: Asked, variant: int) -> tuple[str, ...]:
    """The words of one run alone: --set in the place of --sweep."""
    at = [index for index, word in enumerate(asked.typed) if word == "--sweep"]
    kept = tuple(word for index, word in enumerate(asked.typed) if index not in {*at, *(i + 1 for i in at)})
    values = flattened({key: asked.overrides_of(variant)[key] for key in asked.swept})
    return (*kept, *(word for key, text in values.items() for word in ("--set", f"{key}={text}")))


def override_of(text: str) -> tuple[str, Any]:
    """(dotted key, value) of KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(
            f"--set {text}",
            legal="a dotted key, an equals sign, and a value in YAML",
            remedy="--set training.num_steps=20",
        )
    if REDACTED in value:
        raise UsageError(
            f"--set {text}: rlharness removed a secret there",
            legal="the value itself",
            remedy=f"replace {REDACTED} by the secret",
        )
    return key.strip(), read_yaml(value, f"--set {text}")


def _swept(text: str, scenario: Scenario) -> tuple[str, tuple[Any, ...]]:
    """(dotted key, values) of KEY=VALUE,VALUE; UsageError where other values would be another run."""
    key, equals, values = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UsageError(
            f"--sweep {text}",
            legal="KEY=VALUE,VALUE: a value for each run",
            remedy="--sweep runtime.concurrency=1,16",
        )
    free = scenario.runtime_sections
    if key.partition(".")[0] not in free:
        is_there = has_key(scenario.config, key)
        near = meant(scenario.config, key)
        raise UsageError(
            f"--sweep {key}: it is part of the run identity, so runs that differ in it are not comparable"
            if is_there
            else f"--sweep {key}: the scenario has no such key",
            legal=_legal_to_sweep(scenario),
            remedy="rlharness train records each run, and rlharness diff shows their first difference"
            if is_there or not near
            else f"did you mean {near}?",
        )
    found = read_yaml(f"[{values}]", f"--sweep {text}")
    if not found:
        raise UsageError(f"--sweep {text}", legal="a value for each run, with commas between them")
    if is_section(scenario.config, key) and not all(isinstance(value, Mapping) for value in found):
        raise UsageError(
            f"--sweep {key}: it is a section, not a setting",
            legal=_legal_to_sweep(scenario),
            remedy=f"name a key of it: --sweep {key}.KEY=V1,V2",
        )
    return key, tuple(found)


def _legal_to_sweep(scenario: Scenario) -> str:
    """Return the keys that may differ between runs: those of the file, and the sections that may have more."""
    free = scenario.runtime_sections
    if not free:
        return "none: this scenario declares no runtime settings"
    _, settings = parts(scenario.config, free)
    named = [key for key in flattened(settings) if key not in free]
    return f"keys of {', '.join(free)}" + (f", such as {', '.join(named)}" if named else "")


def check_entries(invocation: Invocation) -> None:
    """UsageError where no entry could be called and recorded here."""
    if hidden_by := shadowing(invocation.cwd):
        raise UsageError(
            f"{hidden_by} would be imported instead of rlharness's own package",
            legal="a working directory without a top-level package `harness`",
            remedy="change into another directory",
        )
    _check_torch()


def check_machine(invocation: Invocation, scenario: Scenario) -> None:
    """UsageError where this machine has not what a scenario needs."""
    if scenario.entry is not None:
        _check_torch()
    if scenario.gpus:
        from harness.machine.gpus import read_inventory

        inventory = read_inventory("auto", invocation.environ)
        if len(inventory.gpus) < scenario.gpus:
            raise UsageError(
                f"this scenario needs {count(scenario.gpus, 'GPU')}, and {len(inventory.gpus)} are free here",
                legal="a machine with as many free GPUs within CUDA_VISIBLE_DEVICES",
                remedy="rlharness doctor reports why GPUs cannot be used",
            )


def _check_torch() -> None:
    if find_spec("torch") is None:
        raise UsageError(
            f"torch is not installed for {sys.executable}, but recording an entry needs it",
            legal="a Python that has torch",
            remedy="pip install 'rlharness[engine]'",
        )
