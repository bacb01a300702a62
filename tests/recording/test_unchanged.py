"""Digests are used again only for what nobody has written to."""

import pytest
import torch

from harness.recording.digest_cache import MIN_BYTES, DigestCache, Group, look_at_groups
from harness.recording.gpu_batch import NUM_SAMPLES, SAMPLE_WORDS
from harness.recording.recorder import look
from harness.trace.chain import Scope
from tests.recording.counted_gpu import CountedGpu, pretend_gpu

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


def test_a_value_whose_memory_was_given_back_is_not_read() -> None:
    unchanged, tensor = DigestCache(), value()
    before = unchanged.look([("w", tensor)])[0].digested
    tensor.untyped_storage().resize_(0)
    (seen,) = unchanged.look([("w", tensor)])
    assert (seen.digested.dtype, seen.tensor) == ("freed", None)
    tensor.untyped_storage().resize_(8 * LARGE)
    tensor.copy_(value())
    assert unchanged.look([("w", tensor)])[0].digested == before


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


# ----------------------------------------------------------------------------------------------------- on a GPU


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> CountedGpu:
    return pretend_gpu(monkeypatch)


SAMPLED = NUM_SAMPLES * SAMPLE_WORDS


def test_on_a_gpu_samples_of_unchanged_values_travel_with_the_digests_of_the_others(gpu: CountedGpu) -> None:
    cache = DigestCache()
    values = {f"w{number}": value() for number in range(3)}
    first = cache.look(list(values.items()))
    assert gpu.num_words == 3 * (2 * LARGE + SAMPLED)
    gpu.num_words, _ = 0, gpu.taken()
    values["w1"].add_(1)
    seen = cache.look(list(values.items()))
    assert gpu.num_words == 2 * LARGE + 3 * SAMPLED, "only what was written to is read"
    assert gpu.taken() == {"launches": 1, "uploads": 1, "waits": 1, "by torch": 0}
    assert [each.digested == old.digested for each, old in zip(seen, first, strict=True)] == [True, False, True]


@pytest.mark.parametrize(
    "write",
    [
        lambda tensor: tensor.mul_(2),
        lambda tensor: tensor.__setitem__(LARGE // 3, -1.0),
        lambda tensor: tensor.data.mul_(2),
        lambda tensor: tensor.data.copy_(torch.zeros(2 * LARGE)),
        lambda tensor: tensor.numpy().__imul__(2),
        lambda tensor: tensor.set_(torch.zeros(2 * LARGE)),
    ],
)
def test_on_a_gpu_writes_are_seen(write: object, gpu: CountedGpu) -> None:
    cache, tensor = DigestCache(), value()
    look_at_groups([Group([("w", tensor)], cache=cache, is_anew=True)])
    write(tensor)  # type: ignore[operator]
    (seen,) = cache.look([("w", tensor)])
    assert seen.digested == look([("w", tensor)])[0].digested
    assert gpu.num_words > 2 * LARGE


def test_groups_are_looked_at_with_one_wait(gpu: CountedGpu) -> None:
    weights, gradients = DigestCache(), DigestCache()
    tensors = [value(), value() + 1]
    look_at_groups([Group([("w", tensors[0])], cache=weights, is_anew=True)])
    gpu.num_words, _ = 0, gpu.taken()
    groups = [
        Group([("w", tensors[0])], cache=weights),
        Group([("w", tensors[1]), ("lr", 0.1)], Scope.PHYSICAL, gradients),
        Group([("w", tensors[0]), ("text", "a")]),
    ]
    found = look_at_groups(groups)
    assert gpu.taken() == {"launches": 2, "uploads": 1, "waits": 1, "by torch": 0}, "of a number, the bytes are copied"
    assert gpu.num_words == 2 * SAMPLED + 2 * 2 * LARGE
    assert [[seen.name for seen in group] for group in found] == [["w"], ["w", "lr"], ["w", "text"]]
    assert found[0][0].digested == found[2][0].digested != found[1][0].digested
    assert found[1][0].scope is Scope.PHYSICAL
    gpu.num_words = 0
    again = look_at_groups([groups[0], groups[1]._replace(is_anew=True)])
    assert gpu.num_words == 2 * SAMPLED + 2 * LARGE
    assert [[seen.digested for seen in group] for group in again] == [
        [seen.digested for seen in group] for group in found[:2]
    ]
