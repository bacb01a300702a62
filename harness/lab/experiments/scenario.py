"""A scenario: a run spec, which is checked here, and a payload, which is checked by the entry that is named.

A scenario has an entry, a function that is called with `config`, or a command, whose {KEY} are filled from `config`.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.bits.errors import UsageError
from harness.lab.experiments.flat_config import flattened, keys_with_dots, meant, overridden
from harness.lab.experiments.perturbation import ChaosSection
from harness.lab.experiments.plain_yaml import read_yaml
from harness.recording.entry_call import FUNCTION
from harness.trace.renames import CALL_FIELDS

SMOKE, FULL = "smoke", "full"

Line = Annotated[str, Field(min_length=1, pattern=r"^[^\n]*$")]
SectionName = Annotated[str, Field(pattern=r"^[^.\s]+$")]
DottedKey = Annotated[str, Field(pattern=r"^[^.\s]+(\.[^.\s]+)*$")]
PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.-]*)\}")
"""{KEY} in a command."""


class Resumption(BaseModel):
    """Keys of the payload that resume a run from an earlier one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    run: DottedKey
    """Takes the directory of the earlier run."""
    step: DottedKey
    """Takes a step: the run resumes from the newest checkpoint that is no later."""


def _needs_a_header(schema: dict[str, Any]) -> None:
    """Require one of the keys that say what is run."""
    schema["anyOf"] = [{"required": [key]} for key in ("extends", "command", "entry")]


class Scenario(BaseModel):
    """What a scenario's file says."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, json_schema_extra=_needs_a_header
    )

    extends: str = ""
    """Scenario that this one differs from: its name, or a file beside this one. What is left out here is as there."""
    about: Line | Literal[""] = ""
    """One line for a person."""
    entry: Annotated[str, Field(pattern=FUNCTION)] | None = None
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
    runtime_sections: list[SectionName] = Field(default_factory=list)
    """Sections of the payload that are no part of what a run is: how work is spread, what is shown."""
    resume: Resumption | None = None
    """How a run resumes from an earlier one; None if it cannot."""
    chaos: ChaosSection = Field(default_factory=ChaosSection)
    """Parts of the payload that should not affect results, for `rlharness chaos`."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The payload."""

    @model_validator(mode="after")
    def _is_one_tree(self) -> Self:
        if dotted := next(keys_with_dots(self.config), ""):
            raise ValueError(f"config: the key {dotted!r} is empty or contains a dot; dots separate sections")
        return self

    @model_validator(mode="after")
    def _runs_one_thing(self) -> Self:
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
        return self

    @model_validator(mode="after")
    def _resumes_freely(self) -> Self:
        """To go on is no other run: its keys are no part of what a run is."""
        for key in (self.resume.run, self.resume.step) if self.resume else ():
            if key.partition(".")[0] not in self.runtime_sections:
                raise ValueError(f"resume: {key} is not in a section of runtime settings")
        return self

    @model_validator(mode="after")
    def _perturbs_freely(self) -> Self:
        """What must not matter is no part of what a run is."""
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

    def misspelt(self, typed: Mapping[str, Sequence[str]]) -> Iterator[str]:
        """What is perhaps misspelt of the file's dotted keys and of those that were `typed`, by option: a line each."""
        factors, crash = self.chaos.factors, self.chaos.crash or {}
        of_file = {f"sizes.{size}:": tuple(values) for size, values in self.sizes.items()}
        of_file |= {"chaos.factors:": tuple(factors), "chaos.crash:": tuple(crash)}
        for where, keys in {**of_file, **typed}.items():
            for key in keys:
                if near := meant(self.config, key):
                    yield f"{where} {key}: config has no such key; did you mean {near}?"

    def chosen_size(self, asked: str | None, default: str) -> str:
        """The name of the size to run: what was asked for, else the default, which a scenario need not have."""
        if asked is not None and asked not in self.sizes:
            raise UsageError(
                f"there is no size {asked!r}", legal=", ".join(self.sizes) or "none: this scenario has one size only"
            )
        return asked or default


