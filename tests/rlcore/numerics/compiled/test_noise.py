"""The sampler's noise from the kernel: the bits of torch's own operations, since whole numbers have no others."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlcore.errors import ShapeError
from rlcore.numerics.compiled import operations
from rlcore.numerics.level import computing
from rlcore.samplers import gumbel

pytestmark = [pytest.mark.needs_compiler, pytest.mark.full]

INT64 = st.integers(-(2**63), 2**63 - 1)
STATES, IDS = torch.arange(3), torch.arange(5)


@settings(max_examples=100)
@given(st.lists(INT64, max_size=9), st.lists(INT64, max_size=9))
def test_any_numbers_are_mixed_as_torch_mixes_them(states: list[int], ids: list[int]) -> None:
    rows, others = torch.tensor(states, dtype=torch.int64), torch.tensor(ids, dtype=torch.int64)
    found = operations.uniforms(rows, others)
    assert found.dtype is torch.float64 and found.shape == (len(rows), len(others))
    assert torch.equal(found, gumbel.uniforms(gumbel.mixed_(rows[:, None] + others)))
    assert bool(((found > 0) & (found < 1)).all())


@pytest.mark.parametrize("vocab_size", [1, 7, 1000, 70_000])
def test_noise_is_the_same_with_either_kernels(vocab_size: int) -> None:
    """In one part and in several, since a vocabulary of 70 000 is mixed a row at a time."""
    noise = gumbel.GumbelNoise.of(vocab_size, torch.device("cpu"))
    keys = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), gumbel.signed(0x9E37_79B9_7F4A_7C15)])
    states = gumbel.states(keys, torch.arange(6))
    with computing("torch"):
        expected = noise(states)
    with computing("compiled"):
        found = noise(states)
    assert torch.equal(found.view(torch.int64), expected.view(torch.int64))
    assert found.shape == (6, vocab_size)


@pytest.mark.parametrize(
    ("states", "ids"),
    [
        pytest.param(STATES.int(), IDS, id="states of int32"),
        pytest.param(STATES, IDS.double(), id="ids of fp64"),
        pytest.param(torch.arange(6)[::2], IDS, id="states apart"),
        pytest.param(STATES, torch.arange(10)[::2], id="ids apart"),
        pytest.param(STATES[:, None], IDS, id="states of two dimensions"),
        pytest.param(STATES, IDS[None], id="ids of two dimensions"),
        pytest.param(STATES, IDS.to("meta"), id="ids elsewhere"),
    ],
)
def test_what_does_not_fit_is_refused(states: Tensor, ids: Tensor) -> None:
    assert operations.uniforms(STATES, IDS).shape == (3, 5)
    with pytest.raises(ShapeError, match="contiguous int64 of one dimension") as caught:
        operations.uniforms(states, ids)
    assert type(caught.value) is ShapeError
