"""A scenario: a run spec, which is checked here, and a payload, which is checked by the entry that is named.

file ─▶ scenario ─size─▶ payload ─--set, --sweep─▶ payload ─▶ identity │ runtime settings

A scenario has an entry, a function that is called with `config`, or a command, whose {KEY} are filled from `config`. It
is a file that is named, a table of pyproject.toml, or a file in `scenarios` of the project or of the package.

about: GRPO learns to reverse short texts
entry: rlcore.entrypoint:run
determinism: invariant
sizes:
  smoke: {training.num_steps: 4}
  full: {}
runtime_sections: [runtime, output]
resume: {run: output.resume, step: output.resume_step}
chaos: {factors: {runtime.concurrency: {min: 1, max: 64}}, crash: {output.checkpoint_every: 1}}
config:
  training: {num_steps: 100}
  runtime: {concurrency: 16}
"""

import difflib
import json
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.bits.errors import UsageError
from harness.bits.files import MAX_SETTINGS_BYTES, read_text
from harness.bits.redaction import REDACTED, redact_fields
from harness.bits.text import count
from harness.lab.experiment.command_spec import (
    SpecOptions,
    checked_metric,
    command_identity,
    command_name,
    make_command_spec,
    parse_steps,
)
from harness.lab.experiment.flat_config import flattened, keys_with_dots, overridden, parts
from harness.lab.experiment.plain_yaml import read_yaml
from harness.lab.experiment.scenario_names import ENDINGS, PACKAGE, is_scenario_file, name_of
from harness.process.invocation import Invocation, shadowing
from harness.recording.run_spec import FUNCTION, EntryCall, RunSpec
from harness.runner.config import load_config
from harness.trace.manifest import ENTRY, LEVEL

SMOKE, FULL = "smoke", "full"

DottedKey = Annotated[str, Field(pattern=r"^[^.\s]+(\.[^.\s]+)*$")]
PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
"""{KEY} in a command."""


FactorKey = Annotated[str, Field(pattern=r"^[^.\s]+(\.[^.\s]+)+$")]
Line = Annotated[str, Field(min_length=1, pattern=r"^[^\n]*$")]
Function = Annotated[str, Field(pattern=FUNCTION)]


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
    latency: list[Function] = Field(default_factory=list)
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
        for size, values in self.sizes.items():
            if unknown := values.keys() - self.factors:
                yield f"chaos.sizes.{size}: {', '.join(sorted(unknown))} is not one of its factors"
        if self.crash is not None and not can_resume:
            yield "chaos.crash needs resume: another run has to resume from the crashed one"


