"""Need of a test on a machine: GPUs, their kind, and whether it runs alone."""

from dataclasses import dataclass, fields
from typing import Any


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
