"""vLLM's own Qwen3, reloaded by vLLM's own loader: receipts from its fused parameters, and the faults of such syncs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.errors import InvalidValueError, WeightSyncError
from rlcore.models.checkpoints import hub_parts, hub_tensors, save
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.weights.arrivals import Canary, VllmWorkers, receipt_for
from rlcore.weights.canary import policy_logprobs
from rlcore.weights.receipts import Check, Receipt
from tests.rlcore.weights.targets import learn
from tests.support.vllm_engines import need_vllm
from tests.support.vllm_reload import CheckpointReload

need_vllm()
pytestmark = pytest.mark.full
CONFIG = DecoderConfig("qwen3", 96, 64, 2, 4, 2, 32, 128, max_length=128)
"""Its embedding is its head."""
EXTENSION = "rlcore.weights.vllm_extension.WeightAnswers"


def spread(seed: int) -> Decoder:
    decoder = Decoder(CONFIG).initialise(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6)
    return decoder


@dataclass
class Served:
    """An engine of vLLM with its own model, and how a trainer reaches it."""

    llm: Any
    config: Path
    directory: Path

    @property
    def workers(self) -> VllmWorkers:
        return VllmWorkers(self.llm.collective_rpc)

    def reload(self, *, with_reset: bool = True) -> CheckpointReload:
        reset = self.llm.reset_prefix_cache if with_reset else (lambda: None)
        return CheckpointReload(self.llm.collective_rpc, reset, self.config, self.directory)

    def canary(self, decoder: Decoder) -> Canary:
        """A prompt, and a token decoded after it: that one goes through the prefix cache."""
        from vllm import SamplingParams

        prompt = [(7 * at) % 96 for at in range(40)]
        params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=0, detokenize=False)
        (answer,) = self.llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        ((token, entry),) = answer.outputs[0].logprobs[0].items()
        expected = policy_logprobs(decoder, torch.tensor([*prompt, token]))[-1:]
        return Canary(expected, torch.tensor([entry.logprob]))


def build(directory: Path) -> Served:
    from vllm import LLM

    save(spread(1), directory / "first")
    llm = LLM(
        model=str(directory / "first"),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=64,
        max_num_seqs=4,
        block_size=32,
        seed=0,
        kv_cache_memory_bytes=8 << 20,
        worker_extension_cls=EXTENSION,
    )
    return Served(llm, directory / "first" / "config.json", directory / "reloads")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    from rlcore.samplers.vllm.versions import isolated

    with isolated(), pytest.MonkeyPatch.context() as patched:
        from vllm import _custom_ops

        patched.setattr(_custom_ops, "_supports_onednn", False)  # or its kernels keep packed copies alone
        yield build(tmp_path_factory.mktemp("served"))


def named(decoder: Decoder) -> list[tuple[str, Tensor]]:
    return list(hub_tensors(decoder, hub_parts(decoder.config)).items())


def first_receipt(served: Served, decoder: Decoder) -> Receipt:
    """Reload, and check everything."""
    served.reload()(named(decoder))
    return receipt_for(named(decoder), served.workers, 1, canary=served.canary(decoder))


def test_honest_reloads_raise_no_alarm(served: Served) -> None:
    decoder = spread(2)
    receipt = first_receipt(served, decoder)
    for version in range(2, 8):
        learn(decoder, seed=version, size=0.02)
        served.reload()(named(decoder))
        receipt = receipt_for(
            named(decoder), served.workers, version, previous=receipt, has_learned=True, canary=served.canary(decoder)
        )
        assert receipt.num_changed == len(named(decoder)) - 1, "all but the last norm"
        assert receipt.canary_distance < 1e-5
    assert len(list(served.directory.iterdir())) == 1, "older checkpoints are gone"
    assert (
        served.workers.digests(["lm_head.weight"])["lm_head.weight"] == receipt.parameters["model.embed_tokens.weight"]
    )


def test_an_adapter_that_is_merged_arrives_and_one_that_is_not_is_found(served: Served) -> None:
    decoder = spread(2)
    receipt, base = first_receipt(served, decoder), [(name, tensor.clone()) for name, tensor in named(decoder)]
    down, up = torch.randn(2, 64), torch.randn(64, 2)
    with torch.no_grad():
        dict(decoder.named_parameters())["layers.1.qkv"][128:192].add_(up @ down, alpha=0.02)  # its keys
    served.reload()(base)
    with pytest.raises(WeightSyncError) as caught:
        receipt_for(named(decoder), served.workers, 2, previous=receipt)
    assert (caught.value.check, caught.value.parameter) == (Check.LIVENESS, "model.layers.1.self_attn.k_proj.weight")
    served.reload()(named(decoder))
    merged = receipt_for(named(decoder), served.workers, 2, previous=receipt, canary=served.canary(decoder))
    assert merged.num_changed == 1


def test_a_part_of_a_checkpoint_is_found(served: Served) -> None:
    decoder = spread(2)
    receipt = first_receipt(served, decoder)
    learn(decoder, size=0.02)
    served.reload()([(name, tensor) for name, tensor in named(decoder) if "layers.1.mlp" not in name])
    with pytest.raises(WeightSyncError) as caught:
        receipt_for(named(decoder), served.workers, 2, previous=receipt)
    assert caught.value.parameter.startswith("model.layers.1.mlp.gate_proj"), caught.value
    assert caught.value.check in {Check.LIVENESS, Check.READ_BACK}
    first_receipt(served, decoder)


def test_a_prefix_cache_that_is_not_reset_is_found_by_the_canary(served: Served) -> None:
    decoder = spread(2)
    receipt = first_receipt(served, decoder)
    learn(decoder, size=0.2)
    served.reload(with_reset=False)(named(decoder))
    with pytest.raises(WeightSyncError) as caught:
        receipt_for(named(decoder), served.workers, 2, previous=receipt, canary=served.canary(decoder))
    assert caught.value.check == Check.CANARY
    served.llm.reset_prefix_cache()
    receipt_for(named(decoder), served.workers, 2, previous=receipt, canary=served.canary(decoder))


def test_packed_weights_are_refused_and_the_canary_finds_an_old_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM 0.32 on a CPU packs the head once, and a reload of tied weights leaves the packed copy."""
    from rlcore.samplers.vllm.versions import isolated

    with isolated():
        from vllm import _custom_ops

        monkeypatch.setattr(_custom_ops, "_supports_onednn", True)
        packed = build(tmp_path)
        decoder = spread(2)
        with pytest.raises(InvalidValueError, match="its kernel keeps a packed copy"):
            receipt_for(named(decoder), packed.workers, 1)
        packed.reload()(named(decoder))
        canary = packed.canary(decoder)
    assert json.loads(packed.config.read_text("utf-8"))["tie_word_embeddings"] is True
    with pytest.raises(WeightSyncError) as caught:
        receipt_for([], NoDigests(), 1, canary=canary)
    assert caught.value.check == Check.CANARY


class NoDigests:
    """A sampler that is asked for log-probabilities alone."""

    def digests(self, names: object) -> dict[str, str]:
        return {}
