"""vLLM's own Qwen3, Qwen2 or Llama as the sampler's model: its layers and its attention, its loader for weights.

    policy ──config.json, safetensors──▶ vLLM builds its model
           ──sync: our parameters ──▶ tensors of a checkpoint ──▶ vLLM's loader ──▶ fused parameters
                                 ◀── digests of the same memory, as our parameters ──┘

vLLM fuses parameters as rlcore does, so that each of ours is a view of one of its own. Tokens are drawn by rlcore's
keyed noise, from vLLM's logits.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.errors import InvalidValueError, WeightSyncError
from rlcore.models.checkpoints import hub_parts, save
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.streams import EMBEDDING, KeptStreams
from rlcore.samplers.local_target import check_fits
from rlcore.samplers.vllm.engine import Engine, EngineSettings, Report, arguments, refusals
from rlcore.samplers.vllm.shared_process import keep_process_group
from rlcore.samplers.vllm.stock_kernels import leave_weights_unpacked
from rlcore.samplers.vllm.target import GREEDY, VllmTarget
from rlcore.samplers.vllm.versions import check_device, installed_version, isolated
from rlcore.weights.receipts import Check
from rlcore.weights.target import NamedTensors
from rlcore.weights.transports.packing import chunks

BLOCK_MULTIPLE = 32
"""Blocks of the cache of vLLM's attention on a CPU have a multiple of so many tokens."""
CHUNK_BYTES = 256 << 20
"""Weights that vLLM's loader gets together."""
LAYER_NAMES: Mapping[str, str] = {
    "attention_norm": "input_layernorm.weight",
    "qkv": "self_attn.qkv_proj.weight",
    "qkv_bias": "self_attn.qkv_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "out": "self_attn.o_proj.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate_up": "mlp.gate_up_proj.weight",
    "down": "mlp.down_proj.weight",
}
"""Our parameter of a layer -> vLLM's."""


class StockEngine(Engine):
    """vLLM's engine in this process, around vLLM's own model."""

    def __init__(self, engine: Any, model: Any, decoder: Decoder, settings: EngineSettings) -> None:
        """Wrap an engine; `StockEngine.start` builds one. `decoder` has the memory of the model's parameters."""
        pages = [layer.self_attn.attn.kv_cache for layer in model.model.layers]
        super().__init__(engine, decoder, pages, settings)
        self.model = model

    @classmethod
    def start(cls, decoder: Decoder, settings: EngineSettings, report: Report = lambda line: None) -> "StockEngine":
        """Build an engine with a copy of the decoder's weights; as `Engine.start`."""
        number = installed_version()
        began = perf_counter()
        report(f"sampler: loading vLLM {number}, with its own model")
        with isolated(), tempfile.TemporaryDirectory(prefix="rlcore-vllm-") as directory:
            check_device(str(decoder.embedding.device))
            check_head_width(decoder.config.head_width)
            from vllm.v1.engine.llm_engine import LLMEngine

            keep_process_group()
            save(decoder, Path(directory))
            given = arguments(directory, decoder, settings, load_format="auto", use_tqdm_on_load=False)
            with refusals(), leave_weights_unpacked():
                engine = LLMEngine.from_engine_args(given)
        model = engine.model_executor.driver_worker.model_runner.model
        report(f"sampler: engine ready after {perf_counter() - began:.1f} s, {settings.size}")
        return cls(engine, model, as_decoder(model, decoder.config), settings)

    def build_target(self) -> "StockTarget":
        """As `Exchange.build_target`."""
        return StockTarget(self)


