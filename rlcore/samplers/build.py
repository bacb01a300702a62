"""Build the sampler that a configuration names; vLLM is imported only if it is that one."""

from collections.abc import Callable

from rlcore.config import RunConfig, SamplerSection
from rlcore.errors import InvalidValueError
from rlcore.models.decoder import Decoder
from rlcore.samplers.base import Sampler
from rlcore.samplers.replicas import Replica, ReplicaSampler
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.types import Tokenizer
from rlcore.weights.canary import NUM_TOKENS

OF_VLLM = ("engine", "block_size", "num_blocks", "max_batched_tokens")
"""Settings that only vLLM reads."""


def check_sampler(config: RunConfig) -> None:
    """Check that the sampler can be used here, before anything is built. Raises InvalidValueError."""
    _check_stock(config)
    if config.sampler.name == "torch":
        return
    if config.sampler.tensor_parallel > 1:
        raise InvalidValueError(
            f"sampler.tensor_parallel is {config.sampler.tensor_parallel}",
            legal="1: vLLM divides half of the products by inputs, and adds partial sums as the trainer does not",
            remedy="sampler.replicas for more throughput",
        )
    from rlcore.samplers.vllm.versions import installed_version

    installed_version()
    if config.sampler.engine == "process":
        from rlcore.samplers.vllm.plugin import check_entry_point

        check_entry_point()


def check_level_of_sampler(config: RunConfig, level: str) -> None:
    """Check that the sampler can hold a level. Raises InvalidValueError."""
    if config.sampler.model == "stock" and level == "invariant":
        raise InvalidValueError(
            "sampler.model stock at level invariant: bits of vLLM's own kernels depend on the batch. On a CPU nothing "
            "changes that; VLLM_BATCH_INVARIANT works on GPUs of compute capability 8 or more, and would replace the "
            "trainer's operations in this process",
            legal="own at level invariant; stock at off and deterministic",
            remedy="--set sampler.model=own, or --level deterministic",
        )


def _check_stock(config: RunConfig) -> None:
    """Raise InvalidValueError for settings that have no meaning with a model of vLLM."""
    section = config.sampler
    if section.model == "stock" and (section.name, section.engine) != ("vllm", "in_process"):
        raise InvalidValueError(
            f"sampler.model stock with sampler.name {section.name} and sampler.engine {section.engine}",
            legal="vllm and in_process: its loader writes weights in the trainer's process",
            remedy="--set sampler.name=vllm --set sampler.engine=in_process, or sampler.model=own",
        )


def build_sampler(
    config: RunConfig, decoder: Decoder, tokenizer: Tokenizer, *, longest: int, report: Callable[[str], None]
) -> Sampler:
    """Build a sampler with a copy of the decoder, for sequences of up to `longest` tokens; or several, as one.

    `report` receives a line before what takes seconds. Raises InvalidValueError where this sampler cannot be used here.
    """
    check_sampler(config)
    section = config.sampler
    if section.name == "torch" and (unused := _set_for_vllm(section)):
        has = "has" if len(unused) == 1 else "have"
        report(f"sampler: {', '.join(unused)} {has} no effect with sampler.name torch")
    samplers = [_one(config, decoder, tokenizer, longest=longest, report=report) for _ in range(section.replicas)]
    # Engines of vLLM in this process share the context of a pass: they run one after another.
    run_together = section.name == "torch" or section.engine == "process"
    return samplers[0] if len(samplers) == 1 else ReplicaSampler(samplers, run_together=run_together)


def _set_for_vllm(section: SamplerSection) -> list[str]:
    """Settings of vLLM that are not at their defaults."""
    fields = type(section).model_fields
    return [f"sampler.{name}" for name in OF_VLLM if getattr(section, name) != fields[name].default]


def _one(
    config: RunConfig, decoder: Decoder, tokenizer: Tokenizer, *, longest: int, report: Callable[[str], None]
) -> Replica:
    runtime, section = config.runtime, config.sampler
    options = {"concurrency": runtime.concurrency, "preempt_every": runtime.preempt_every}
    if section.name == "torch":
        return TorchSampler(decoder, tokenizer, **options)
    from rlcore.samplers.vllm.engine import Engine, EngineSettings
    from rlcore.samplers.vllm.process_engine import ProcessEngine
    from rlcore.samplers.vllm.sampler import VllmSampler
    from rlcore.samplers.vllm.stock import StockEngine, padded_block_size

    is_stock = section.model == "stock"
    settings = EngineSettings(
        max_length=min(decoder.config.max_length, max(longest, NUM_TOKENS)),
        concurrency=runtime.concurrency,
        block_size=padded_block_size(section.block_size) if is_stock else section.block_size,
        num_blocks=section.num_blocks,
        max_batched_tokens=section.max_batched_tokens,
    )
    settings.check()
    if is_stock:
        return VllmSampler(StockEngine.start(decoder, settings, report), tokenizer, **options)
    start = ProcessEngine.start if section.engine == "process" else Engine.start
    return VllmSampler(start(decoder, settings, report), tokenizer, **options)
