"""A batch is an immutable mapping of tensors: what is added is in a new one, and the old one has its own entries."""

import pytest
import torch

from rlcore.batching.batch import Batch
from rlcore.errors import ShapeError


def test_an_extended_batch_shares_tensors_and_leaves_the_first_as_it_was() -> None:
    entries = {"tokens": torch.arange(6).reshape(2, 3), "rewards": torch.zeros(2)}
    batch = Batch(entries)
    entries["late"] = torch.ones(2)
    longer = batch.extended(values=torch.ones(2, 3), rewards=torch.ones(2))
    assert list(batch) == ["tokens", "rewards"] and len(batch) == 2
    assert list(longer) == ["tokens", "rewards", "values"]
    assert longer["tokens"] is batch["tokens"]
    assert (batch["rewards"].tolist(), longer["rewards"].tolist()) == ([0.0, 0.0], [1.0, 1.0])
    assert "values" in longer and "values" not in batch


def test_entries_cannot_be_assigned() -> None:
    batch = Batch({"rewards": torch.zeros(2)})
    with pytest.raises(TypeError, match="does not support item assignment"):
        batch["rewards"] = torch.ones(2)  # type: ignore[index]
    with pytest.raises(TypeError, match="does not support item assignment"):
        batch.entries["rewards"] = torch.ones(2)  # type: ignore[index]
    with pytest.raises(AttributeError):
        batch.entries = {}  # type: ignore[misc]


def test_a_device_is_that_of_all_entries() -> None:
    batch = Batch({"tokens": torch.zeros(2, 3, dtype=torch.int64), "rewards": torch.zeros(2)})
    assert {entry.device.type for entry in batch.to("meta").values()} == {"meta"}
    assert batch.to("cpu")["tokens"] is batch["tokens"]


@pytest.mark.parametrize("entry", [torch.zeros(3), torch.zeros(())])
def test_entries_of_other_sizes_are_refused(entry: torch.Tensor) -> None:
    with pytest.raises(ShapeError, match="entries of a batch have sizes"):
        Batch({"rewards": torch.zeros(2), "values": entry})
    with pytest.raises(ShapeError, match="entries of a batch have sizes"):
        Batch({"rewards": torch.zeros(2)}).extended(values=entry)
