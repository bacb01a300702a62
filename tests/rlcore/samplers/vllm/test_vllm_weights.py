"""Syncs to an engine of vLLM: the receipts' fault table, caches of older weights, and honest syncs without an alarm."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rlcore.errors import WeightSyncError
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import Strategy, following
from rlcore.samplers.local_target import LocalTarget
from rlcore.weights.receipts import Check
from rlcore.weights.sync import sync
from tests.conformance.sampler_suite import all_wanted, bits
from tests.rlcore.weights.faults import FAULTS, Fault
from tests.rlcore.weights.targets import CONFIG, Sharing, Target, WronglyTied, learn, policy
from tests.support.samplers import TOKENIZER
from tests.support.vllm_engines import Engines, need_vllm

if TYPE_CHECKING:
    from rlcore.samplers.vllm.engine import Engine

need_vllm()
ENGINES = Engines()


class InEngine:
    """Where targets are made: the weights of engines, each with one of the faults of `tests.rlcore.weights.targets`."""

    def __init__(self) -> None:
        self.taken: list[Engine] = []

    def target(self, kind: Callable[[Decoder], Target], decoder: Decoder) -> Any:
        """Make a target of this kind whose decoder is an engine's."""
        from rlcore.samplers.vllm.target import VllmTarget

        engine = ENGINES.take(decoder, concurrency=4)
        if kind is not WronglyTied:  # that engine has fewer parameters than it should
            self.taken.append(engine)

        class OfEngine(VllmTarget):
            """Stands in the place of LocalTarget, which a kind's constructor calls with the decoder."""

            def __init__(self, _: Decoder) -> None:
                super().__init__(engine)

        assert isinstance(kind, type), kind
        mixed = type(f"{kind.__name__}OfEngine", (kind, OfEngine), {"copied": lambda self, decoder: engine.decoder})
        return mixed(decoder)

    def sharing_target(self, kind: Callable[[Decoder], Target], decoder: Decoder) -> Any:
        """Make a target whose engine computes in the policy's memory."""
        from rlcore.samplers.vllm.target import VllmTarget

        engine = ENGINES.take(decoder, concurrency=4)
        for own, policys in zip(engine.decoder.parameters(), decoder.parameters(), strict=True):
            own.data = policys.data
        return VllmTarget(engine)


@pytest.fixture(autouse=True)
def at_level_invariant() -> Iterator[None]:
    with following(Strategy()):
        yield


@pytest.fixture
def host() -> Iterator[InEngine]:
    made = InEngine()
    yield made
    for engine in made.taken:
        ENGINES.give_back(engine)


OWN_CANARY = ("a stale prefix", "a stale conversion", "a stale buffer")
"""Faults whose targets answer the canary themselves or spoil the engine: the tests below have its own caches."""
each_fault = pytest.mark.parametrize(
    "fault",
    [fault for fault in FAULTS if fault.name not in OWN_CANARY],
    ids=lambda fault: fault.name.replace(" ", "-"),
)


@each_fault
def test_a_fault_is_found_by_its_check(fault: Fault, host: InEngine) -> None:
    with pytest.raises(WeightSyncError) as caught:
        fault.inject(host)
    assert caught.value.check == fault.check, caught.value


def test_a_prefix_cache_that_is_not_reset_is_found_by_the_canary(
    host: InEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlcore.samplers.vllm.target import VllmTarget

    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 1, None)
    learn(decoder)
    with monkeypatch.context() as without_reset:
        without_reset.setattr(VllmTarget, "begin", LocalTarget.begin)
        with pytest.raises(WeightSyncError, match="caches") as caught:
            sync(decoder, target, 2, first)
    assert caught.value.check == Check.CANARY
    assert sync(decoder, target, 2, None).canary_distance == 0.0


def test_a_reset_that_vllm_refuses_is_reported(host: InEngine) -> None:
    decoder = policy()
    target = host.target(Target, decoder)
    (engine,) = host.taken
    left = engine.add((1, 2, 3), max_tokens=4, stop_ids=(), key=1, params=all_wanted()[0].params)
    engine.step()
    with pytest.raises(WeightSyncError, match="prefix cache") as caught:
        sync(decoder, target, 1, None)
    assert caught.value.check == Check.FENCE
    engine.abort([left])
    sync(decoder, target, 1, None)


def test_a_model_that_computes_with_a_copy_of_its_weights_is_found_by_the_canary(host: InEngine) -> None:
    decoder = policy()
    target = host.target(Target, decoder)
    (engine,) = host.taken
    first = sync(decoder, target, 1, None)
    logits, stale = engine.decoder.logits, policy()
    engine.decoder.logits = stale.logits  # type: ignore[method-assign]
    learn(decoder)
    try:
        with torch.no_grad(), pytest.raises(WeightSyncError) as caught:
            sync(decoder, target, 2, first)
    finally:
        engine.decoder.logits = logits  # type: ignore[method-assign]
    assert caught.value.check == Check.CANARY


def test_honest_syncs_raise_no_alarm_and_completions_are_those_of_the_weights(host: InEngine) -> None:
    from rlcore.samplers.torch_sampler import TorchSampler
    from rlcore.samplers.vllm.sampler import VllmSampler

    assert CONFIG.vocab_size > TOKENIZER.vocab_size
    decoder, engine = policy(), ENGINES.take(policy(), concurrency=4)
    sampler, receipt = VllmSampler(engine, TOKENIZER), None
    for version in range(1, 31):
        learn(decoder, seed=version)
        receipt = sync(decoder, sampler.weight_target, version, receipt, has_learned=receipt is not None)
        assert receipt.canary_distance == 0.0
        if version % 10 == 0:
            drawn = sampler.sample(all_wanted())
            assert all(each.weights_digests == {version: receipt.weights_digest} for each in drawn)
            assert bits(drawn) == bits(TorchSampler(decoder, TOKENIZER).sample(all_wanted()))
    ENGINES.give_back(engine)


def test_the_canary_is_refused_while_completions_are_drawn(host: InEngine) -> None:
    from rlcore.samplers.vllm.sampler import VllmSampler

    engine = ENGINES.take(policy(), concurrency=4)
    sampler, refused = VllmSampler(engine, TOKENIZER), []

    def ask(num_done: int, num_wanted: int) -> None:
        with pytest.raises(WeightSyncError) as caught:
            sampler.weight_target.canary(torch.tensor([1, 2, 3]))
        refused.append(caught.value.check)

    sampler.sample(all_wanted(), progress=ask)
    assert set(refused) == {Check.FENCE}
    ENGINES.give_back(engine)


def test_the_weights_share_no_memory_with_the_policy(host: InEngine) -> None:
    decoder = policy()
    with pytest.raises(WeightSyncError) as caught:
        sync(decoder, host.sharing_target(Sharing, decoder), 1, None)
    assert caught.value.check == Check.OWNERSHIP
