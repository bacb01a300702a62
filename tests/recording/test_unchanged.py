"""Digests are used again only for what nobody has written to."""

import pytest
import torch

from harness.core.errors import TraceError
from harness.recording.digest_cache import MIN_BYTES, DigestCache
from harness.recording.recorder import look
from harness.trace.chain import Scope

LARGE = MIN_BYTES // 4


def value() -> torch.Tensor:
    return torch.arange(2.0 * LARGE)


def test_what_is_as_it_was_is_told_as_it_was() -> None:
    unchanged, tensor = DigestCache(), value()
    first = unchanged.look([("w", tensor)])
    assert [seen._replace(tensor=None) for seen in first] == [s._replace(tensor=None) for s in look([("w", tensor)])]
    assert unchanged.look([("w", tensor)])[0].digested is first[0].digested


@pytest.mark.parametrize(
    "write",
    [
        lambda tensor: tensor.mul_(2),
        lambda tensor: tensor.__setitem__(LARGE // 3, -1.0),
        lambda tensor: tensor.data.mul_(2),
        lambda tensor: tensor.data.copy_(torch.zeros(2 * LARGE)),
        lambda tensor: tensor.detach().add_(1),
        lambda tensor: tensor.numpy().__imul__(2),
        lambda tensor: tensor.set_(torch.zeros(2 * LARGE)),
    ],
)
def test_writes_are_seen(write: object) -> None:
    unchanged, tensor = DigestCache(), value()
    unchanged.look([("w", tensor)])
    write(tensor)  # type: ignore[operator]
    (seen,) = unchanged.look([("w", tensor)])
    assert seen.digested == look([("w", tensor)])[0].digested


def test_a_value_whose_memory_was_given_back_is_refused_not_read() -> None:
    unchanged, tensor = DigestCache(), value()
    unchanged.look([("w", tensor)])
    tensor.untyped_storage().resize_(0)
    with pytest.raises(TraceError, match="without memory"):
        unchanged.look([("w", tensor)])


def test_another_tensor_of_that_name_is_another_value() -> None:
    unchanged = DigestCache()
    unchanged.look([("w", value())])
    assert unchanged.look([("w", value() + 1)])[0].digested == look([("w", value() + 1)])[0].digested


def test_small_transposed_and_sparse_values_are_digested_each_time_and_keep_their_order() -> None:
    unchanged = DigestCache()
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0]), (4,), check_invariants=True)
    values = [
        ("large", value()),
        ("small", torch.ones(3)),
        ("sparse", sparse),
        ("turned", value().reshape(2, LARGE).t()),
        ("large2", value()),
    ]
    expected = [seen._replace(tensor=None) for seen in look(values, Scope.PHYSICAL)]
    for _ in range(2):
        assert [seen._replace(tensor=None) for seen in unchanged.look(values, Scope.PHYSICAL)] == expected
    assert [seen.name for seen in expected][2:4] == ["sparse indices", "sparse values"]