class Resumption(BaseModel):
    """Keys of the payload that resume a run from an earlier one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    run: DottedKey
    """Takes the directory of the earlier run."""
    step: DottedKey
    """Takes a step: the run resumes from the newest checkpoint that is no later."""


def _needs_a_header(schema: dict[str, Any]) -> None:
    """Require one of the keys that say what is run."""
    schema["anyOf"] = [{"required": [key]} for key in ("command", "entry")]


class Scenario(BaseModel):
    """What a scenario's file says."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, json_schema_extra=_needs_a_header
    )

    about: Line | Literal[""] = ""
    """One line for a person."""
    entry: Function | None = None
    """module:function, called in a process of its own."""
    command: Line | None = None
    """Command of a program, in place of an entry: its words as in a shell; {KEY} stands for a value of `config`."""
    resume_command: Line | None = None
    """Command that resumes a run of `command` from its last checkpoint."""
    determinism: Literal["off", "deterministic", "invariant"] = "off"
    """The default level of its runs."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs that it needs."""
    sizes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By name, overrides of `config`, by dotted key."""
    runtime_sections: list[Annotated[str, Field(pattern=r"^[^.\s]+$")]] = Field(default_factory=list)
    """Sections of the payload that are no part of what a run is: how work is spread, what is shown."""
    resume: Resumption | None = None
    """How a run resumes from an earlier one; None if it cannot."""
    chaos: ChaosSection = Field(default_factory=ChaosSection)
    """Parts of the payload that should not affect results, for `rlharness chaos`."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The payload."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        """Check what concerns several keys: to resume or to perturb is no other run, so free sections hold the keys."""
        if dotted := next(keys_with_dots(self.config), ""):
            raise ValueError(f"config: the key {dotted!r} is empty or contains a dot; dots separate sections")
        if (self.entry is None) == (self.command is None):
            raise ValueError("either entry or command is needed")
        if self.entry is not None and self.resume_command is not None:
            raise ValueError("resume_command is of a scenario that has a command; an entry has the key resume")
        if self.entry is not None and "determinism" not in self.model_fields_set:
            raise ValueError("determinism is missing")
        known = flattened(self.config)
        for key, text in (("command", self.command), ("resume_command", self.resume_command)):
            if unknown := [name for name in PLACEHOLDER.findall(text or "") if name not in known]:
                raise ValueError(f"{key}: {{{unknown[0]}}} is no key of config")
            try:
                shlex.split(text or "")
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
        for key in (self.resume.run, self.resume.step) if self.resume else ():
            if key.partition(".")[0] not in self.runtime_sections:
                raise ValueError(f"resume: {key} is not in a section of runtime settings")
        for fault in self.chaos.faults(self.runtime_sections, sizes=self.sizes, can_resume=self.resume is not None):
            raise ValueError(fault)
        return self

    def words(self, payload: Mapping[str, Any], command: str | None = None) -> tuple[str, ...]:
        """The words of the command with values of a payload; keys that it lacks stay as {KEY}."""
        known = flattened(payload)

        def value(match: re.Match[str]) -> str:
            return shown_value(known[match[1]]) if match[1] in known else match[0]

        return tuple(PLACEHOLDER.sub(value, word) for word in shlex.split(command or self.command or ""))

    def payload(self, size: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The payload in a size, with other values at dotted keys; UsageError for keys that cannot be followed."""
        return overridden(overridden(self.config, self.sizes.get(size, {}), f"the size {size}"), values, "--set")

    def chosen_size(self, asked: str | None, default: str) -> str:
        """The name of the size to run: what was asked for, else the default, which a scenario need not have."""
        if asked is not None and asked not in self.sizes:
            raise UsageError(
                f"there is no size {asked!r}", legal=", ".join(self.sizes) or "none: this scenario has one size only"
            )
        return asked or default


def shown_value(text: str) -> str:
    """A value of a flat payload as a word of a command: a text without its quotes."""
    value = json.loads(text)
    return value if isinstance(value, str) else text


def parse_scenario(text: str, where: str) -> Scenario:
    """A scenario from the text of its file; UsageError, which begins with `where`, for whatever is wrong in it."""
    fields = read_yaml(text, where)
    if not isinstance(fields, dict):
        raise UsageError(f"{where} is not a mapping", legal=KEYS, remedy="see rlharness scenarios")
    return parse_fields(fields, where)


def parse_fields(fields: Mapping[str, Any], where: str) -> Scenario:
    """A scenario from its keys and values; UsageError, which begins with `where`, for whatever is wrong in them."""
    try:
        return Scenario.model_validate(fields)
    except ValidationError as error:
        faults = [_fault(each["loc"], each["type"], each["msg"], each["input"]) for each in error.errors()]
    what = f"{where}: {'; '.join(dict.fromkeys(faults))}"
    raise UsageError(what, legal=KEYS, remedy="correct the file; rlharness schema scenario describes each key")


KEYS = f"the keys {', '.join(Scenario.model_fields)}"


def _fault(location: tuple[int | str, ...], kind: str, message: str, value: Any) -> str:
    """Return what is wrong at a place of the file."""
    dotted = ".".join(str(each) for each in location if "[" not in str(each))  # pydantic's own, as list[any]
    if not location:  # of several keys, in words of ours
        return message.removeprefix("Value error, ")
    if kind == "extra_forbidden":
        known = (*Scenario.model_fields, *(f"chaos.{name}" for name in ChaosSection.model_fields))
        near = difflib.get_close_matches(dotted, known, n=1)
        return f"unknown key {dotted!r}" + (f", did you mean {near[0]!r}?" if near else "")
    return f"{dotted} is missing" if kind == "missing" else f"{dotted} is {value!r}: {message}"


# ---------------------------------------------------------------------------------------------------------------- files

A_COMMAND = "a command after --"
"""The alternative to a scenario, for commands that accept it."""


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """A file that should hold a scenario."""

    name: str
    """What a person types."""
    file: Traversable
    table: Mapping[str, Any] | None = None
    """The table of pyproject.toml, where it is one."""

    def read(self) -> Scenario:
        """Read the scenario in it; UsageError if the file cannot be read or is not a scenario."""
        if self.table is not None:
            fields = {key.replace("-", "_"): value for key, value in self.table.items() if key != "name"}
            return parse_fields(fields, f"{self.file}: scenario {self.name}")
        try:
            text = (
                read_text(self.file, max_bytes=MAX_SETTINGS_BYTES, follows_links=True)
                if isinstance(self.file, Path)
                else self.file.read_text("utf-8")
            )
        except (OSError, UnicodeDecodeError) as error:
            what = f": {error.strerror}" if isinstance(error, OSError) else f" is not a text file: {error.reason}"
            raise UsageError(f"{self.file}{what}", legal="YAML in UTF-8") from None
        return parse_scenario(text, str(self.file))


def all_scenarios(cwd: Path) -> list[ScenarioFile]:
    """Every one that has a name, by name; of two with one name that of the user's project."""
    places = [place for place in (resources.files(PACKAGE), cwd / PACKAGE) if place.is_dir()]
    files = [file for place in places for file in place.iterdir() if is_scenario_file(file)]
    found = {name_of(file): ScenarioFile(name_of(file), file) for file in files}
    config = load_config(cwd)
    for table in config.scenarios:
        assert config.path is not None
        name = str(table["name"])
        if name in found and found[name].table is not None:
            raise UsageError(f"{config.path} has two scenarios {name!r}", legal="a name of its own for each")
        found[name] = ScenarioFile(name, config.path, table)
    return [found[name] for name in sorted(found)]


def find_scenario(name: str, cwd: Path, *others: str) -> ScenarioFile:
    """The scenario of a name, or in a file; UsageError, with the nearest names, where there is none.

    `others` are the alternatives to it.
    """
    if name.endswith(ENDINGS) or "/" in name:
        if not (cwd / name).is_file():
            legal = "; ".join(["a YAML file, or a name listed by rlharness scenarios", *others])
            raise UsageError(f"there is no file {name}", legal=legal)
        return ScenarioFile(name, cwd / name)
    known = {each.name: each for each in all_scenarios(cwd)}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        remedy = f"did you mean {' or '.join(near)}?" if near else "rlharness scenarios describes each"
        what = f"there is no scenario {name!r}"
        raise UsageError(what, legal="; ".join([f"{', '.join(known)}, or a YAML file", *others]), remedy=remedy)
    return known[name]


# ------------------------------------------------------------------------------------------------------------ run specs

CHILD = (sys.executable, "-m", "harness.lab.experiment.scenario_main")
ISOLATED = (sys.executable, "-P", *CHILD[1:])
"""The same process that imports what its PYTHONPATH says, whatever lies in its working directory."""


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
    options: SpecOptions

    @property
    def num_variants(self) -> int:
        """How many runs it takes until each value was there."""
        return max(map(len, self.swept.values()), default=1)

    def overrides_of(self, variant: int) -> dict[str, Any]:
        """Return the overrides of a run's size; `variant` counts from 0 and cycles."""
        return {**self.overrides, **{key: values[variant % len(values)] for key, values in self.swept.items()}}


def asked_run(
    invocation: Invocation, command: str, name: str | None, options: SpecOptions, *, is_isolated: bool = False
) -> Asked:
    """Return the scenario to run, or one of the command after --; UsageError for neither, both, or unusable options."""
    if name is not None and invocation.trailing:
        raise UsageError(f"both the scenario {name} and a command are given", legal="one of the two")
    if name is not None:
        return asked_scenario(invocation, name, options, SMOKE, A_COMMAND, is_isolated=is_isolated)
    if not invocation.trailing:
        names = ", ".join(each.name for each in all_scenarios(invocation.cwd))
        what = f"rlharness {command} needs a scenario or a command"
        remedy = f"rlharness {command} SCENARIO, or rlharness {command} -- python train.py"
        raise UsageError(what, legal=f"a scenario: {names}, or a YAML file; {A_COMMAND}", remedy=remedy)
    values = {"--size": options.size, "--set": options.overrides, "--sweep": options.sweep}
    if given := [option for option, value in values.items() if value]:
        raise UsageError(f"{', '.join(given)} without a scenario", remedy="rlharness scenarios lists the scenarios")
    scenario = Scenario.model_construct(command=shlex.join(invocation.trailing))  # braces of others are no placeholders
    return Asked(command_name(invocation.trailing), scenario, "", (), {}, {}, options)


def asked_scenario(
    invocation: Invocation,
    name: str,
    options: SpecOptions,
    default_size: str,
    *others: str,
    is_isolated: bool = False,
) -> Asked:
    """The scenario that was named; UsageError where there is none, or it cannot be run here as it was asked for.

    `others` are the alternatives to it. `is_isolated`: the working directory comes after this package on the import
    path.
    """
    asked = asked_of(name, find_scenario(name, invocation.cwd, *others).read(), options, default_size)
    if asked.scenario.entry is not None:
        check_entries(invocation, is_isolated=is_isolated)
    if num_gpus := asked.scenario.gpus:
        from harness.machine.gpus import read_inventory

        inventory = read_inventory("auto", invocation.environ)
        if len(inventory.gpus) < num_gpus:
            what = f"this scenario needs {count(num_gpus, 'GPU')}, and {len(inventory.gpus)} are free here"
            raise UsageError(what, remedy="rlharness doctor reports why GPUs cannot be used")
    return asked


def asked_of(name: str, scenario: Scenario, options: SpecOptions, default_size: str) -> Asked:
    """A scenario as options ask for it; UsageError for a size that it has not, and options that cannot be used."""
    size = scenario.chosen_size(options.size, default_size)
    swept = dict(_swept(text, scenario) for text in options.sweep)
    level = options.level
    given = {"size": (size,) if size in scenario.sizes else (), "set": options.overrides}
    given |= {"sweep": options.sweep, "level": (level,) if level else ()}
    typed = (name, *(word for option, texts in given.items() for text in texts for word in (f"--{option}", text)))
    return Asked(name, scenario, size, typed, dict(map(override_of, options.overrides)), swept, options)


def make_scenario_spec(asked: Asked, variant: int = 0, *, is_isolated: bool = False) -> RunSpec:
    """The run spec of one run of a scenario; UsageError for overrides and options that cannot be used."""
    options = asked.options
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
            argv=ISOLATED if is_isolated else CHILD,
        )
    return replace(spec, typed=asked.typed if not asked.swept else _with_values(asked, variant))


