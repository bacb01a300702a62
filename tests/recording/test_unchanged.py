"""Digests are used again only for what nobody has written to."""

import pytest
import torch

from harness.recording.recorder import MIN_BYTES, DigestCache, Group, Observation, look, look_at_groups
from harness.trace.format import Scope
from tests.recording.counted_gpu import pretend_gpu

LARGE = MIN_BYTES // 4


def look_again(
    cache: DigestCache, values: list[tuple[str, torch.Tensor]], scope: Scope = Scope.LOGICAL
) -> list[Observation]:
    return look_at_groups([Group(values, scope, cache)])[0]


def value() -> torch.Tensor:
    return torch.arange(2.0 * LARGE)


def test_what_is_as_it_was_is_told_as_it_was() -> None:
    unchanged, tensor = DigestCache(), value()
    first = look_again(unchanged, [("w", tensor)])
    assert [seen._replace(tensor=None) for seen in first] == [s._replace(tensor=None) for s in look([("w", tensor)])]
    assert look_again(unchanged, [("w", tensor)])[0].digested is first[0].digested


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
    look_again(unchanged, [("w", tensor)])
    write(tensor)  # type: ignore[operator]
    (seen,) = look_again(unchanged, [("w", tensor)])
    assert seen.digested == look([("w", tensor)])[0].digested


def test_a_value_whose_memory_was_given_back_is_not_read() -> None:
    unchanged, tensor = DigestCache(), value()
    before = look_again(unchanged, [("w", tensor)])[0].digested
    tensor.untyped_storage().resize_(0)
    (seen,) = look_again(unchanged, [("w", tensor)])
    assert (seen.digested.dtype, seen.tensor) == ("freed", None)
    tensor.untyped_storage().resize_(8 * LARGE)
    tensor.copy_(value())
    assert look_again(unchanged, [("w", tensor)])[0].digested == before


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
        assert [seen._replace(tensor=None) for seen in look_again(unchanged, values, Scope.PHYSICAL)] == expected
    assert [seen.name for seen in expected][2:4] == ["sparse indices", "sparse values"]


def test_on_a_gpu_every_value_is_digested_anew_by_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, cache = pretend_gpu(monkeypatch), DigestCache()
    weight, gradient = value(), value() + 1
    groups = [
        Group([("w", weight)], cache=cache),
        Group([("w", gradient), ("lr", 0.1)], Scope.PHYSICAL, DigestCache()),
        Group([("w", weight), ("text", "a")]),
    ]
    found = [look_at_groups(groups) for _ in range(2)][1]
    assert gpu.taken() == {"launches": 2, "uploads": 4, "copies": 2, "waits": 0}
    assert gpu.num_words == 2 * 3 * 2 * LARGE
    assert [[seen.name for seen in group] for group in found] == [["w"], ["w", "lr"], ["w", "text"]]
    assert found[0][0].digested == found[2][0].digested != found[1][0].digested
    assert found[1][0].scope is Scope.PHYSICAL
    weight.numpy()[LARGE // 3] = -1  # past torch
    (seen,) = look_again(cache, [("w", weight)])
    assert seen.digested != found[0][0].digested
