"""A sync leaves the policy's bits in the sampler and says so; what it says is what is there."""

import json
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.tensor_digests import weights_digest
from rlcore.errors import WeightSyncError
from rlcore.models.config import DecoderConfig
from rlcore.numerics.level import Strategy, following
from rlcore.weights.canary import TOLERANCES, canary_distance
from rlcore.weights.proven_sync import sync
from rlcore.weights.receipts import Check, Receipt
from rlcore.weights.source import LiveWeights
from rlcore.weights.target import NamedTensors
from tests.rlcore.weights.faults import Write, Written, nothing
from tests.rlcore.weights.targets import CONFIG, UNTIED, Target, learn, policy

some = settings(max_examples=40)


def is_equal(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("config", [CONFIG, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_three_syncs_and_their_receipts(config: DecoderConfig, dtype: torch.dtype) -> None:
    decoder = policy(config).to(dtype)
    target = Target(decoder)
    receipts: list[Receipt] = []
    num_parameters = len(list(decoder.named_parameters()))
    for version in (1, 2, 5):
        previous = receipts[-1] if receipts else None
        receipts.append(sync(decoder, target, version, previous, has_learned=previous is not None))
        assert is_equal(decoder, target.decoder)
        learn(decoder)
    assert [receipt.policy_version for receipt in receipts] == [1, 2, 5]
    assert [receipt.num_changed for receipt in receipts] == [None, num_parameters - 1, num_parameters - 1]
    assert len({receipt.weights_digest for receipt in receipts}) == 3
    last = receipts[-1]
    assert last.weights_digest == target.weights_digest == weights_digest(dict(target.decoder.named_parameters()))
    assert (target.policy_version, last.canary_distance, last.tied) == (5, 0.0, ())
    assert Receipt(**json.loads(json.dumps(asdict(last)))).parameters == last.parameters


def test_a_head_that_is_the_embedding_is_told_and_written_once() -> None:
    decoder = policy(UNTIED)
    decoder.head = decoder.embedding
    assert LiveWeights(decoder).describe().tied == (("embedding", "head"),)
    target = Target(decoder)
    first = sync(decoder, target, 1, None)
    assert first.tied == (("embedding", "head"),)
    learn(decoder)
    assert sync(decoder, target, 2, first).weights_digest == weights_digest(dict(target.decoder.named_parameters()))
    assert is_equal(decoder, target.decoder)


@some
@given(
    name=st.sampled_from([name for name, _ in policy().named_parameters()]),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 31),
)
def test_any_bit_of_any_parameter_is_found_and_named(name: str, place: float, bit: int) -> None:
    def flip(write: Write, weights: NamedTensors) -> None:
        given = {each: tensor.clone() for each, tensor in weights}
        if name in given:
            words = given[name].view(-1).view(torch.int32)
            words[int(place * len(words))] ^= 1 << bit if bit < 31 else -(1 << 31)
        write(given.items())

    decoder = policy()
    with pytest.raises(WeightSyncError) as caught:
        sync(decoder, Written(Target(decoder), flip), 1, None)
    assert (caught.value.check, caught.value.parameter) == (Check.READ_BACK, name)
    assert "1 of" in caught.value.what


def test_after_a_failure_it_may_be_done_again() -> None:
    decoder = policy()
    target = Target(decoder)
    first = sync(decoder, target, 1, None)
    learn(decoder)
    with pytest.raises(WeightSyncError, match="liveness: embedding has changed in the policy since version 1, and not"):
        sync(decoder, Written(target, nothing), 2, first)
    assert target.policy_version == 1, "weights that did not arrive have no version"
    with pytest.raises(WeightSyncError, match="the sync of version 2 has begun, and has not ended"), target.sampling():
        pytest.fail("sampled")
    assert sync(decoder, target, 2, None).policy_version == 2
    assert is_equal(decoder, target.decoder)
    with target.sampling():
        pass


@pytest.mark.parametrize(("held", "given", "is_first", "is_legal"), [
    (3, 3, True, True), (3, 2, True, False), (3, 3, False, False), (3, 4, False, True), (3, 9, False, True),
])  # fmt: skip
def test_versions_rise(held: int, given: int, is_first: bool, is_legal: bool) -> None:
    decoder = policy()
    target = Target(decoder)
    receipt = sync(decoder, target, held, None)
    if is_legal:
        sync(decoder, target, given, None if is_first else receipt)
        return
    with pytest.raises(WeightSyncError, match=f"version {given} for a sampler that has version 3"):
        sync(decoder, target, given, None if is_first else receipt)


@pytest.mark.parametrize(("change", "message"), [
    (lambda d: d.to(torch.bfloat16), "embedding is bfloat16"),
    (lambda d: d.register_parameter("extra", torch.nn.Parameter(torch.zeros(2))), "extra of the sampler is no"),
    (lambda d: setattr(d, "norm", None), "norm is missing"),
    (lambda d: setattr(d, "norm", torch.nn.Parameter(torch.zeros(3))), r"norm is float32 \[3\] in the sampler"),
    (lambda d: setattr(d, "norm", torch.nn.Parameter(torch.zeros(32, dtype=torch.int8), requires_grad=False)),
     r"norm is int8 \[32\]"),
])  # fmt: skip
def test_a_sampler_of_another_model_is_refused(change: object, message: str) -> None:
    decoder = policy()
    target = Target(decoder)
    change(target.decoder)  # type: ignore[operator]  # one of the functions above
    with pytest.raises(WeightSyncError, match=message) as caught:
        sync(decoder, target, 1, None)
    assert caught.value.check == Check.COVERAGE


def test_the_canary_is_bitwise_at_level_invariant_alone() -> None:
    expected = torch.tensor([-1.0, -2.0])
    near = expected + torch.tensor([0.0, 3e-7])
    assert 0 < canary_distance(expected, near, torch.float32) < TOLERANCES[torch.float32]
    with (
        following(Strategy()),
        pytest.raises(WeightSyncError, match="1 of 2 log-probabilities differ, the first at token 2"),
    ):
        canary_distance(expected, near, torch.float32)
    with pytest.raises(WeightSyncError, match="canary"):
        canary_distance(expected, expected - 1e-3, torch.float32)
    canary_distance(expected, expected - 1e-3, torch.bfloat16)


@pytest.mark.parametrize(
    "given", [torch.tensor([float("nan"), -2.0]), torch.tensor([-1.0]), torch.tensor([-1.0, -2.0]).double()]
)
def test_a_canary_that_is_no_number_or_of_another_shape_fails(given: torch.Tensor) -> None:
    with pytest.raises(WeightSyncError, match="canary"):
        canary_distance(torch.tensor([-1.0, -2.0]), given, torch.float32)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("other", torch.ones(32), r"other was written as float32 \[32\], and the sampler has no such parameter"),
        ("norm", torch.ones(1), r"norm was written as float32 \[1\], and the sampler has float32 \[32\]"),
        ("norm", torch.ones(32).double(), r"norm was written as float64 \[32\]"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(name: str, tensor: torch.Tensor, message: str) -> None:
    target = Target(policy())
    target.begin(1)
    with pytest.raises(WeightSyncError, match=message) as caught:
        target.write([(name, tensor)])
    assert caught.value.check == Check.COVERAGE
    assert bool((target.decoder.norm == 1).all())


def test_another_samplers_receipt_is_refused() -> None:
    decoder = policy()
    target, other = Target(decoder), Target(decoder)
    receipt = sync(decoder, target, 1, None)
    sync(decoder, other, 2, None)
    with pytest.raises(WeightSyncError, match="held: the sampler reports version 2"):
        sync(decoder, other, 3, receipt)
