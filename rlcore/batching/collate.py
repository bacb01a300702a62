"""Collates rows of different lengths into one dense, right-padded batch."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlcore.batching.batch import Batch
from rlcore.errors import InvalidValueError, ShapeError

LENGTHS = "lengths"
"""Entry that `collate` adds: the number of positions of each sample, int64 [samples]."""


def collate(sequences: Mapping[str, Sequence[Tensor]], *, pad_values: Mapping[str, float] | None = None) -> Batch:
    """Pad named sequences [positions, ...], one per sample, to [samples, positions, ...], and add `lengths`.

    Positions after a sample's end hold the pad value of the entry, 0 (False) by default. Raises InvalidValueError for
    no sample and for a pad value without its entry, and ShapeError if entries disagree on samples or lengths.
    """
    values = dict(pad_values or {})
    if unknown := sorted(values.keys() - sequences.keys()):
        raise InvalidValueError(f"a pad value for {unknown[0]!r}", legal=f"for {', '.join(sequences)}")
    lengths = {name: [len(part) for part in parts] for name, parts in sequences.items()}
    if LENGTHS in sequences or not any(lengths.values()):
        raise InvalidValueError(f"entries {sorted(sequences)}", legal="at least one with a sample, none called lengths")
    first, *_ = sequences
    for name, found in lengths.items():
        if found != lengths[first]:
            raise ShapeError(f"{name!r} has lengths {found}, {first!r} has {lengths[first]}", legal="equal lengths")
    padded = {
        name: torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=values.get(name, 0))
        for name, parts in sequences.items()
    }
    return Batch({**padded, LENGTHS: torch.tensor(lengths[first])})
