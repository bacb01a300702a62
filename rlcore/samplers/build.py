"""Build the sampler that a configuration names; vLLM is imported only if it is that one."""

from collections.abc import Callable

from rlcore.config import RunConfig
from rlcore.errors import InvalidValueError
from rlcore.models.decoder import Decoder
from rlcore.samplers.base import NextTokenSampler
from rlcore.samplers.replicas import ReplicaSampler
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.types import Tokenizer
from rlcore.weights.canary import NUM_TOKENS

OF_VLLM = ("block_size", "num_blocks", "max_batched_tokens")
"""Settings that only vLLM reads."""


def check_sampler(config: RunConfig) -> None:
    """Check that the sampler can be used here, before anything is built. Raises InvalidValueError."""
    if config.sampler.name == "vllm":
        from rlcore.samplers.vllm.versions import installed_version

        installed_version()


def check_level_of_sampler(config: RunConfig, level: str) -> None:
    """Check that the sampler can hold a level. Raises InvalidValueError."""
    if config.sampler.model == "stock" and level == "invariant":
        raise InvalidValueError(
            "sampler.model stock at level invariant: bits of vLLM's own kernels depend on the batch",
            legal="own at level invariant; stock at off and deterministic",
            remedy="--set sampler.model=own, or --level deterministic",
        )
    if config.sampler.name == "vllm" and config.model.device != "cpu" and level == "invariant":
        raise InvalidValueError(
            "sampler.name vllm at level invariant on a GPU: rlcore's kernels were never seen to hold in its process",
            legal="torch at level invariant on a GPU; vllm on a CPU, and at off and deterministic",
            remedy="--set sampler.name=torch, or --level deterministic",
        )


def build_sampler(
    config: RunConfig, decoder: Decoder, tokenizer: Tokenizer, *, longest: int, report: Callable[[str], None]
) -> NextTokenSampler:
    """Build a sampler with a copy of the decoder, for sequences of up to `longest` tokens; or several, as one.

    `report` receives a line before what takes seconds. Raises InvalidValueError where this sampler cannot be used here.
    """
    check_sampler(config)
    section = config.sampler
    unused = [f"sampler.{name}" for name in OF_VLLM if name in section.model_fields_set]
    if section.name == "torch" and unused:
        report(f"no effect with sampler.name torch: {', '.join(unused)}")
    samplers = [_one(config, decoder, tokenizer, longest=longest, report=report) for _ in range(section.replicas)]
    return samplers[0] if len(samplers) == 1 else ReplicaSampler(samplers)


def _one(
    config: RunConfig, decoder: Decoder, tokenizer: Tokenizer, *, longest: int, report: Callable[[str], None]
) -> NextTokenSampler:
    runtime, section = config.runtime, config.sampler
    options = {"concurrency": runtime.concurrency, "preempt_every": runtime.preempt_every}
    if section.name == "torch":
        return TorchSampler(decoder, tokenizer, **options)
    from rlcore.samplers.vllm.versions import isolated

    with isolated():
        from rlcore.samplers.vllm.engine import BLOCK_MULTIPLE, Engine, EngineSettings
        from rlcore.samplers.vllm.sampler import VllmSampler

    is_stock = section.model == "stock"
    settings = EngineSettings(
        max_length=min(decoder.config.max_length, max(longest, NUM_TOKENS)),
        concurrency=runtime.concurrency,
        block_size=section.block_size + (-section.block_size % BLOCK_MULTIPLE if is_stock else 0),
        num_blocks=section.num_blocks,
        max_batched_tokens=section.max_batched_tokens,
        is_stock=is_stock,
    )
    settings.check()
    return VllmSampler(Engine(decoder, settings, report), tokenizer, **options)
