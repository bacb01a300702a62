"""vLLM's own model: its loader writes what our names read, runs repeat, and what it cannot hold is refused."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from rlcore.errors import InvalidValueError, WeightSyncError
from rlcore.models.config import FAMILIES, DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.streams import read_streams
from rlcore.samplers.build import check_level_of_sampler, check_sampler
from rlcore.weights.receipts import Check
from rlcore.weights.sync import sync
from tests.rlcore.training.recorded import config, first_difference, recorded
from tests.rlcore.weights.targets import learn
from tests.support.parity import requests_of, trainer_logprobs
from tests.support.samplers import TOKENIZER
from tests.support.vllm_engines import need_vllm

if TYPE_CHECKING:
    from rlcore.samplers.vllm.stock import StockEngine

need_vllm()
SIZES = DecoderConfig("qwen3", TOKENIZER.vocab_size, 64, 2, 2, 1, 32, 128, max_length=96)
MODEL = {"width": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_width": 32, "ffn_width": 128}
STOCK = {"name": "vllm", "model": "stock"}
TRAINING = {"num_steps": 2, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4}
Start = Callable[..., "StockEngine"]


def decoder_of(of: DecoderConfig = SIZES, seed: int = 3) -> Decoder:
    decoder = Decoder(of).initialise(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(4 if parameter.dim() == 2 else 1)
    return decoder


def start(decoder: Decoder) -> "StockEngine":
    from rlcore.samplers.vllm.engine import EngineSettings
    from rlcore.samplers.vllm.stock import StockEngine

    return StockEngine.start(decoder, EngineSettings(max_length=96, concurrency=16, block_size=32))


@pytest.fixture(scope="module")
def engine() -> "StockEngine":
    return start(decoder_of())


def receipt_of(decoder: Decoder, engine: "StockEngine") -> Any:
    target = engine.build_target()
    return sync(decoder, target, target.policy_version, None)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_sync_is_loaded_and_read_back_under_our_names(family: str, *, is_tied: bool) -> None:
    of = replace(SIZES, family=family, is_tied=is_tied)
    found, policy = start(decoder_of(of)), decoder_of(of, seed=8)
    for name, parameter in found.decoder.named_parameters():
        assert torch.equal(parameter, dict(decoder_of(of).named_parameters())[name]), "vLLM's first load"
    target = found.build_target()
    receipt = sync(policy, target, 1, None)
    assert all(torch.equal(*pair) for pair in zip(found.decoder.parameters(), policy.parameters(), strict=True))
    assert 0.0 < receipt.canary_distance < 1e-4
    learn(policy)
    assert sync(policy, target, 2, receipt, has_learned=True).num_changed


def test_its_draws_are_ours_from_its_logits(engine: "StockEngine") -> None:
    from rlcore.samplers.vllm.sampler import VllmSampler

    decoder = decoder_of()
    receipt_of(decoder, engine)
    drawn = VllmSampler(engine, TOKENIZER).sample(requests_of())
    pairs = [
        pair for each in drawn for pair in zip(each.completion_logprobs, trainer_logprobs(decoder, each), strict=True)
    ]
    assert max(abs(mine - theirs) for mine, theirs in pairs) < 1e-4
    assert any(mine != theirs for mine, theirs in pairs), "its kernels are not ours"
    assert [each.tokens for each in VllmSampler(engine, TOKENIZER).sample(requests_of())] == [
        each.tokens for each in drawn
    ]


def test_streams_are_those_of_its_layers(engine: "StockEngine") -> None:
    decoder, tokens = decoder_of(), torch.tensor(requests_of()[0].prompt.tokens)
    receipt_of(decoder, engine)
    expected, found = read_streams(decoder, tokens), engine.build_target().streams(tokens)
    assert list(found) == list(expected)
    for name, stream in expected.items():
        torch.testing.assert_close(found[name], stream, rtol=1e-3, atol=1e-3)
    assert torch.equal(found["embedding"], expected["embedding"])


def test_a_loader_that_leaves_a_tensor_out_is_found(engine: "StockEngine", monkeypatch: pytest.MonkeyPatch) -> None:
    load = engine.model.load_weights

    def without_keys(weights: Any) -> Any:
        return load((name, tensor) for name, tensor in weights if "k_proj" not in name)

    monkeypatch.setattr(engine.model, "load_weights", without_keys)
    with pytest.raises(WeightSyncError) as caught:
        receipt_of(decoder_of(seed=9), engine)
    assert (caught.value.check, caught.value.parameter) == (Check.COVERAGE, "layers.0.qkv")


def test_a_prefix_cache_that_is_not_reset_is_found(engine: "StockEngine", monkeypatch: pytest.MonkeyPatch) -> None:
    policy, target = decoder_of(), engine.build_target()
    receipt = sync(policy, target, 1, None)
    learn(policy)
    receipt = sync(policy, target, 2, receipt)
    monkeypatch.setattr(type(engine), "reset_cache", lambda _: True)
    learn(policy)
    with pytest.raises(WeightSyncError, match="32 tokens of the last sync's prompt") as caught:
        sync(policy, target, 3, receipt)
    assert caught.value.check == Check.CANARY


def test_packed_weights_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the switch vLLM packs weights, and parameters are empty: no name of ours can read them."""
    from contextlib import nullcontext

    from rlcore.samplers.vllm import stock

    monkeypatch.setattr(stock, "leave_weights_unpacked", nullcontext)
    with pytest.raises(WeightSyncError) as caught:
        start(decoder_of())
    assert caught.value.check == Check.COVERAGE


