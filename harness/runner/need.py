"""Need of a test on a machine: GPUs, their kind, whether it runs alone; and the table that has it by file."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathspec import PathSpec


@dataclass(frozen=True, slots=True)
class Need:
    """Need of one unit: the maximum over its tests."""

    gpus: int = 0
    """Number of GPUs, leased together."""
    memory_gb: float = 0.0
    """Memory each of these GPUs must have, in GB (10**9 bytes); 0 for any."""
    model: str | None = None
    """Text the GPU's model name must contain, case ignored ("H100"); None for any."""
    min_capability: tuple[int, int] | None = None
    """Lowest CUDA compute capability, (9, 0) for Hopper; None for any."""
    exclusive: bool = False
    """No other unit may run on this machine meanwhile."""
    shared: bool = False
    """Whether units may share the one GPU: each has `memory_gb` of it as its budget."""

    @property
    def budget_bytes(self) -> int:
        """Memory that a unit may use of a GPU that it shares; 0 without sharing."""
        return max(1, round(self.memory_gb * 1e9)) if self.shared else 0

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Need":
        """The need that `to_json` wrote; unknown keys raise TypeError."""
        capability = data.get("min_capability")
        return cls(**{**data, "min_capability": tuple(capability) if capability else None})

    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain values that `from_json` reads back: one per field."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        data["min_capability"] = list(self.min_capability) if self.min_capability else None
        return data

    def exceeds(self, other: "Need") -> bool:
        """Whether a unit planned with `other` was given less than this need asks for."""
        return (
            self.gpus > other.gpus
            or self.memory_gb > other.memory_gb
            or (self.model is not None and self.model != other.model)
            or (self.min_capability or (0, 0)) > (other.min_capability or (0, 0))
            or (self.exclusive and not other.exclusive)
            or (self.gpus > 0 and other.shared and not self.shared)
        )

    def __str__(self) -> str:
        parts = [f"{self.gpus} GPU" + ("" if self.gpus == 1 else "s")]
        if self.model:
            parts.append(f"model {self.model}")
        if self.memory_gb:
            parts.append(f"{self.memory_gb:g} GB of it" if self.shared else f">= {self.memory_gb:g} GB each")
        if self.min_capability:
            parts.append(f"capability >= {self.min_capability[0]}.{self.min_capability[1]}")
        if self.exclusive:
            parts.append("exclusive")
        return ", ".join(parts)


def merged_need(needs: Sequence[Need]) -> Need:
    """Return the need that satisfies each of these. Raises ValueError for two models."""
    if len(set(needs)) == 1:
        return needs[0]
    from harness.plugin import merge_needs  # late: it imports pytest, which few runs need

    return Need.from_json(merge_needs([need.to_json() for need in needs]))


@dataclass(frozen=True, slots=True)
class NeedRule:
    """Need of the files that match a pattern."""

    glob: str
    need: Need | None
    """None where the entry sets a timeout only."""
    timeout_s: float | None = None


class NeedsTable:
    """The rules of the configuration and of `--needs`, ready to be asked about files."""

    def __init__(self, rules: Iterable[NeedRule]) -> None:
        self._last_first = [(rule, match_spec(rule.glob)) for rule in rules][::-1]

    def need(self, path: str) -> Need | None:
        """Return the need of the last matching rule with one for `path`, relative to the root directory; else None."""
        return next((rule.need for rule, spec in self._last_first if rule.need and spec.match_file(path)), None)

    def timeout_s(self, path: str) -> float | None:
        """The time limit that the last matching rule with a timeout sets; None for none."""
        return next(
            (rule.timeout_s for rule, spec in self._last_first if rule.timeout_s and spec.match_file(path)), None
        )

    def idle(self, paths: Sequence[str]) -> list[str]:
        """Patterns that match none of `paths`: most likely misspelt."""
        return [rule.glob for rule, spec in self._last_first if not any(spec.match_file(path) for path in paths)][::-1]


def match_spec(glob: str) -> "PathSpec[Any]":
    """Return the matcher of a pattern as in .gitignore."""
    from pathspec import PathSpec

    return PathSpec.from_lines("gitignore", [glob])