class StockTarget(VllmTarget):
    """As `VllmTarget`, for a model of vLLM: its own loader writes the weights, and our names read them."""

    def __init__(self, engine: StockEngine) -> None:
        super().__init__(engine)
        self._model, self._config, self._settings = engine.model, engine.decoder.config, engine.settings
        self._has_begun = False

    def begin(self, policy_version: int) -> None:
        """As `VllmTarget.begin`."""
        super().begin(policy_version)
        self._has_begun = True

    def canary(self, tokens: Tensor) -> Tensor:
        """As `VllmTarget.canary`; its prompts fill no block here, so that the prefix cache is checked by itself."""
        found = super().canary(tokens)
        if self._has_begun:
            self._check_cache(tokens)
            self._has_begun = False
        return found

    @torch.no_grad()
    def write(self, weights: NamedTensors) -> None:
        """As `WeightTarget.write`. Raises WeightSyncError for a name, type or shape that it does not have."""
        self._check_begun()
        parameters = self._parameters()
        for chunk in chunks(weights, CHUNK_BYTES):
            for name, tensor in chunk.items():
                check_fits(name, tensor, parameters)
            self._model.load_weights(_hub_tensors(chunk, self._config))

    def _check_cache(self, tokens: Tensor) -> None:
        """Check that no block of older weights is in the prefix cache, by a prompt that each sync sends again."""
        length = self._settings.block_size + 1
        if length >= self._settings.max_length:
            return  # no prompt fills a block
        prompt = (tokens.tolist() * length)[:length]
        with torch.inference_mode():
            name = self._engine.add(prompt, max_tokens=1, stop_ids=(), key=0, params=GREEDY, forced=0)
            (drawn,) = self._engine.first_tokens([name])
        if drawn.num_cached:
            raise WeightSyncError(
                f"{drawn.num_cached} tokens of the last sync's prompt are in the prefix cache",
                check=Check.CANARY,
                remedy="reset the prefix cache before weights are written: its keys are of older weights",
            )

    def streams(self, tokens: Tensor) -> Mapping[str, Tensor]:
        """As `LocalTarget.streams`; vLLM's layers return the stream as two terms."""
        kept, layers = KeptStreams(self._decoder), self._model.model

        def after_embedding(_: Any, __: Any, output: Tensor) -> None:
            kept.put(EMBEDDING, output[None])

        with ExitStack() as stack:
            stack.callback(layers.embed_tokens.register_forward_hook(after_embedding).remove)
            for number, layer in enumerate(layers.layers):

                def after(_: Any, __: Any, output: tuple[Tensor, Tensor], name: str = f"layers.{number}") -> None:
                    kept.put(name, (output[0] + output[1])[None])

                stack.callback(layer.register_forward_hook(after).remove)
            self._read(tokens)
        return kept.streams(len(tokens) - 1)


def check_head_width(head_width: int) -> None:
    """Raise InvalidValueError for heads that vLLM's attention on a CPU does not compute."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    legal = CPUAttentionBackend.get_supported_head_sizes()
    if current_platform.device_type == "cpu" and head_width not in legal:
        raise InvalidValueError(
            f"sampler.model stock with a model whose heads are {head_width} wide",
            legal=f"{', '.join(map(str, legal))}: what vLLM's attention computes on a CPU",
            remedy="--set sampler.model=own computes any width; or choose another model.width or model.num_heads",
        )


def padded_block_size(block_size: int) -> int:
    """Return the least number of tokens, this or more, that a block of vLLM's attention may have."""
    return block_size + -block_size % BLOCK_MULTIPLE


def stock_names(config: DecoderConfig) -> dict[str, str]:
    """Return vLLM's name of each of our parameters."""
    names = {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight"}
    if not config.is_tied:
        names["head"] = "lm_head.weight"
    with torch.device("meta"):
        own = dict(Decoder(config).named_parameters())
    for name in own:
        if name.startswith("layers."):
            _, number, parameter = name.split(".")
            names[name] = f"model.layers.{number}.{LAYER_NAMES[parameter]}"
    return {name: names[name] for name in own}


def as_decoder(model: nn.Module, config: DecoderConfig) -> Decoder:
    """Return a decoder whose parameters are views of a vLLM model's. vLLM pads the vocabulary; the views end before.

    Raises WeightSyncError for a parameter of another shape: this version of vLLM lays it out differently.
    """
    with torch.device("meta"):
        decoder = Decoder(config)
    theirs = dict(model.named_parameters())
    for name, stock in stock_names(config).items():
        owner, _, short = name.rpartition(".")
        module = decoder.get_submodule(owner)
        wanted = getattr(module, short)
        view = theirs[stock].detach()[: wanted.shape[0]]
        if view.shape != wanted.shape:
            raise WeightSyncError(
                f"{stock} of vLLM is {list(view.shape)}", check=Check.COVERAGE, parameter=name, legal=str(wanted.shape)
            )
        setattr(module, short, nn.Parameter(view, requires_grad=False))
    return decoder


def _hub_tensors(chunk: Mapping[str, Tensor], config: DecoderConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors of a checkpoint, of which vLLM's loader fuses several."""
    for part in hub_parts(config):
        if part.parameter in chunk:
            yield part.name, chunk[part.parameter][part.first : part.last]
