"""Values wherever they are: what is not on the host comes back by 16 bytes each, and says what the host's says."""

import pytest
import torch

from harness.recording.gpu_digest import Shard
from harness.recording.sharded_digest import _digested, _raw, digest_placed, place
from harness.recording.tensors import digest_tensor
from harness.trace.chain import Scope
from harness.trace.digests import add_shards, shardsum


def test_values_on_the_host_are_digested_as_ever() -> None:
    values = [torch.randn(7, 3), torch.tensor(1.0), torch.empty(0)]
    assert digest_placed(values) == [digest_tensor(value) for value in values]


@pytest.mark.parametrize("value", [torch.tensor(1.5), torch.arange(4, dtype=torch.int32), torch.tensor([True, False])])
def test_small_values_travel_as_they_are(value: torch.Tensor) -> None:
    assert _digested(value, _raw(value)) == digest_tensor(value)


def test_parts_among_other_values_keep_their_places() -> None:
    whole = torch.randn(6, 5)
    parts = [Shard(whole[:4], (6, 5), (0, 0)), Shard(whole[4:], (6, 5), (4, 0))]
    first, other, second = digest_placed([parts[0], whole, parts[1]])
    assert (first, second) == (digest_placed(parts[:1])[0], digest_placed(parts[1:])[0])
    assert other == digest_tensor(whole)
    data = whole.view(torch.int32).flatten().tolist()
    expected = shardsum(b"".join(word.to_bytes(4, "little", signed=True) for word in data), 4)
    assert add_shards([first.digest, second.digest]) == expected


def test_a_plain_tensor_keeps_its_scope() -> None:
    value = torch.ones(2)
    for scope in Scope:
        placed = place(value, scope)
        assert placed.value is value
        assert placed.scope is scope