def test_a_type_or_shape_that_it_does_not_have_is_refused(engine: "StockEngine") -> None:
    target = engine.build_target()
    target.begin(1)
    wrong: Sequence[Mapping[str, Tensor]] = ({"norm": torch.ones(3)}, {"none": torch.ones(64)})
    for chunk in wrong:
        with pytest.raises(WeightSyncError, match="and the sampler has"):
            target.write(chunk.items())


# ---------------------------------------------------------------------------------------------------------------- runs


def test_runs_repeat_and_count_what_differs_from_the_trainer(tmp_path: Path) -> None:
    of = config(model=MODEL, training=TRAINING, sampler=STOCK, correction={"weights": "sequence", "outside": "icepop"})
    first, second = (recorded(of, tmp_path / name, level="deterministic") for name in "ab")
    assert first_difference(first, second) is None
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [line for line in lines if "mismatch/num_tokens" in line]
    assert len(steps) == 2
    for line in steps:
        assert line["mismatch/num_tokens"] > 0 and 0 < line["mismatch/max_nats"] < 1e-4
        assert line["weights"] == pytest.approx(1.0, abs=1e-3), "the correction sees them"


@pytest.mark.parametrize(
    ("sampler", "what"),
    [
        ({"model": "stock"}, "sampler.name torch"),
        ({**STOCK, "engine": "process"}, "sampler.engine process"),
    ],
)
def test_settings_without_a_meaning_are_refused(sampler: Mapping[str, Any], what: str) -> None:
    with pytest.raises(InvalidValueError, match=f"sampler.model stock with .*{what}") as caught:
        check_sampler(config(sampler=sampler))
    assert caught.value.legal and caught.value.remedy


def test_level_invariant_is_refused_with_the_reason(tmp_path: Path) -> None:
    of = config(model=MODEL, sampler=STOCK)
    with pytest.raises(InvalidValueError, match="depend on the batch") as caught:
        recorded(of, tmp_path)
    assert "deterministic" in caught.value.legal
    check_level_of_sampler(of, "deterministic")


def test_heads_that_vllm_does_not_compute_on_a_cpu_are_refused() -> None:
    from rlcore.samplers.vllm.stock import check_head_width
    from rlcore.samplers.vllm.versions import isolated

    with isolated(), pytest.raises(InvalidValueError, match="heads are 16 wide") as refused:
        check_head_width(64)
        check_head_width(16)
    assert refused.value.legal.startswith("32, 64") and "sampler.model=own" in refused.value.remedy
