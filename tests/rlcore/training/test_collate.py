"""Rows of different lengths as one dense batch."""

import pytest
import torch
from torch import Tensor

from rlcore.batching.collate import collate
from rlcore.errors import InvalidValueError, ShapeError


def rows(*lengths: int) -> list[Tensor]:
    return [torch.arange(1, length + 1) for length in lengths]


def test_rows_are_padded_behind_and_their_lengths_are_kept() -> None:
    masks = [torch.ones(length, dtype=torch.bool) for length in (2, 3)]
    batch = collate({"tokens": rows(2, 3), "loss_mask": masks}, pad_values={"tokens": 9})
    assert batch["tokens"].tolist() == [[1, 2, 9], [1, 2, 3]]
    assert batch["loss_mask"].tolist() == [[True, True, False], [True, True, True]]
    assert batch["lengths"].tolist() == [2, 3]


def test_rows_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"'loss_mask' has lengths \[3, 2\], 'tokens' has \[2, 3\]"):
        collate({"tokens": rows(2, 3), "loss_mask": rows(3, 2)})
    with pytest.raises(InvalidValueError, match="at least one with a sample"):
        collate({"tokens": []})
    with pytest.raises(InvalidValueError, match="a pad value for 'token'"):
        collate({"tokens": rows(1)}, pad_values={"token": 0})
    with pytest.raises(InvalidValueError, match="none called lengths"):
        collate({"lengths": rows(1)})
