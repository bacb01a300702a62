"""The batch of a step: named tensors of all its samples, which nothing can be added to in place."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from rlcore.errors import ShapeError


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Mapping[str, Tensor]):
    """An immutable mapping of names to tensors [samples, ...]. A stage that adds entries returns a batch of its own.

    Raises ShapeError if entries disagree on the number of samples.
    """

    entries: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        sizes = {name: tuple(entry.shape[:1]) for name, entry in self.entries.items()}
        if len(set(sizes.values())) > 1 or () in sizes.values():
            raise ShapeError(f"entries of a batch have sizes {sizes}", legal="the same number of samples")
        object.__setattr__(self, "entries", MappingProxyType(dict(self.entries)))

    def __getitem__(self, name: str) -> Tensor:
        """Return an entry."""
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the entries."""
        return iter(self.entries)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.entries)

    def extended(self, **entries: Tensor) -> "Batch":
        """Return a batch with these entries too; an entry of the same name is replaced."""
        return Batch({**self.entries, **entries})

    def to(self, device: str | torch.device) -> "Batch":
        """Return a batch with all tensors on a device; those that are there already are shared."""
        return Batch({name: entry.to(device) for name, entry in self.entries.items()})
