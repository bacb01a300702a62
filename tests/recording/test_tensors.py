"""Tensors as leaves have them: bytes in C order, whatever the tensor's layout."""

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.digests import digest
from harness.bits.errors import TraceError
from harness.recording.tensors import DTYPES, digest_tensor, dtype_name, strided_parts, tensor_bytes


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_gives_its_bytes(dtype: torch.dtype) -> None:
    data = torch.arange(48, dtype=torch.uint8) % 2
    tensor = data.view(dtype)
    assert bytes(tensor_bytes(tensor)) == bytes(data.tolist())
    assert digest_tensor(tensor).dtype == dtype_name(dtype) == DTYPES[dtype]


@settings(derandomize=True)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_layout_does_not_matter(shape: list[int], random: "__import__('random').Random") -> None:  # type: ignore[valid-type]
    whole = torch.arange(int(torch.tensor(shape).prod()), dtype=torch.float32).reshape(shape)
    order = list(range(len(shape)))
    random.shuffle(order)
    inverse = [order.index(axis) for axis in range(len(shape))]
    turned = whole.permute(order).contiguous().permute(inverse)
    assert turned.shape == whole.shape
    assert digest_tensor(turned) == digest_tensor(whole)


def test_views_with_steps_conjugates_and_negatives_are_resolved() -> None:
    whole = torch.arange(10.0)
    assert bytes(tensor_bytes(whole[1::3])) == bytes(tensor_bytes(torch.tensor([1.0, 4.0, 7.0])))
    number = torch.tensor([1 + 2j])
    assert bytes(tensor_bytes(number.conj())) == bytes(tensor_bytes(torch.tensor([1 - 2j])))
    assert bytes(tensor_bytes(number.conj().imag)) == bytes(tensor_bytes(torch.tensor([-2.0])))
    weight = torch.tensor([1 + 2j, 3 + 4j, 6 + 5j])
    digest_tensor(weight)
    weight.data = weight.data.conj()
    assert digest_tensor(weight) == digest_tensor(torch.tensor([1 - 2j, 3 - 4j, 6 - 5j]))
    square = torch.arange(4.0).reshape(2, 2)
    digest_tensor(square)
    square.data = square.data.t()
    assert digest_tensor(square) == digest_tensor(torch.tensor([[0.0, 2.0], [1.0, 3.0]]))


def test_the_memory_lives_as_long_as_the_view() -> None:
    view = tensor_bytes(torch.full((4096,), 7.0))
    gc.collect()
    others = [torch.zeros(4096) for _ in range(8)]
    assert bytes(view[:4]) == bytes(tensor_bytes(torch.tensor(7.0)))
    assert len(others) == 8


def test_a_tensor_that_wants_a_gradient_is_read_without_one() -> None:
    parameter = torch.nn.Parameter(torch.ones(5))
    version = parameter._version
    digest_tensor(parameter * 2)
    assert digest_tensor(parameter)[2:] == digest(bytes(tensor_bytes(torch.ones(5))))
    assert (parameter._version, parameter.grad) == (version, None)


def test_sparse_tensors_are_told_by_indices_and_values() -> None:
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[2, 0, 2]]), torch.tensor([1.0, 2.0, 3.0]), (4,), check_invariants=True
    )
    assert [(suffix, part.tolist()) for suffix, part in strided_parts(sparse)] == [
        (" indices", [[2, 0, 2]]),
        (" values", [1.0, 2.0, 3.0]),
    ]
    assert [(suffix, part.tolist()) for suffix, part in strided_parts(torch.ones(2))] == [("", [1.0, 1.0])]


def test_a_tensor_without_memory_is_refused() -> None:
    given_back = torch.ones(4)
    given_back.untyped_storage().resize_(0)
    for value in (given_back, torch.ones(4, device="meta")):
        with pytest.raises(TraceError, match="without memory"):
            tensor_bytes(value)