def spec_of_call(call: EntryCall, level: str) -> RunSpec:
    """The run spec in which an entry is called at a level."""
    bound, free = parts(call.config, call.runtime_sections)
    return RunSpec(
        argv=CHILD,
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
        raise UsageError(f"--set {text}", legal="KEY=VALUE, with a value in YAML", remedy="--set training.num_steps=20")
    if REDACTED in value:
        what = f"--set {text}: rlharness removed a secret there"
        raise UsageError(what, legal="the value itself", remedy=f"replace {REDACTED} by the secret")
    return key.strip(), read_yaml(value, f"--set {text}")


def _swept(text: str, scenario: Scenario) -> tuple[str, tuple[Any, ...]]:
    """(dotted key, values) of KEY=VALUE,VALUE; UsageError where other values would be another run."""
    key, equals, values = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UsageError(
            f"--sweep {text}", legal="KEY=VALUE,VALUE: a value for each run", remedy="--sweep runtime.concurrency=1,16"
        )
    free = scenario.runtime_sections
    if key.partition(".")[0] not in free:
        what = f"--sweep {key}: it is part of the run identity, so runs that differ in it are not comparable"
        legal = f"keys of {', '.join(free)}" if free else "none: this scenario declares no runtime settings"
        raise UsageError(what, legal=legal)
    found = read_yaml(f"[{values}]", f"--sweep {text}")
    if not found:
        raise UsageError(f"--sweep {text}", legal="a value for each run, with commas between them")
    return key, tuple(found)


def check_entries(invocation: Invocation, *, is_isolated: bool = False) -> None:
    """UsageError where no entry could be called and recorded here."""
    if not is_isolated and (hidden_by := shadowing(invocation.cwd)):
        raise UsageError(
            f"{hidden_by} would be imported instead of rlharness's own package", remedy="change into another directory"
        )
    if find_spec("torch") is None:
        what = f"torch is not installed for {sys.executable}, but recording an entry needs it"
        raise UsageError(what, remedy="pip install 'rlharness[engine]'")
