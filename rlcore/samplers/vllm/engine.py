"""An engine of vLLM in this process, around a copy of the decoder."""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from rlcore.errors import InvalidValueError
from rlcore.models.config import written_config
from rlcore.models.decoder import Decoder
from rlcore.samplers.local_target import FencedTarget
from rlcore.samplers.vllm.exchange import Drawn, LocalExchange
from rlcore.samplers.vllm.plugin import register_model
from rlcore.samplers.vllm.shared_process import keep_process_group
from rlcore.samplers.vllm.versions import check_device, engine_arguments, installed_version, isolated

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How vLLM works. At level invariant none of it moves a bit."""

    max_length: int
    """Tokens of the longest prompt and completion together."""
    concurrency: int
    """Requests that are decoded together."""
    block_size: int = 8
    """Tokens of a block of the cache; a shared prefix is found block by block."""
    num_blocks: int = 0
    """Blocks of the cache; 0: as many as `concurrency` requests of the greatest length fill."""
    max_batched_tokens: int = 8192
    """Tokens of one pass: longer prompts are read in chunks."""

    def check(self) -> None:
        """Raise InvalidValueError if the cache does not hold one request of the greatest length."""
        least = ceil(self.max_length / self.block_size) + 1
        if self.blocks < least:
            raise InvalidValueError(
                f"sampler.num_blocks is {self.num_blocks}",
                legal=f"{least} or more: one sequence of {self.max_length} tokens in blocks of {self.block_size}, and a"
                " block that vLLM keeps empty; or 0, for as many as runtime.concurrency sequences fill",
                remedy=f"--set sampler.num_blocks={least}",
            )

    @property
    def blocks(self) -> int:
        """Blocks of the cache; vLLM keeps one of them empty."""
        return self.num_blocks or self.concurrency * ceil(self.max_length / self.block_size) + 1

    @property
    def size(self) -> str:
        """Size of the cache, for people."""
        return f"{self.blocks * self.block_size:,} tokens in {self.blocks:,} blocks"


class Engine(LocalExchange):
    """vLLM's engine in this process. It computes at the level of the caller of `step`."""

    def __init__(self, engine: Any, decoder: Decoder, pages: list[Tensor], settings: EngineSettings) -> None:
        """Wrap an engine; `Engine.start` builds one."""
        super().__init__(decoder.config, max_length=settings.max_length, concurrency=settings.concurrency)
        self.decoder, self.settings = decoder, settings
        self._engine, self._pages = engine, pages

    @classmethod
    def start(cls, decoder: Decoder, settings: EngineSettings, report: Report = lambda line: None) -> "Engine":
        """Build an engine with a copy of the decoder's weights; `report` receives a line before what takes seconds.

        Raises InvalidValueError where vLLM cannot be used here, or not with these settings.
        """
        number = installed_version()
        began = perf_counter()
        report(f"sampler: loading vLLM {number}")
        with isolated(), tempfile.TemporaryDirectory(prefix="rlcore-vllm-") as directory:
            check_device(str(decoder.embedding.device))
            from vllm.v1.engine.llm_engine import LLMEngine

            keep_process_group()
            register_model()
            write_model(decoder, Path(directory))
            report(f"sampler: imported in {perf_counter() - began:.1f} s, starting the engine")
            with refusals():
                engine = LLMEngine.from_engine_args(arguments(directory, decoder, settings))
        model = engine.model_executor.driver_worker.model_runner.model
        with torch.no_grad():
            model.decoder.load_state_dict(decoder.state_dict())
        report(f"sampler: engine ready after {perf_counter() - began:.1f} s, {settings.size}")
        return cls(engine, model.decoder, model.pages(), settings)

    def _queue(self, number: int, prompt: list[int], wanted: Any) -> None:
        self._engine.add_request(str(number), {"prompt_token_ids": prompt}, wanted, priority=number)

    def build_target(self) -> FencedTarget:
        """As `Exchange.build_target`."""
        from rlcore.samplers.vllm.target import VllmTarget

        return VllmTarget(self)

    def step(self) -> list[Drawn]:
        """As `Exchange.step`: compute one pass."""
        return [Drawn.of(output) for output in self._engine.step()]

    def abort(self, request_ids: Sequence[str]) -> None:
        """As `Exchange.abort`."""
        self._engine.abort_request(list(request_ids))

    def preempt(self) -> None:
        """As `Exchange.preempt`."""
        self._engine.reset_prefix_cache(reset_running_requests=True)

    def reset_cache(self) -> bool:
        """As `Exchange.reset_cache`."""
        return bool(self._engine.reset_prefix_cache())

    def clear_pages(self) -> None:
        """As `Exchange.clear_pages`."""
        self.reset_cache()
        for pages in self._pages:
            pages.zero_()


def write_model(decoder: Decoder, directory: Path) -> None:
    """Write the config.json from which vLLM builds its model; weights are copied in memory."""
    from rlcore.samplers.vllm.model import ARCHITECTURE, OWN_ARCHITECTURE

    found = written_config(decoder.config, str(decoder.embedding.dtype).removeprefix("torch."))
    (own,) = found["architectures"]
    content = found | {"architectures": [ARCHITECTURE], OWN_ARCHITECTURE: own}
    (directory / "config.json").write_text(json.dumps(content, indent=2), "utf-8")


@contextmanager
def refusals() -> Iterator[None]:
    """Raise InvalidValueError in place of vLLM's ValueError for settings that do not fit together."""
    try:
        yield
    except ValueError as error:
        reason = str(error).strip().splitlines()[-1]
        raise InvalidValueError(f"vLLM refuses these settings: {reason}", legal="see `sampler`") from error


def arguments(directory: str, decoder: Decoder, settings: EngineSettings, **more: Any) -> Any:
    """Return vLLM's EngineArgs for the model in a directory that `write_model` has written."""
    from rlcore.samplers.vllm.keyed_draw import KeyedDraw

    dtype = str(decoder.embedding.dtype).removeprefix("torch.")
    required = {
        "model": directory,
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "dtype": dtype,
        "seed": 0,
        "enforce_eager": True,
        "max_model_len": settings.max_length,
        "max_num_seqs": settings.concurrency,
        "max_num_batched_tokens": settings.max_batched_tokens,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "block_size": settings.block_size,
        "num_gpu_blocks_override": settings.blocks,
        "logprobs_mode": "processed_logits",
        "max_logprobs": -1,  # as many as the vocabulary has
        "logits_processors": [KeyedDraw],
        "scheduling_policy": "priority",
        "disable_log_stats": True,
    }
    page = 2 * decoder.config.num_kv_heads * decoder.config.head_width * decoder.embedding.element_size()
    cache_bytes = settings.blocks * settings.block_size * page * decoder.config.num_layers
    preferred = {"kv_cache_memory_bytes": cache_bytes, "async_scheduling": False}
    return engine_arguments(required | more, preferred)