_KEYS: Mapping[tuple[object, ...], tuple[str, ...]] = {
    (): tuple(Scenario.model_fields),
    ("chaos",): tuple(ChaosSection.model_fields),
    ("resume",): tuple(Resumption.model_fields),
}
"""The keys of each section that has its own."""
LEGAL: Mapping[tuple[str, ...], str] = {
    ("extends",): "the name of a scenario, or a YAML file beside this one",
    ("about",): "one line of text",
    ("entry",): "module:function",
    ("command",): "one line: the words of a command, as in a shell",
    ("resume_command",): "one line: the words of a command, as in a shell",
    ("determinism",): ", ".join(get_args(Scenario.model_fields["determinism"].annotation)),
    ("gpus",): "a whole number, 0 or more",
    ("sizes",): "names of sizes, each with values by dotted keys: {smoke: {training.num_steps: 4}}",
    ("sizes", "*"): "values by dotted keys: {training.num_steps: 4}",
    ("runtime_sections",): "a list of sections of config",
    ("runtime_sections", "*"): "the name of a section of config",
    ("resume",): f"the keys {', '.join(_KEYS[('resume',)])}",
    ("resume", "run"): "a dotted key of config",
    ("resume", "step"): "a dotted key of config",
    ("chaos",): f"the keys {', '.join(_KEYS[('chaos',)])}",
    ("chaos", "factors"): "dotted keys, each with {min: 1, max: 64} or a list of values",
    ("chaos", "factors", "*"): (
        "{min: 1, max: 64}, whole numbers of which the first is less; or a list of values, the simplest first"
    ),
    ("chaos", "sizes"): "names of sizes, each with values of factors: {tiny: {runtime.n: [2, 1]}}",
    ("chaos", "names"): "dotted keys of its factors, each with what sentences call it",
    ("chaos", "names", "*"): "one line of text",
    ("chaos", "packages"): "dotted keys of its factors, each with the package that it needs: {sampler.name: vllm}",
    ("chaos", "packages", "*"): "the name of a package, as import has it",
    ("chaos", "where"): "dotted keys of its factors, each with values of other keys",
    ("chaos", "where", "*"): "values by dotted keys: {sampler.name: vllm}",
    ("chaos", "latency"): "a list of module:function",
    ("chaos", "latency", "*"): "module:function",
    ("chaos", "crash"): "values by dotted keys: {output.checkpoint_every: 1}",
    ("config",): "a mapping of keys to values",
}
"""Legal content by position in the file; * is any key of a mapping, and any index of a list."""


def shown_value(text: str) -> str:
    """A value of a flat payload as a word of a command: a text without its quotes."""
    value = json.loads(text)
    return value if isinstance(value, str) else text


def parse_scenario(text: str, where: str, base_of: Callable[[str], Scenario] | None = None) -> Scenario:
    """A scenario from the text of its file; UsageError, which begins with `where`, for whatever is wrong in it.

    `base_of` finds the scenario that it extends.
    """
    fields = read_yaml(text, where)
    if not isinstance(fields, dict):
        raise UsageError(
            f"{where} is not a mapping", legal=f"the keys {', '.join(_KEYS[()])}", remedy="see rlharness scenarios"
        )
    if base_of and isinstance(name := fields.get("extends"), str):
        fields = _merged(base_of(name).model_dump(exclude_unset=True), fields)
    return parse_fields(fields, where)


def parse_fields(fields: Mapping[str, Any], where: str) -> Scenario:
    """A scenario from its keys and values; UsageError, which begins with `where`, for whatever is wrong in them."""
    try:
        return Scenario.model_validate(fields)
    except ValidationError as error:
        faults = dict.fromkeys(_fault(dict(fault), fields) for fault in error.errors())
    raise UsageError(
        f"{where}: " + "; ".join(what for what, _ in faults),
        legal="; ".join(dict.fromkeys(legal for _, legal in faults if legal)),
        remedy="correct the file"
        if fields.keys() & {"entry", "command"}
        else "begin it with extends: NAME, what it differs from",
    )


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return sections merged key by key; any other value is the own one."""
    both = {
        key: _merged(base[key], value) if isinstance(value, Mapping) and isinstance(base.get(key), Mapping) else value
        for key, value in own.items()
    }
    return {**base, **both}


def _fault(fault: Mapping[str, Any], fields: Mapping[str, Any]) -> tuple[str, str]:
    """What is wrong, and what would be right, in words of the file."""
    location, kind = tuple(fault["loc"]), fault["type"]
    if not location:  # of several keys, in words of ours
        return str(fault["msg"]).removeprefix("Value error, "), ""
    around, key = location[:-1], location[-1]
    if key == "[key]":
        around, key = around[:-1], around[-1]
        return f"{_dotted(around)} has the key {key!r}", "dotted keys: SECTION.NAME"
    if keys := _KEYS.get(around, ()):
        legal = f"the keys {', '.join(keys)}"
        if kind == "missing":
            return f"{_dotted(location)} is missing", legal
        if kind == "extra_forbidden":
            if around == () and (new := CALL_FIELDS.get(str(key))):
                return f"the key {key!r} is now called {new!r}", legal
            near = difflib.get_close_matches(str(key), keys, n=1, cutoff=0.5)
            meant = f", did you mean {_dotted((*around, near[0]))!r}?" if near else ""
            return f"unknown key {_dotted(location)!r}{meant}", legal
    pattern = max((each for each in LEGAL if _is_at(location, each)), key=len)
    place, value = location[: len(pattern)], fields
    for key in place:
        value = value[key]
    return f"{_dotted(place)} is {value!r}", LEGAL[pattern]


def _is_at(location: tuple[object, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a location is the place of a pattern, or within it."""
    return len(pattern) <= len(location) and all(
        each in ("*", key) for each, key in zip(pattern, location, strict=False)
    )


def _dotted(location: tuple[object, ...]) -> str:
    return ".".join(map(str, location))
