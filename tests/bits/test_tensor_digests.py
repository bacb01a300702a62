"""Digests are of bits, type and shape, and of nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.bits.tensor_digests import combined_digest, tensor_digest, tensor_digests, weights_digest

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
some = settings(max_examples=60)
KNOWN_TENSOR = "877648649ff21b1a6826b5a73e7a5c43"
KNOWN_SET = "acc1022de09d153dae974e615dbc6931"
shapes = st.lists(st.integers(0, 5), max_size=3)


def drawn(shape: list[int], dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 9).to(dtype)


@some
@given(shape=shapes, dtype=st.sampled_from(DTYPES), data=st.data())
def test_one_bit_more_or_less_is_another_digest(shape: list[int], dtype: torch.dtype, data: st.DataObject) -> None:
    tensor = drawn(shape, dtype)
    assert tensor_digest(tensor) == tensor_digest(tensor.clone())
    changed = tensor.clone()
    content = changed.reshape(-1).view(torch.uint8) if changed.dim() else changed.view(1).view(torch.uint8)
    if len(content) and dtype != torch.bool:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        assert tensor_digest(changed) != tensor_digest(tensor)


@some
@given(shape=shapes, order=st.randoms(use_true_random=False))
def test_strides_do_not_count(shape: list[int], order: object) -> None:
    dims = list(range(len(shape)))
    order.shuffle(dims)  # type: ignore[attr-defined]  # a random.Random
    tensor = drawn(shape).permute(dims)
    assert tensor_digest(tensor) == tensor_digest(tensor.contiguous())
    assert tensor_digest(tensor.expand(2, *tensor.shape)) == tensor_digest(torch.stack((tensor, tensor)))


def test_names_count_and_their_order_does_not() -> None:
    a, b = drawn([3]), drawn([3], seed=1)
    assert weights_digest({"a": a, "b": b}) == weights_digest({"b": b, "a": a})
    assert weights_digest({"a": a, "b": b}) != weights_digest({"a": b, "b": a})
    assert weights_digest({"a": a}) != weights_digest({"a": a, "b": b})
    assert weights_digest({"a": a}) == combined_digest(tensor_digests({"a": a}))
    digest = tensor_digest(a)
    assert combined_digest({"x": digest, "y": digest}) != combined_digest({f"x{digest}1:y": digest})


def test_known_digests_stay_what_they_are() -> None:
    """Receipts of older runs are compared with those of newer ones."""
    assert tensor_digest(torch.arange(6, dtype=torch.float32).reshape(2, 3)) == KNOWN_TENSOR
    assert weights_digest({"a": torch.zeros(2), "b": torch.tensor(-0.0, dtype=torch.bfloat16)}) == KNOWN_SET


@pytest.mark.parametrize("tensor", [torch.zeros(2, device="meta"), torch.zeros(2).to_sparse()])
def test_what_has_no_dense_memory_is_refused_by_name(tensor: Tensor) -> None:
    with pytest.raises(ValueError, match=r"layers\.0\.down: only a dense tensor with memory has a digest"):
        tensor_digests({"layers.0.down": tensor})
