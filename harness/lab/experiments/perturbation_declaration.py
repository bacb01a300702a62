"""The section `chaos` of a scenario's file: keys of its payload that should not affect results, functions with a
varying latency, and overrides for a crash.

chaos:
  factors:
    runtime.concurrency: {min: 1, max: 64}
    runtime.preempt_every: [0, 1, 2, 5]
    sampler.name: [torch, vllm]
    sampler.block_size: {min: 1, max: 16}
  sizes: {tiny: {runtime.concurrency: {min: 1, max: 8}}}
  names: {runtime.concurrency: the sampler's concurrency}
  packages: {sampler.name: vllm}
  where: {sampler.block_size: {sampler.name: vllm}}
  latency: [rlcore.data.scoring:awaited]
  crash: {output.checkpoint_every: 1}
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.lab.experiments.perturbation_factors import USUAL_QUARTERS, Condition, Factor
from harness.lab.experiments.perturbation_values import Choice, Span, Values
from harness.recording.entry_call import FUNCTION

FactorKey = Annotated[str, Field(pattern=r"^[^.\s]+(\.[^.\s]+)+$")]


DEAR = 2
"""In so many of four probes a factor is changed that needs a package: its import takes seconds."""


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

        Without those whose package is not installed.
        """
        return tuple(
            Factor(
                key,
                _values(declared),
                usual.get(key),
                num_quarters=DEAR if key in self.packages else USUAL_QUARTERS,
                about=self.names.get(key, ""),
                where=tuple(
                    Condition(name, wanted, usual.get(name)) for name, wanted in self.where.get(key, {}).items()
                ),
            )
            for key, declared in {**self.factors, **self.sizes.get(size, {})}.items()
            if key not in self.packages or is_installed(self.packages[key])
        )


def _values(declared: Range | list[Any]) -> Values:
    return Span(declared.min, declared.max) if isinstance(declared, Range) else Choice(tuple(declared))
