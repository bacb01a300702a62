"""vLLM's own model: a sync writes its memory under our names, runs repeat, and what it cannot hold is refused."""

import json
from pathlib import Path

import pytest
import torch

from rlcore.errors import InvalidValueError
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.streams import read_streams
from rlcore.samplers.build import check_level_of_sampler
from rlcore.weights.proven_sync import sync
from tests.rlcore.training.recorded import config, first_difference, recorded
from tests.rlcore.weights.targets import learn
from tests.support.parity import requests_of, trainer_logprobs
from tests.support.samplers import TOKENIZER
from tests.support.vllm_engines import need_vllm

need_vllm()
MODEL = {"width": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_width": 32, "ffn_width": 128}
STOCK = {"name": "vllm", "model": "stock"}
TRAINING = {"num_steps": 2, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4}


def decoder_of(of: DecoderConfig, seed: int = 3) -> Decoder:
    decoder = Decoder(of).initialise(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(4 if parameter.dim() == 2 else 1)
    return decoder


@pytest.mark.parametrize(("family", "is_tied"), [("qwen3", True), ("qwen2", False), ("llama", False)])
def test_a_sync_writes_it_under_our_names_and_its_draws_are_ours_from_its_logits(family: str, *, is_tied: bool) -> None:
    from rlcore.samplers.vllm.engine import Engine, EngineSettings
    from rlcore.samplers.vllm.sampler import VllmSampler
    from rlcore.samplers.vllm.target import VllmTarget

    of = DecoderConfig(family, TOKENIZER.vocab_size, 64, 2, 2, 1, 32, 128, max_length=96, is_tied=is_tied)
    settings = EngineSettings(max_length=96, concurrency=16, block_size=32, is_stock=True)
    engine, policy = Engine(decoder_of(of), settings), decoder_of(of, seed=8)
    sampler = VllmSampler(engine, TOKENIZER)
    receipt = sync(policy, sampler.weight_target, 1, None)
    assert 0.0 < receipt.canary_distance < 1e-4
    learn(policy)
    assert sync(policy, sampler.weight_target, 2, receipt, has_learned=True).num_changed
    drawn = sampler.sample(requests_of())
    theirs = torch.tensor([value for each in drawn for value in each.completion_logprobs])
    mine = torch.tensor([value for each in drawn for value in trainer_logprobs(policy, each)])
    assert 0 < (mine - theirs).abs().max() < 1e-4, "its kernels are not ours"
    tokens = torch.tensor(requests_of()[0].prompt.tokens)
    expected, found = read_streams(policy, tokens), VllmTarget(engine).streams(tokens)
    assert list(found) == list(expected)
    torch.testing.assert_close(found, dict(expected), rtol=1e-3, atol=1e-3)
    engine.close()


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


def test_what_it_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"sampler\.model is 'stock', which has no effect here"):
        config(sampler={"model": "stock"})
    of = config(model=MODEL, sampler=STOCK)
    with pytest.raises(InvalidValueError, match="depend on the batch") as caught:
        recorded(of, tmp_path)
    assert "deterministic" in caught.value.legal
    check_level_of_sampler(of, "deterministic")
    with pytest.raises(InvalidValueError, match="heads are 16 wide") as caught:
        recorded(config(sampler=STOCK), tmp_path, level="off")
    assert caught.value.legal.startswith("32, 64") and "sampler.model=own" in caught.value.remedy
